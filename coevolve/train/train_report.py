"""The report of a training: counts, loss curve, and means per pair kind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coevolve.train.dataset import EMPTY_SLOT, TrainingSet
from coevolve.types import PairKind

#: Means over the pairs of one kind that a step reports, under `<kind>/<name>`; `<kind>/pairs` is their number.
KIND_METRICS = ("loss", "chosen", "rejected", "margin", "accuracy")


@dataclass(frozen=True)
class KindReport:
    """Means over the pairs of one kind in the last epoch, each pair measured when it was trained on.

    `chosen` and `rejected` are log pi(e | u) in nats; `accuracy` is the share of pairs with a positive margin.
    """

    pairs: int
    loss: float
    chosen: float
    rejected: float
    margin: float
    accuracy: float


@dataclass(frozen=True)
class TrainReport:
    """One training on `rows` examples in `steps` steps; `tokens` counts the tokens of all epochs without padding.

    `history` has one entry per step: `step`, `loss` (of the global batch, before the step), `grad_norm` (before
    clipping), `learning_rate`, and for pairs `<kind>/<metric>`. `note` describes what is unusual. `seconds` is wall
    time since the start or the last resumption.
    """

    rows: int
    truncated: int
    dropped: int
    steps: int
    tokens: int
    first_loss: float | None
    last_loss: float | None
    history: tuple[dict[str, float], ...]
    kinds: dict[PairKind, KindReport]
    note: str
    seconds: float


def report(
    fitted: TrainingSet[Any],
    order: Sequence[int],
    batch_size: int,
    history: Sequence[dict[str, float]],
    *,
    seconds: float,
    note: str = "",
) -> TrainReport:
    """The report of a training that visited the examples in `order`, `batch_size` slots a step."""
    epoch = math.ceil(len(fitted.examples) / batch_size)
    return TrainReport(
        rows=len(fitted.examples),
        truncated=fitted.truncated,
        dropped=fitted.dropped,
        steps=len(history),
        tokens=sum(len(fitted.examples[slot]) for slot in order if slot != EMPTY_SLOT),
        first_loss=history[0]["loss"] if history else None,
        last_loss=history[-1]["loss"] if history else None,
        history=tuple(history),
        kinds=kind_reports(history[-epoch:]),
        note=note,
        seconds=seconds,
    )


def kind_reports(history: Sequence[dict[str, float]]) -> dict[PairKind, KindReport]:
    """Each kind's means over the steps of `history`, weighted by its number of pairs in each."""
    reports = {}
    for kind in PairKind:
        steps = [step for step in history if f"{kind}/pairs" in step]
        pairs = sum(step[f"{kind}/pairs"] for step in steps)
        sums = {name: sum(step[f"{kind}/{name}"] * step[f"{kind}/pairs"] for step in steps) for name in KIND_METRICS}
        if pairs:
            reports[kind] = KindReport(pairs=int(pairs), **{name: total / pairs for name, total in sums.items()})
    return reports


def kind_means(pairs: Sequence[tuple[str, tuple[float, ...]]]) -> dict[str, float]:
    """`<kind>/pairs` and `<kind>/<metric>` of one step, from the kind and the `KIND_METRICS` of each of its pairs."""
    metrics: dict[str, float] = {}
    for kind, group in itertools.groupby(sorted(pairs), key=lambda pair: pair[0]):
        values = [pair[1] for pair in group]
        metrics[f"{kind}/pairs"] = float(len(values))
        for name, column in zip(KIND_METRICS, zip(*values, strict=True), strict=True):
            metrics[f"{kind}/{name}"] = sum(column) / len(column)
    return metrics
