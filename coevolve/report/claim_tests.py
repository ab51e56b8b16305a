"""The test of each claim: the estimates it is about.

A claim is about a model, upstream's protocol, the paper's environments and all its instructions. Other results do not
test it, except with `miniature`, which tests claims about an order (not about a size) on all results.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coevolve.errors import UserError
from coevolve.records.tables import Estimate
from coevolve.report import claims as paper
from coevolve.report import estimation, exploration, figure2
from coevolve.report.claims import Claim, Claims
from coevolve.report.estimation import Matrix
from coevolve.report.exploration import Exploration
from coevolve.report.measurement import Measurement, environments

#: Weights by (row, column), such as {(ours, mean): 1, (ETO, mean): -1}.
Terms = dict[tuple[str, str], float]
#: Part of the name of an environment that is not the paper's.
MARK = "non-comparable"


@dataclass(frozen=True)
class ClaimTest:
    """A claim and the estimates of its numbers, in points, per cent or failures; `missing`: why there are none."""

    name: str
    claim: Claim
    estimates: tuple[Estimate, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class Results:
    """All evaluations and explorations; `unfinished`: why a begun method has none, by method and environment."""

    measurements: tuple[Measurement, ...]
    explorations: tuple[Exploration, ...]
    unfinished: Mapping[tuple[str, str], str] = field(default_factory=dict)


def prepare(claims: Claims, results: Results, confidence: float, *, miniature: bool = False) -> list[ClaimTest]:
    """The test of every claim: the cells row by row, then the statements; with estimates, or the reason for none."""
    tests = []
    for name, claim in claims.by_name().items():
        estimator = _Estimator(claims, results, claim, confidence, miniature)
        try:
            tests.append(ClaimTest(name, claim, tuple(estimator.estimates())))
        except UserError as reason:
            tests.append(ClaimTest(name, claim, missing=str(reason)))
    return tests


def _gain(better: str, than: str, column: str) -> Terms:
    return {(better, column): 1.0, (than, column): -1.0}


@dataclass(frozen=True)
class _Estimator:
    """Estimates for one claim; unless `miniature`, results that are not about it are refused with `UserError`."""

    claims: Claims
    results: Results
    claim: Claim
    confidence: float
    miniature: bool

    @property
    def model(self) -> str:
        """The model that the claim is about."""
        return self.claim.model or self.claims.model

    def estimates(self) -> Iterator[Estimate]:
        """The numbers of the claim; raises `UserError` with the reason if there are none."""
        if self.miniature and (isinstance(self.claim, paper.SizeClaim) or self.model != self.claims.model):
            raise UserError(f"in a miniature only the paper's orders for {self.claims.model} are tested.")
        match self.claim:
            case paper.CellClaim(row=row, column=column):
                yield self.contrast({(row, column): 1.0})
            case paper.OrderingClaim(better=better, than=than, column=column, iteration=iteration):
                yield self.contrast(_gain(better, than, column), iteration)
            case paper.DifferenceClaim(better=better, than=than, column=column):
                yield self.contrast(_gain(better, than, column))
            case paper.LargestGainClaim(better=better, than=than, column=column, among=among):
                for other in among:
                    less = {key: -weight for key, weight in _gain(better, than, other).items()}
                    yield self.contrast(_gain(better, than, column) | less)
            case paper.ShareClaim(method=method):
                yield self._estimate([self.share(self.claim, method)])
            case paper.ShareDifferenceClaim(better=better, than=than):
                yield self._estimate([self.share(self.claim, better, than) - self.share(self.claim, than, better)])
            case paper.FailuresClaim():
                yield self.failures(self.claim)

    def contrast(self, terms: Terms, iteration: int | None = None) -> Estimate:
        """The weighted sum of cells in points, paired by task and seed; raises `UserError`."""
        weights = defaultdict[str, defaultdict[str, float]](lambda: defaultdict(float))
        for (row, column), weight in terms.items():
            parts = self.claims.parts(column)
            for part in parts:
                weights[part][row] += weight / len(parts)
        cells = {part: {row: self._measured(row, part, iteration) for row in rows} for part, rows in weights.items()}
        self._require(
            reason for part, rows in cells.items() for m in rows.values() for reason in self._mismatches(m, part)
        )
        seeds = set.intersection(*({r.seed for r in m.records} for rows in cells.values() for m in rows.values()))
        return self._estimate([_weighted(cells[part], weights[part], sorted(seeds)) for part in cells])

    def share(self, claim: paper.ShareClaim | paper.ShareDifferenceClaim, method: str, *others: str) -> Matrix:
        """Per cent of a method's explorations with this outcome, by task and seed; raises `UserError`.

        Tasks and seeds are those that the `others` have, too.
        """
        by_method = [self._explored(claim.env, [name]) for name in (method, *others)]
        tasks, seeds = (
            sorted(set.intersection(*({*names(explored)} for explored in by_method)))
            for names in (exploration.tasks, exploration.seeds)
        )
        values = [
            (episode.task_id, each.seed, 100.0 * (claim.outcome in exploration.outcomes(episode, claim.threshold)))
            for each in by_method[0]
            for episode in each.episodes
        ]
        return estimation.matrix(values, tasks, seeds)

    def failures(self, claim: paper.FailuresClaim) -> Estimate:
        """A quantity of Figure 2, `better` minus `than`; raises `UserError`."""
        explorations = self._explored(claim.env, [claim.better, claim.than])
        of_claim = claim.quantity, claim.env, claim.better, claim.than
        return figure2.difference(explorations, *of_claim, self.confidence)

    def _estimate(self, groups: Sequence[Matrix]) -> Estimate:
        sized = isinstance(self.claim, paper.SizeClaim)
        return estimation.estimate(groups, sum(map(np.size, groups)), self.confidence, fixed_tasks=sized)

    def _measured(self, row: str, column: str, iteration: int | None) -> Measurement:
        """The measurement of a cell after the last iteration, or after `iteration` (fewer, if the method has fewer)."""
        spec = self.claims.columns[column]
        of_cell = [m for m in self.results.measurements if (m.method, m.env, m.split) == (row, spec.env, spec.split)]
        evaluated = [m for m in of_cell if m.records and (iteration is None or m.iteration <= iteration)]
        if not evaluated:
            reason = self.results.unfinished.get((row, spec.env or ""))
            raise UserError(reason or f"`{row}` was not evaluated on {spec.label}.")
        return max(evaluated, key=lambda m: m.iteration)

    def _explored(self, env: str, methods: Sequence[str]) -> list[Exploration]:
        by_method = {method: exploration.of(self.results.explorations, method, env) for method in methods}
        for method, explored in by_method.items():
            if not explored:
                reason = self.results.unfinished.get((method, env))
                raise UserError(reason or f"`{method}` did not explore {env}.")
            names = {episode.environment for each in explored for episode in each.episodes}
            count, expected = len(exploration.tasks(explored)), self.claims.explored.get(env)
            self._require([*self._differences(explored[0], names), *_fewer(count, expected, env)])
        return [each for explored in by_method.values() for each in explored]

    def _mismatches(self, measurement: Measurement, column: str) -> Iterator[str]:
        yield from self._differences(measurement, environments([measurement]))
        count, spec = len({record.task_id for record in measurement.records}), self.claims.columns[column]
        yield from _fewer(count, spec.tasks, spec.label)

    def _differences(self, result: Measurement | Exploration, names: Iterable[str]) -> Iterator[str]:
        if result.model != self.model:
            yield f"model {result.model}, not {self.model}"
        if result.protocol != self.claims.protocol:
            yield f"protocol {result.protocol}, not {self.claims.protocol}"
        if result.note:
            yield result.note.rstrip(".")
        elif any(MARK in name for name in names):
            yield f"{result.env} ran in an environment marked {MARK}"

    def _require(self, reasons: Iterable[str]) -> None:
        """Raise `UserError` with all `reasons` against a test, each once, if there are any and they count."""
        unique = [] if self.miniature else list(dict.fromkeys(reasons))
        if unique:
            raise UserError(f"not about the claim: {'; '.join(unique)}.")


def _fewer(count: int, expected: int | None, where: str) -> Iterator[str]:
    if expected is not None and count < expected:
        yield f"{count} of the paper's {expected} instructions on {where}"


def _weighted(measured: Mapping[str, Measurement], weights: Mapping[str, float], seeds: Sequence[int]) -> Matrix:
    """Rewards x 100 of several methods on the tasks that all of them have, weighted and summed."""
    points = {row: estimation.points(m.records) for row, m in measured.items()}
    tasks = sorted(set.intersection(*({task for task, _, _ in of_row} for of_row in points.values())), key=str)
    if not tasks or not seeds:
        raise UserError(f"{' and '.join(measured)} have no instruction, or no seed, in common.")
    values_ts = np.zeros((len(tasks), len(seeds)))
    for row, of_row in points.items():
        values_ts += 100.0 * weights[row] * estimation.matrix(of_row, tasks, seeds)
    return values_ts
