"""What a run will be able to decide, before it is paid for: expected widths of intervals, power, and seeds needed.

The noise is that of our own suites: standard deviations of one task, which the number of tasks makes smaller
(`configs/noise.yaml`). It was measured with a policy of 0.7 million parameters; a larger one may vary less or more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field
from tabulate import tabulate

from coevolve.config.sections import Strict
from coevolve.config.suite import Suite
from coevolve.config.validation import validated
from coevolve.config.yaml_files import read_yaml
from coevolve.report import claims as paper
from coevolve.report import stats
from coevolve.report.claims import Claim, Claims
from coevolve.report.number_text import readable
from coevolve.report.verdicts import HALF_WIDTH, POWER

#: The name of the jobs that methods share (`coevolve.follow.estimates`).
SHARED = "shared"


class Noise(Strict):
    """Standard deviations x sqrt(tasks), in points: of one run's mean, and of a paired difference of two methods.

    That of a difference has a part of trainings, with what is left of task and seed, and a part of tasks.
    """

    run: float = Field(gt=0.0)
    trainings: float = Field(gt=0.0)
    tasks: float = Field(ge=0.0)


@dataclass(frozen=True)
class ExpectedTest:
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
            return stats.half_width(0.0, self.of_seeds * (seeds + 1), seeds, confidence)
        return stats.half_width(self.of_tasks, self.of_seeds, seeds, confidence)

    def power(self, seeds: int, confidence: float) -> float:
        """The probability of a decision, if the paper's numbers are the truth (noncentral Student's distribution)."""
        from scipy.stats import nct

        if seeds < stats.MIN_SEEDS:
            return 0.0
        error = math.sqrt(self.of_seeds * (1 + 1 / seeds) if self.single_run else self.of_tasks + self.of_seeds / seeds)
        limit, distance = self.half_width(seeds, confidence) / error, self.gap / error
        return float(nct.sf(limit, seeds - 1, distance))

    def seeds_needed(self, confidence: float) -> int | None:
        """Seeds that decide with the power `POWER`; None: no number of them."""
        return next((s for s in range(stats.MIN_SEEDS, 200) if self.power(s, confidence) >= POWER), None)


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


def hours_of(claim: Claim, hours: Mapping[str, float]) -> float:
    """GPU-hours of a claim's methods and of the jobs that methods share, for all seeds of the plan."""
    methods = claim.methods or {getattr(claim, "row", "")}
    return sum(hours.get(method, 0.0) for method in (SHARED, *methods))


def table(claims: Claims, suite: Suite, noise: Noise, seeds: Sequence[int], hours: Mapping[str, float]) -> str:
    """The claims about the suite's model: power by number of seeds; `hours`: GPU-hours of one seed by method."""
    confidence = suite.report.confidence
    head = ["claim", "told apart, points", *(f"+-, {n} seeds" for n in seeds if n >= stats.MIN_SEEDS)]
    head += [*(f"decided, {n}" for n in seeds), f"seeds for {POWER:.0%}", *(["GPU-hours a seed"] if hours else [])]
    rows, left, unknown = [], dict[str, list[str]](), list[str]()
    for name, claim in claims.by_name().items():
        if (claim.model or claims.model) not in _labels(suite):
            left.setdefault(f"not of this suite: about {claim.model or claims.model}", []).append(name)
        elif reason := out_of_reach(claims, claim, suite):
            left.setdefault(reason, []).append(name)
        elif takes := expected(claims, claim, noise):
            needed = takes.seeds_needed(confidence)
            widths = [f"{takes.half_width(n, confidence):.1f}" for n in seeds if n >= stats.MIN_SEEDS]
            powers = [f"{takes.power(n, confidence):.0%}" for n in seeds]
            gpu = [readable(hours_of(claim, hours))] if hours else []
            rows.append([name, f"{takes.gap:.1f}", *widths, *powers, needed or "none", *gpu])
        else:
            unknown.append(name)
    parts = [tabulate(rows, head, "github", disable_numparse=True)] if rows else []
    parts += [f"Out of reach ({len(names)}), {reason}: {', '.join(names)}." for reason, names in left.items()]
    parts += [f"No distance is printed ({len(unknown)}): {', '.join(unknown)}."] if unknown else []
    return "\n\n".join(parts)


def differences(suite: Suite, noise: Noise, hours: float | None) -> str:
    """The expected width of a difference of two of the suite's methods, by environment."""
    seeds, confidence, rows = len(suite.seeds), suite.report.confidence, []
    pairs = math.comb(len(suite.methods), 2)
    for env in suite.envs.values():
        tasks = env.expected.evaluate if env.expected else 1
        spread = ExpectedTest(HALF_WIDTH, noise.tasks**2 / tasks, noise.trainings**2 / tasks, single_run=False)
        width = f"{spread.half_width(seeds, confidence):.1f}" if seeds >= stats.MIN_SEEDS else "not known"
        rows.append([env.label, tasks, seeds, width, spread.seeds_needed(confidence) or "none"])
    head = ["environment", "tasks", "seeds", "+- points", f"seeds to see {HALF_WIDTH:g} points in {POWER:.0%}"]
    each = f", {readable(hours)} GPU-hours a seed" if hours else ""
    return f"{pairs} differences of {len(suite.methods)} methods{each}:\n\n{tabulate(rows, head, 'github')}"


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
