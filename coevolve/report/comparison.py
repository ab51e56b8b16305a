"""A comparison of results: whether they are comparable, their difference, and the smallest detectable one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from tabulate import tabulate

from coevolve import escaping
from coevolve.errors import UserError
from coevolve.records.base import Record
from coevolve.records.episodes import Scalar
from coevolve.report import estimation, evaluation_result, stats
from coevolve.report.evaluation_result import SAMPLING, SETTINGS, EvaluationResult, SplitResult

Quantity = Literal["mean_reward", "success_rate"]
#: The text of a setting that is null, such as no limit.
NULL = "none"
#: Of the intervals, and half the width of a normal one in standard errors.
CONFIDENCE = 0.95
NORMAL = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0)
LABELS: dict[Quantity, str] = {"mean_reward": "average reward", "success_rate": "success rate"}


class SettingPair(NamedTuple):
    """A setting in both results; None: not stated."""

    name: str
    a: Scalar
    b: Scalar

    @property
    def stated(self) -> bool:
        """Whether both results state it."""
        return self.a is not None and self.b is not None

    def row(self) -> list[str]:
        """The setting in both results, and a remark."""
        remark = "unknown" if not self.stated else "the model's sampling" if self.name in SAMPLING else "differs"
        return [
            self.name,
            *("not stated" if value is None else escaping.line(str(value)) for value in (self.a, self.b)),
            remark,
        ]


class EstimatedDifference(Record):
    """Second minus first in [-1, 1], with its 95 % interval.

    `paired`: over the same tasks. `bound`: a deviation is not stated, so the interval is the widest possible one.
    `detectable`: the smallest difference with 80 % power at level 5 %; null without an error.
    """

    quantity: Quantity
    value: float
    low: float
    high: float
    detectable: float | None
    paired: bool
    bound: bool = False

    def sentence(self) -> str:
        """The difference and its interval, and the smallest difference that could be seen, in points."""
        points = f"{LABELS[self.quantity]}: {100 * self.value:+.1f} points"
        span = f"{points} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        if self.detectable:
            how = "paired by task" if self.paired else "not paired"
            bound = "; a deviation is not stated, so the largest possible one is used" if self.bound else ""
            return (
                f"{span} ({how}{bound}); smallest difference that could be seen (80 % power at level 5 %): "
                f"{100 * self.detectable:.1f} points."
            )
        if self.paired and not self.value:
            return f"{LABELS[self.quantity]}: no task differs; this shows nothing about other tasks."
        if self.paired:
            return f"{points}; all tasks differ equally, so no error can be estimated."
        return f"{span} (not paired)." if self.low < self.high else f"{points}; no error can be estimated."


class Comparison(Record):
    """Two results on one split: whether they are comparable (null: unknown), the settings that differ, differences.

    A setting has its name and both values, null if it is not stated.
    """

    first: str
    second: str
    split: str
    comparable: bool | None
    settings: tuple[tuple[str, Scalar, Scalar], ...]
    differences: tuple[EstimatedDifference, ...]


def comparisons(results: Sequence[EvaluationResult]) -> Iterator[Comparison]:
    """The first result with each other one, by split."""
    first, *others = results
    for other in others:
        for split in sorted({*first.splits, *other.splits}):
            names = {"first": first.label, "second": other.label, "split": split}
            if split not in first.splits or split not in other.splits:
                yield Comparison(**names, comparable=False, settings=(), differences=())
                continue
            pairs = setting_pairs(first, other, split)
            measured = tuple(differences(first.splits[split], other.splits[split]))
            yield Comparison(**names, comparable=_comparable(pairs), settings=tuple(pairs), differences=measured)


def compare(results: Sequence[EvaluationResult]) -> Iterator[str]:
    """Lines: for each result whether it is comparable with the first, every differing setting; numbers; differences."""
    first, *others = results
    for other in others:
        for split in sorted({*first.splits, *other.splits}):
            yield from _comparability(first, other, split)
    yield evaluation_result.table(results)
    for each in comparisons(results):
        if each.differences:
            yield f"\n{each.second} minus {each.first}, {each.split}:"
            yield from (f"* {difference.sentence()}" for difference in each.differences)
    yield (
        "\nIntervals are over tasks, at 95 %. Each result is of one set of weights: another training of the same "
        "method may differ by more."
    )


def require_same_protocol(results: Sequence[EvaluationResult]) -> None:
    """Raises `UserError` if two results state different protocols: their numbers are no column of a table."""
    stated = {
        str(value): result.label
        for result in results
        for name, value in result.settings.items()
        if name == "protocol" and value is not None
    }
    if len(stated) > 1:
        listed = " and ".join(f"`{escaping.line(name)}` ({label})" for name, label in stated.items())
        raise UserError(f"two protocols, {listed}, are no column of one table; compare the results of one.")


def setting_pairs(a: EvaluationResult, b: EvaluationResult, split: str) -> list[SettingPair]:
    """The settings of a split that differ, and not in type alone, or that only one result states and not as null."""
    settings_a, settings_b = (_settings(result, split) for result in (a, b))
    names = dict.fromkeys([*SETTINGS, *settings_a, *settings_b])
    pairs = [SettingPair(name, settings_a.get(name), settings_b.get(name)) for name in names]
    differing = [pair for pair in pairs if pair.a != pair.b and str(pair.a) != str(pair.b)]
    return [pair for pair in differing if {pair.a, pair.b} != {NULL, None}]


def differences(a: SplitResult, b: SplitResult) -> Iterator[EstimatedDifference]:
    """The differences of what both state."""
    by_task = {value.task_id: value for value in a.values}
    paired = [(by_task[value.task_id], value) for value in b.values if value.task_id in by_task]
    if len(paired) > 1 and len(paired) == len(a.values) == len(b.values):
        rewards = [y.reward - x.reward for x, y in paired]
        successes = [float(y.success) - float(x.success) for x, y in paired]
        by_quantity: dict[Quantity, list[float]] = {"mean_reward": rewards, "success_rate": successes}
        for quantity, values in by_quantity.items():
            of_tasks = estimation.estimate([np.array([values]).T], len(values), CONFIDENCE)
            yield _difference(quantity, of_tasks.mean, (of_tasks.high - of_tasks.low) / (2 * NORMAL), paired=True)
        return
    if a.mean_reward is not None and b.mean_reward is not None:
        bound = None in (a.reward_deviation, b.reward_deviation)
        error = math.hypot(_error(a), _error(b))
        yield _difference("mean_reward", b.mean_reward - a.mean_reward, error, paired=False, bound=bound)
    if a.success_rate is not None and b.success_rate is not None:
        counts = a.success_rate * a.tasks, a.tasks, b.success_rate * b.tasks, b.tasks
        of_rates = _difference("success_rate", b.success_rate - a.success_rate, stats.pooled_error(*counts), False)
        low, high = stats.newcombe(*counts)
        yield of_rates.model_copy(update={"low": low, "high": high})


def _difference(
    quantity: Quantity, value: float, error: float, paired: bool, bound: bool = False
) -> EstimatedDifference:
    """A difference with the interval of a normal distribution with this standard error."""
    ends = {"low": value - NORMAL * error, "high": value + NORMAL * error}
    detectable = (NORMAL + NormalDist().inv_cdf(estimation.POWER)) * error or None
    return EstimatedDifference(
        quantity=quantity, value=value, **ends, detectable=detectable, paired=paired, bound=bound
    )


def _comparability(a: EvaluationResult, b: EvaluationResult, split: str) -> Iterator[str]:
    names = f"{a.label} and {b.label}, {split}"
    if missing := [result.label for result in (a, b) if split not in result.splits]:
        yield f"{names}: NOT comparable, {missing[0]} has no result on split `{split}`.\n"
        return
    pairs = setting_pairs(a, b, split)
    deciding = [pair for pair in pairs if pair.name not in SAMPLING]
    differing, unstated = sum(pair.stated for pair in deciding), sum(not pair.stated for pair in deciding)
    verdict = f"comparable: every setting of the evaluation is the same{_weights(a, b)}."
    if differing:
        verdict = f"NOT comparable (settings that differ: {differing}; not stated by both: {unstated})."
    elif unstated:
        verdict = f"comparability is unknown (settings not stated by both: {unstated})."
    yield f"{names}: {verdict}\n"
    for title, shown in (("setting", pairs), ("training", training_pairs(a, b))):
        if shown:
            head, rows = [title, a.label, b.label, ""], [pair.row() for pair in shown]
            yield tabulate(rows, headers=head, tablefmt="github", disable_numparse=True) + "\n"


def training_pairs(a: EvaluationResult, b: EvaluationResult) -> list[SettingPair]:
    """What differs between the trainings of the weights, as far as both state it."""
    if not (a.training and b.training):
        return []
    names = dict.fromkeys([*a.training, *b.training])
    pairs = [SettingPair(name, a.training.get(name), b.training.get(name)) for name in names]
    return [pair for pair in pairs if pair.a != pair.b]


def _weights(a: EvaluationResult, b: EvaluationResult) -> str:
    """Whether both are of the same weights, as far as both state them."""
    if a.model is None or b.model is None:
        return ""
    if a.model.sha256 == b.model.sha256:
        return "; both are of the same weights"
    return f"; the weights differ (sha256 {a.model.sha256[:8]} and {b.model.sha256[:8]})"


def _comparable(pairs: Sequence[SettingPair]) -> bool | None:
    """Whether results with these differing settings are comparable; None if a setting is not stated by both."""
    deciding = [pair.stated for pair in pairs if pair.name not in SAMPLING]
    return False if any(deciding) else None if deciding else True


def _settings(result: EvaluationResult, split: str) -> dict[str, Scalar]:
    """The settings of a result on a split, with the number of its tasks; null values as text."""
    of_split = result.splits[split]
    stated = {**result.settings, **of_split.settings}
    return {"tasks": of_split.tasks} | {name: NULL if value is None else value for name, value in stated.items()}


def _error(split: SplitResult) -> float:
    """Standard error of the mean reward; without a deviation that of rewards which are all 0 or 1."""
    mean = min(1.0, max(0.0, split.mean_reward or 0.0))
    deviation = split.reward_deviation
    return (math.sqrt(mean * (1 - mean)) if deviation is None else deviation) / math.sqrt(split.tasks)
