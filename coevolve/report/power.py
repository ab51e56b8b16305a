"""What a run will be able to decide, before it is paid for: expected widths of intervals, power, and seeds needed.

The noise is that of our own suites: standard deviations of one task, which the number of tasks makes smaller
(`configs/noise.yaml`). It was measured with a policy of 0.7 million parameters; a larger one may vary less or more.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import Field
from tabulate import tabulate

from coevolve.config.suite import Suite
from coevolve.records.base import Record
from coevolve.report import claims as paper
from coevolve.report import estimation
from coevolve.report.claims import Claim, Claims
from coevolve.report.estimation import POWER
from coevolve.report.number_text import readable
from coevolve.settings.section import Strict
from coevolve.settings.validation import validated
from coevolve.settings.yaml_files import read_yaml


class Noise(Strict):
    """Standard deviations x sqrt(tasks), in points: of one run's mean, and of a paired difference of two methods.

    That of a difference has a part of trainings, with what is left of task and seed, and a part of tasks.
    """

    run: float = Field(gt=0.0)
    trainings: float = Field(gt=0.0)
    tasks: float = Field(ge=0.0)


#: A difference, in points, that a suite should see.
GAP = 3.0


class ExpectedTest(NamedTuple):
    """What a claim takes: the distance of the two numbers that are told apart, and the spread of what is measured.

    `single_run`: the paper's number is compared with one run, else a mean difference with 0.
    """

    gap: float
    of_tasks: float
    of_seeds: float
    single_run: bool

    def half_width(self, seeds: int, confidence: float) -> float:
        """Half of the expected interval."""
        if self.single_run:
            return estimation.single_run_width(self.of_seeds, seeds, confidence)
        return estimation.half_width(self.of_tasks, self.of_seeds, seeds, confidence)

    def power(self, seeds: int, confidence: float) -> float:
        """The probability of a decision, if the paper's numbers are the truth."""
        if self.single_run:
            return estimation.single_run_power(self.gap, self.of_seeds, seeds, confidence)
        return estimation.power(self.gap, self.of_tasks, self.of_seeds, seeds, confidence)

    def seeds_needed(self, confidence: float) -> int | None:
        """Seeds that decide with the power `POWER`; None: no number of them."""
        return estimation.seeds_needed(lambda seeds: self.power(seeds, confidence))


class ClaimPower(Record):
    """What is expected of a claim: by number of seeds half of its interval in points and the power to decide it.

    `gap`: the points that are told apart. `seeds_needed` is null if 200 seeds do not decide it with 80 % power,
    `gpu_hours` (of one seed) if the machine is not known.
    """

    claim: str
    gap: float
    half_widths: dict[int, float]
    power: dict[int, float]
    seeds_needed: int | None
    gpu_hours: float | None


class DifferencePower(Record):
    """What is expected of a difference of two methods on the `tasks` of an environment, in points.

    `half_width` is null for one seed. `seeds_needed`: to see 3 points in 80 % of runs, null if none suffice.
    """

    env: str
    tasks: int
    seeds: int
    half_width: float | None
    seeds_needed: int | None


class Expectations(Record):
    """What a suite is expected to decide: its claims, those `out_of_reach` by reason, those without a distance.

    `methods`: the number of its methods, `gpu_hours`: of one seed of all, null if the machine is not known.
    """

    suite: str
    confidence: float
    claims: tuple[ClaimPower, ...]
    out_of_reach: dict[str, tuple[str, ...]]
    no_distance: tuple[str, ...]
    methods: int
    differences: tuple[DifferencePower, ...]
    gpu_hours: float | None


def load_noise(path: Path) -> Noise:
    """The noise of a YAML file; raises `UserError` with file and key."""
    return validated(Noise, path, read_yaml(path))


def expected(claims: Claims, claim: Claim, noise: Noise) -> ExpectedTest | None:
    """What a claim about rewards takes; None for one whose distance the paper does not print."""
    match claim:
        case paper.CellClaim(value=value, rival=float(rival), column=column):
            return ExpectedTest(abs(value - rival), 0.0, _over(claims, column, noise.run), single_run=True)
        case paper.DifferenceClaim(value=value, rival=float(rival), column=column):
            return ExpectedTest(abs(value - rival), 0.0, _over(claims, column, noise.trainings), single_run=True)
        case paper.OrderingClaim(better=better, than=than, column=column, iteration=None):
            numbers = [claims.value(row, column) for row in (better, than)]
            if None not in numbers:
                of_tasks, of_seeds = (_over(claims, column, deviation) for deviation in (noise.tasks, noise.trainings))
                return ExpectedTest(
                    abs((numbers[0] or 0.0) - (numbers[1] or 0.0)), of_tasks, of_seeds, single_run=False
                )
    return None


def _over(claims: Claims, column: str, deviation: float) -> float:
    """The variance of a column's mean: of the mean of several columns it is that of their sum over their number."""
    tasks = [claims.columns[part].tasks or 1 for part in claims.parts(column)]
    return deviation**2 * sum(1 / count for count in tasks) / len(tasks) ** 2


def out_of_reach(claims: Claims, claim: Claim, suite: Suite) -> str:
    """Why no run of the suite can judge a claim, in words; empty if one can."""
    parts = [part for column in claim.columns + _column(claim) for part in claims.parts(column)]
    envs = {*(claims.columns[part].env or "" for part in parts), getattr(claim, "env", "")} - {""}
    if absent := sorted(envs - suite.envs.keys()):
        return f"the suite has no {absent[0]}"
    return " ".join(sorted({suite.envs[env].note for env in envs} - {""})).rstrip(".")


def _column(claim: Claim) -> list[str]:
    return [claim.column] if isinstance(claim, paper.CellClaim) else []


def expectations(
    claims: Claims,
    suite: Suite,
    noise: Noise,
    seeds: Sequence[int],
    hours: Callable[[frozenset[str]], float] | None,
) -> Expectations:
    """What the suite's claims and differences take; `hours`: GPU-hours of a seed of some methods (none: of all).

    `hours` is None if the machine is not known.
    """
    confidence = suite.report.confidence
    rows, left, unknown = list[ClaimPower](), dict[str, list[str]](), list[str]()
    for name, claim in claims.by_name().items():
        if (claim.model or claims.model) not in _labels(suite):
            left.setdefault(f"not of this suite: about {claim.model or claims.model}", []).append(name)
        elif reason := out_of_reach(claims, claim, suite):
            left.setdefault(reason, []).append(name)
        elif takes := expected(claims, claim, noise):
            row = ClaimPower(
                claim=name,
                gap=takes.gap,
                half_widths={n: takes.half_width(n, confidence) for n in seeds if n > 1},
                power={n: takes.power(n, confidence) for n in seeds},
                seeds_needed=takes.seeds_needed(confidence),
                gpu_hours=hours(frozenset(claim.methods)) if hours else None,
            )
            rows.append(row)
        else:
            unknown.append(name)
    return Expectations(
        suite=suite.suite,
        confidence=confidence,
        claims=tuple(rows),
        out_of_reach={reason: tuple(names) for reason, names in left.items()},
        no_distance=tuple(unknown),
        methods=len(suite.methods),
        differences=tuple(_differences(suite, noise)),
        gpu_hours=hours(frozenset()) if hours else None,
    )


def _differences(suite: Suite, noise: Noise) -> Iterator[DifferencePower]:
    seeds, confidence = len(suite.seeds), suite.report.confidence
    for env in suite.envs.values():
        tasks = env.expected.evaluate if env.expected else 1
        spread = ExpectedTest(GAP, noise.tasks**2 / tasks, noise.trainings**2 / tasks, single_run=False)
        yield DifferencePower(
            env=env.label,
            tasks=tasks,
            seeds=seeds,
            half_width=spread.half_width(seeds, confidence) if seeds > 1 else None,
            seeds_needed=spread.seeds_needed(confidence),
        )


def text(outlook: Expectations) -> str:
    """The expectations as tables in Markdown."""
    pairs, hours = math.comb(outlook.methods, 2), outlook.gpu_hours
    head = ["environment", "tasks", "seeds", "+- points", f"seeds to see {GAP:g} points in {POWER:.0%}"]
    rows = [
        (
            each.env,
            each.tasks,
            each.seeds,
            "not known" if each.half_width is None else f"{each.half_width:.1f}",
            each.seeds_needed or "none",
        )
        for each in outlook.differences
    ]
    title = f"{pairs} differences of {outlook.methods} methods"
    title += f", {readable(hours)} GPU-hours a seed" if hours else ""
    return f"{claims_text(outlook)}\n\n{title}:\n\n{tabulate(rows, head, 'github')}"


def claims_text(outlook: Expectations) -> str:
    """The claims as a table in Markdown, and those that are not in it; without a table they are only counted."""
    if not outlook.claims and not outlook.no_distance:
        count = sum(map(len, outlook.out_of_reach.values()))
        return f"None of {count} claims can be judged in this suite; `--json` says why."
    parts = [_claims_table(outlook.claims)] if outlook.claims else []
    parts += [f"Out of reach ({len(names)}), {why}: {', '.join(names)}." for why, names in outlook.out_of_reach.items()]
    if unknown := outlook.no_distance:
        parts.append(f"No distance is printed ({len(unknown)}): {', '.join(unknown)}.")
    return "\n\n".join(parts)


def _claims_table(claims: Sequence[ClaimPower]) -> str:
    first = claims[0]
    head = ["claim", "told apart, points", *(f"+-, {n} seeds" for n in first.half_widths)]
    head += [*(f"decided, {n}" for n in first.power), f"seeds for {POWER:.0%}"]
    head += [] if first.gpu_hours is None else ["GPU-hours a seed"]
    rows = [
        [
            each.claim,
            f"{each.gap:.1f}",
            *(f"{width:.1f}" for width in each.half_widths.values()),
            *(f"{power:.0%}" for power in each.power.values()),
            each.seeds_needed or "none",
            *([] if each.gpu_hours is None else [readable(each.gpu_hours)]),
        ]
        for each in claims
    ]
    return tabulate(rows, head, "github", disable_numparse=True)


def line(claims: Claims, suite: Suite, noise: Noise) -> str:
    """What `coevolve power` says of the suite's own number of seeds, in a sentence."""
    command = f"`coevolve power --suite {suite.suite}`"
    about = [claim for claim in claims.by_name().values() if (claim.model or claims.model) in _labels(suite)]
    reached = [claim for claim in about if not out_of_reach(claims, claim, suite)]
    takes = [each for claim in reached if (each := expected(claims, claim, noise))]
    if not takes:
        return f"No claim of the paper is about this suite's model; its differences: {command}."
    seeds = len(suite.seeds)
    decided = sum(each.power(seeds, suite.report.confidence) >= POWER for each in takes)
    return (
        f"With {seeds} seed{'s' * (seeds > 1)}, {decided} of the {len(takes)} claims in reach are expected to be "
        f"decided in {POWER:.0%} of runs: {command}."
    )


def _labels(suite: Suite) -> set[str]:
    return {model.label for model in suite.models.values()}
