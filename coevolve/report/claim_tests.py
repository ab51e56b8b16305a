"""What a claim asks of our results: the numbers it is about, and where they must lie for it to be true.

A claim is about a model, upstream's protocol, the paper's environments and all its instructions. Results of anything
else do not judge it; `as_if` judges what is about an order (not about a size) on whatever was measured.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coevolve import seeds as seeds_of
from coevolve.errors import UserError
from coevolve.report import claims as paper
from coevolve.report import exploration, figure2, stats
from coevolve.report.claims import Claims
from coevolve.report.exploration import Exploration
from coevolve.report.measurement import Measurement, environments

#: Weights by (row, column), such as {(ours, mean): 1, (ETO, mean): -1}.
Terms = Mapping[tuple[str, str], float]
#: What an answering environment's name holds if it is none of the paper's.
MARK = "non-comparable"
KINDS_OF_ORDER = ("ordering", "largest_gain", "failures")


@dataclass(frozen=True)
class Question:
    """A claim is true if every one of `spreads` is of a number between `low` and `high`, in points or per cent.

    `missing` says in a sentence why there is nothing to judge it by, `says` is the paper's sentence, `caution` what to
    know beside the verdict. `cell`: row and column, where it is a cell of the table. `sized`: the claim names a size,
    so its range includes its ends, and it is about the very instructions that the paper used; an order is about any.
    `unverified`: the sentence was read in a secondary source alone.
    """

    claim: str
    kind: str
    place: str
    says: str
    low: float
    high: float
    spreads: tuple[stats.Spread, ...] = ()
    missing: str = ""
    caution: str = ""
    cell: tuple[str, str] | None = None
    sized: bool = False
    unverified: bool = False


@dataclass(frozen=True)
class Results:
    """All that was measured: evaluations of all iterations, and explorations."""

    measurements: tuple[Measurement, ...]
    explorations: tuple[Exploration, ...]


def questions(claims: Claims, results: Results, *, resamples: int, seed: int, as_if: bool) -> list[Question]:
    """Every claim's question: the cells row by row, then the statements."""
    asked = list(_questions(claims))
    return [_answered(claims, results, question, statement, resamples, seed, as_if) for question, statement in asked]


def _questions(claims: Claims) -> Iterator[tuple[Question, paper.Claim | paper.AnyStatement]]:
    for cell in claims.cells():
        low, high = cell.value - claims.tolerance, cell.value + claims.tolerance
        says = f"average reward {cell.value:g}"
        name, key = f"{cell.row}_{cell.column}", (cell.row, cell.column)
        yield Question(name, "cell", cell.place, says, low, high, cell=key, sized=True), cell
    for name, said in claims.statements.items():
        low, high = 0.0, math.inf
        if isinstance(said, paper.Difference | paper.Share):
            low, high = said.value - said.tolerance, said.value + said.tolerance
        if isinstance(said, paper.Share):  # a share has ends of its own
            low, high = (-math.inf if low <= 0.0 else low), (math.inf if high >= 100.0 else high)
        sized = isinstance(said, paper.Difference | paper.Share)
        yield (
            Question(
                name,
                said.kind,
                said.place,
                said.text,
                low,
                high,
                caution=said.caution,
                sized=sized,
                unverified=said.unverified,
            ),
            said,
        )


def _answered(
    claims: Claims,
    results: Results,
    question: Question,
    said: paper.Claim | paper.AnyStatement,
    resamples: int,
    seed: int,
    as_if: bool,
) -> Question:
    """The question with its numbers, or with why there are none."""
    rng = seeds_of.generator(seed, "verify", question.claim)
    asking = _Asking(claims, results, _model(claims, said), resamples, rng, question.sized)
    try:
        if as_if and (question.kind not in KINDS_OF_ORDER or asking.model != claims.model):
            raise UserError(f"as if: only the orders that the paper states of {claims.model} are judged.")
        found = tuple(_spreads(asking, said, as_if))
    except UserError as reason:
        return Question(**{**vars(question), "missing": str(reason)})
    return Question(**{**vars(question), "spreads": found})


def _model(claims: Claims, said: paper.Claim | paper.AnyStatement) -> str:
    if isinstance(said, paper.Claim):
        return (claims.rows | claims.ablations)[said.row].model or claims.model
    return said.model or claims.model


def _spreads(asking: _Asking, said: paper.Claim | paper.AnyStatement, as_if: bool) -> Iterator[stats.Spread]:
    match said:
        case paper.Claim():
            yield asking.contrast({(said.row, said.column): 1.0}, as_if)
        case paper.Ordering():
            yield asking.contrast(_gain(said.better, said.than, said.column), as_if, said.iteration)
        case paper.Difference():
            yield asking.contrast(_gain(said.better, said.than, said.column), as_if)
        case paper.LargestGain():
            for other in said.among:
                less = {key: -weight for key, weight in _gain(said.better, said.than, other).items()}
                yield asking.contrast(_gain(said.better, said.than, said.column) | less, as_if)
        case paper.Share():
            yield asking.share(said, as_if)
        case paper.Failures():
            yield asking.failures(said, as_if)


def _gain(better: str, than: str, column: str) -> dict[tuple[str, str], float]:
    return {(better, column): 1.0, (than, column): -1.0}


@dataclass(frozen=True)
class _Asking:
    """One claim at the results; `model` is the one that it is about, `fixed_tasks` whether tasks vary."""

    claims: Claims
    results: Results
    model: str
    resamples: int
    rng: np.random.Generator
    fixed_tasks: bool

    def contrast(self, terms: Terms, as_if: bool, iteration: int | None = None) -> stats.Spread:
        """The weighted sum of cells in points, paired by task and seed; raises `UserError`."""
        weights = defaultdict[str, defaultdict[str, float]](lambda: defaultdict(float))
        for (row, column), weight in terms.items():
            parts = self.claims.parts(column)
            for part in parts:
                weights[part][row] += weight / len(parts)
        found = {part: {row: self._measured(row, part, iteration) for row in rows} for part, rows in weights.items()}
        if not as_if:
            self._fits(reason for part, rows in found.items() for m in rows.values() for reason in self._unfit(m, part))
        seeds = sorted(_shared({r.seed for r in m.records} for of_part in found.values() for m in of_part.values()))
        groups = [_weighted(found[part], weights[part], seeds) for part in found]
        return self._spread(groups)

    def share(self, said: paper.Share, as_if: bool) -> stats.Spread:
        """Per cent of a method's explorations that end so; raises `UserError`."""
        own = self._explored(said.env, [said.method], as_if)
        measure = exploration.is_outcome(said.outcome, said.threshold)
        values = [(task, seed, 100.0 * value) for task, seed, value in exploration.points(own, measure)]
        values_ts = stats.matrix(values, exploration.tasks(own), exploration.seeds(own))
        return self._spread([values_ts])

    def failures(self, said: paper.Failures, as_if: bool) -> stats.Spread:
        """A quantity of Figure 2, better minus worse; raises `UserError`."""
        own = self._explored(said.env, [said.better, said.than], as_if)
        return figure2.difference(
            own, said.quantity, said.env, said.better, said.than, resamples=self.resamples, rng=self.rng
        )

    def _spread(self, groups: Sequence[stats.Matrix]) -> stats.Spread:
        return stats.spread(groups, resamples=self.resamples, rng=self.rng, fixed_tasks=self.fixed_tasks)

    def _measured(self, row: str, column: str, iteration: int | None) -> Measurement:
        """The measurement of a cell after the last iteration, or after `iteration` (fewer, if the method has fewer)."""
        spec = self.claims.columns[column]
        own = [m for m in self.results.measurements if (m.method, m.env, m.split) == (row, spec.env, spec.split)]
        asked = [m for m in own if m.records and (iteration is None or m.iteration <= iteration)]
        if not asked:
            raise UserError(f"`{row}` was not evaluated on {spec.label}.")
        return max(asked, key=lambda m: m.iteration)

    def _explored(self, env: str, methods: Sequence[str], as_if: bool) -> list[Exploration]:
        own = [exploration.of(self.results.explorations, method, env) for method in methods]
        for method, explored in zip(methods, own, strict=True):
            if not explored:
                raise UserError(f"`{method}` did not explore {env}.")
            if not as_if:
                episodes = [episode for one in explored for episode in one.episodes]
                answered = {episode.environment for episode in episodes}
                count, asked = len(exploration.tasks(explored)), self.claims.explored.get(env)
                self._fits([*self._differences(explored[0], answered), *_fewer(count, asked, env)])
        return [one for explored in own for one in explored]

    def _unfit(self, measurement: Measurement, column: str) -> Iterator[str]:
        yield from self._differences(measurement, environments([measurement]))
        count, spec = len({record.task_id for record in measurement.records}), self.claims.columns[column]
        yield from _fewer(count, spec.tasks, spec.label)

    def _differences(self, one: Measurement | Exploration, answered: Iterable[str]) -> Iterator[str]:
        if one.model != self.model:
            yield f"model {one.model}, not {self.model}"
        if one.protocol != self.claims.protocol:
            yield f"protocol {one.protocol}, not {self.claims.protocol}"
        if one.note:
            yield one.note.rstrip(".")
        elif any(MARK in name for name in answered):
            yield f"{one.env} answered by an environment marked {MARK}"

    def _fits(self, reasons: Iterable[str]) -> None:
        """Raise `UserError` with all reasons, each once, if there are any."""
        given = list(dict.fromkeys(reasons))
        if given:
            raise UserError(f"not about the claim: {'; '.join(given)}.")


def _fewer(count: int, asked: int | None, where: str) -> Iterator[str]:
    if asked is not None and count < asked:
        yield f"{count} of the paper's {asked} instructions on {where}"


def _weighted(measured: Mapping[str, Measurement], weights: Mapping[str, float], seeds: Sequence[int]) -> stats.Matrix:
    """Rewards x 100 of several methods on the tasks that all of them have, weighted and summed."""
    points = {row: stats.points(m.records) for row, m in measured.items()}
    tasks = sorted(_shared({task for task, _, _ in of_row} for of_row in points.values()), key=str)
    if not tasks or not seeds:
        raise UserError(f"{' and '.join(measured)} have no instruction, or no seed, in common.")
    values_ts = np.zeros((len(tasks), len(seeds)))
    for row, of_row in points.items():
        values_ts += 100.0 * weights[row] * stats.matrix(of_row, tasks, seeds)
    return values_ts


def _shared(sets: Iterable[set]) -> set:  # type: ignore[type-arg]
    return set.intersection(*sets)
