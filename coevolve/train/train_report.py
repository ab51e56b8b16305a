"""The report of a training: counts, loss curve, and means per pair kind.

Metrics of pairs have TRL's names and meanings, with the pair kind in front, such as `expert_target/rewards/margins`;
`<kind>/pairs` is the number of pairs. `logps/*` are log pi(e | u) in nats, `rewards/margins` is the argument of the
sigmoid in eq. 7, `rewards/accuracies` the share of pairs in which it is positive.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from coevolve.config.names import PairKind
from coevolve.records.training import ReferenceLevels, TrainReport, TrajectoryLogps
from coevolve.train.dataset import EMPTY_SLOT, TrainingSet

#: Means over the pairs of one kind that a step reports, under `<kind>/<name>`.
KIND_METRICS = ("loss", "logps/chosen", "logps/rejected", "rewards/margins", "rewards/accuracies")


def report(
    training_set: TrainingSet[Any],
    order: Sequence[int],
    batch_size: int,
    history: Sequence[dict[str, float]],
    *,
    seconds: float,
    gold: TrajectoryLogps | None = None,
    explored: TrajectoryLogps | None = None,
    reference: Mapping[PairKind, ReferenceLevels] | None = None,
    note: str = "",
    sampled_tokens: int | None = None,
) -> TrainReport:
    """The report of a training that visited the examples in `order`, `batch_size` slots a step.

    Its `kinds` are means over the last steps, as many as an epoch has: steps of two epochs, if it ends inside one.
    """
    epoch = math.ceil(len(training_set.examples) / batch_size)
    tokens = sum(len(training_set.examples[slot]) for slot in order if slot != EMPTY_SLOT)
    return TrainReport(
        rows=len(training_set.examples),
        truncated=training_set.truncated,
        dropped=training_set.dropped,
        steps=len(history),
        tokens=tokens,
        first_loss=history[0]["loss"] if history else None,
        last_loss=history[-1]["loss"] if history else None,
        history=tuple(history),
        kinds=last_metrics(history[-epoch:]),
        gold=gold,
        explored=explored,
        reference=dict(reference or {}),
        note=note,
        seconds=seconds,
        trained_tokens=tokens,
        sampled_tokens=sampled_tokens,
    )


def last_metrics(history: Sequence[dict[str, float]]) -> dict[PairKind, dict[str, int | float]]:
    """Number of pairs and means of each kind over the steps of `history`, weighted by its number of pairs in each."""
    means: dict[PairKind, dict[str, int | float]] = {}
    for kind in PairKind:
        steps = [step for step in history if f"{kind}/pairs" in step]
        pairs = sum(step[f"{kind}/pairs"] for step in steps)
        sums = {name: sum(step[f"{kind}/{name}"] * step[f"{kind}/pairs"] for step in steps) for name in KIND_METRICS}
        if pairs:
            means[kind] = {"pairs": int(pairs)} | {name: total / pairs for name, total in sums.items()}
    return means


def kind_means(pairs: Sequence[tuple[str, tuple[float, ...]]]) -> dict[str, float]:
    """`<kind>/pairs` and `<kind>/<metric>` of one step, from the kind and the `KIND_METRICS` of each of its pairs."""
    metrics: dict[str, float] = {}
    for kind, group in itertools.groupby(sorted(pairs), key=lambda pair: pair[0]):
        values = [pair[1] for pair in group]
        metrics[f"{kind}/pairs"] = float(len(values))
        for name, column in zip(KIND_METRICS, zip(*values, strict=True), strict=True):
            metrics[f"{kind}/{name}"] = sum(column) / len(column)
    return metrics
