"""A verdict on each claim of the paper: reproduced, consistent, contradicted, undecided or not run.

A number of the paper is that of one run. It is reproduced if our mean's interval, over trainings alone, lies within the
tolerance. Else it is compared with the prediction interval of one of our runs: outside, it is contradicted; inside,
it is consistent if that interval excludes the rival's number (`rival` of the claim), and undecided otherwise.

An order (a difference above 0), and a number without a rival, states a range. It has two p-values: that of "it lies
inside", as in a test of equivalence, and that of "it lies outside". Each is twice the one-sided share of draws
(`stats.spread`: paired by task and seed), so a claim is decided at 5 % exactly if its 95 % interval lies inside the
range, or outside. An order that is decided, but not without one of the seeds, is no verdict.

Each claim is judged at 5 % alone, so that five seeds can decide; Holm's p-value over all claims is printed beside it.
With fewer than three training seeds no claim is decided: the variance of trainings is unknown. Claims from a secondary
source (`unverified`) are judged and counted separately.

A suite with a small model has results that are not about the paper's cells. The paper's orders are judged on them too,
apart: "in the miniature" an order holds, does not hold, is carried by one seed, or is undecided.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Literal, NamedTuple, get_args

from pydantic import Field
from tabulate import tabulate

from coevolve.config.models import parameter_count
from coevolve.config.report import ReportConfig
from coevolve.config.suite import Suite
from coevolve.records.base import Record, is_none
from coevolve.report import robustness, stats
from coevolve.report.claim_tests import ClaimTest, Results, prepare
from coevolve.report.claims import CellClaim, Claim, Claims, FailuresClaim, SizeClaim
from coevolve.report.number_text import readable, with_interval
from coevolve.report.table import Footnote, Table
from coevolve.storage import files

Outcome = Literal["reproduced", "consistent", "contradicted", "undecided", "not run"]
Order = Literal["holds", "does not hold", "carried by one seed", "undecided"]
OUTCOMES: tuple[Outcome, ...] = ("reproduced", "consistent", "contradicted", "undecided", "not run")
ALONE = "Each claim is judged at 5 % alone: of 20 that are false or at their limit, about one is decided wrongly."
#: Power of a test with `seeds_needed` seeds, if the true value is the measured one.
POWER = 0.8
AS_IF = "As if: orders are judged on results that are not about the paper's setting. They show what verdicts look like."
SIZES = "reward in points, shares in per cent"
#: A model with fewer parameters is a miniature. choice: all models of the papers have more.
SMALL = 1e9
#: Half of the interval's width, in points, that `InMiniature.seeds_needed` is about.
HALF_WIDTH = 3.0
_IN_MINIATURE: dict[Outcome, Order] = {"reproduced": "holds", "contradicted": "does not hold"}
CARRIED = "Decided, carried by one seed: without it the interval contains 0."
_ABOUT = {
    "reproduced": "has our mean's interval over trainings within its tolerance",
    "consistent": "lies in the interval of one of our runs, which excludes the rival's",
    "contradicted": "lies outside the interval of one of our runs",
}
MINIATURE = (
    "The paper's orders on this suite's own environments, tasks and model: none of them is about a cell of the paper. "
    "An order is decided if its interval over tasks and trainings excludes 0, also without any one of four or more "
    "seeds. Each is judged alone, without a correction for their number. The largest gain compares several "
    "differences: the weakest is shown, and that it does not hold is corrected for their number."
)


class InMiniature(Record):
    """An order of the paper on a suite with a small model: the difference with its interval, and what would decide it.

    `seeds_needed`: seeds with an interval of +-`HALF_WIDTH` in `unit` (points, or failures of one seed), if it is
    undecided; None if no number would do, since the tasks are too few.
    """

    outcome: Order
    text: str
    mean: float
    low: float
    high: float
    unit: Literal["points", "failures"]
    tasks: int
    seeds: int
    seeds_needed: int | None = None


class Verdict(Record):
    """The verdict on a claim. `mean` with its interval is in points, per cent or failures, uncorrected.

    `p` is that of the claim alone; of the paper's number as one of our runs, if the claim has a rival. `seeds_needed`:
    seeds that would decide the claim; None also if no number would. A claim about several numbers (the largest gain)
    shows the number with the weakest evidence. `miniature`: the order that it states, on a suite with a small model;
    left out if there is none.
    """

    claim: str
    verdict: Outcome
    text: str
    place: str
    says: str
    kind: str
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    tasks: int | None = None
    seeds: int | None = None
    seeds_needed: int | None = None
    row: str | None = None
    column: str | None = None
    unverified: bool = False
    miniature: InMiniature | None = Field(default=None, exclude_if=is_none)


def is_miniature(suite: Suite) -> bool:
    """Whether all models of a suite are small."""
    return all(0 < parameter_count(model) < SMALL for model in suite.models.values())


def verify(
    claims: Claims, results: Results, report: ReportConfig, as_if: bool = False, miniature: bool = False
) -> list[Verdict]:
    """A verdict on every claim; `as_if` judges orders of another setting, too, `miniature` judges them apart."""
    draws = resamples(report.bootstrap, claims)
    judged = judge(prepare(claims, results, resamples=draws, as_if=as_if), report.confidence)
    if not miniature:
        return judged
    tests = prepare(claims, results, resamples=draws, as_if=True)
    orders = {test.name: in_miniature(test, report.confidence) for test in tests if test.spreads}
    return [verdict.model_copy(update={"miniature": orders.get(verdict.claim)}) for verdict in judged]


def in_miniature(test: ClaimTest, confidence: float) -> InMiniature:
    """The order of a test with estimates."""
    counted = isinstance(test.claim, FailuresClaim) and test.claim.quantity == "number"
    unit: Literal["points", "failures"] = "failures" if counted else "points"
    outcome, needed, remark = _IN_MINIATURE.get(_outcome(test, confidence), "undecided"), None, ""
    shown = _weakest(test, confidence)
    if outcome == "undecided" and _carried(test, confidence):
        outcome, remark = "carried by one seed", CARRIED
    elif outcome == "undecided":
        needed = _largest([spread.seeds_needed(HALF_WIDTH, 1.0 - confidence) for spread in test.spreads])
        remark = _what_decides(needed, shown.seeds, unit)
    numbers = f"{shown} {unit}; {shown.sizes}."
    text = " ".join(filter(None, [numbers, remark, test.claim.caution]))
    return InMiniature(outcome=outcome, text=text, **shown._asdict(), unit=unit, seeds_needed=needed)


def _largest(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else max(filter(None, counts))


def _what_decides(needed: int | None, seeds: int, unit: str) -> str:
    if seeds < stats.MIN_SEEDS:
        return f"Fewer than {stats.MIN_SEEDS} seeds never decide: how trainings differ is not known."
    if needed is None:
        return f"No number of seeds would give +-{HALF_WIDTH:g} {unit}: the tasks are too few."
    if needed <= seeds:
        return f"The interval is within about +-{HALF_WIDTH:g} {unit}: more seeds show a smaller difference only."
    return f"About {needed} seeds would give +-{HALF_WIDTH:g} {unit}, if trainings differ as these do."


def resamples(least: int, claims: Claims) -> int:
    """Draws that make a correction for the number of claims finer than its level, `least` at least."""
    return max(least, 200 * len(claims.by_name()))


def write(verdicts: Sequence[Verdict], out: Path, as_if: bool = False, tables: Sequence[str] = ()) -> dict[str, Any]:
    """Write `verdicts.json`, and `verdicts.md` with further `tables`; returns the number of claims by verdict."""
    files.write_json(out / "verdicts.json", [verdict.model_dump(mode="json") for verdict in verdicts])
    texts = [markdown(verdicts, as_if), *filter(None, [miniature_markdown(verdicts)]), *tables]
    files.write_bytes(out / "verdicts.md", "\n".join(texts).encode())
    return {outcome: sum(verdict.verdict == outcome for verdict in verdicts) for outcome in OUTCOMES}


def judge(tests: Sequence[ClaimTest], confidence: float) -> list[Verdict]:
    """A verdict on every claim, each at the level 1 - `confidence`."""
    families = {
        apart: [test for test in tests if _decidable(test) and _rival(test) is None and test.claim.unverified == apart]
        for apart in (False, True)
    }
    adjusted = {
        test.name: p
        for family in families.values()
        for test, p in zip(family, stats.holm([_p(test) for test in family]), strict=True)
    }
    return [
        _verdict(test, adjusted.get(test.name), len(families[test.claim.unverified]), confidence)
        if test.spreads
        else Verdict(**_about(test), verdict="not run", text=test.missing)
        for test in tests
    ]


def tails(test: ClaimTest) -> tuple[float, float]:
    """Two-sided p-values of "the claim is true" (all its numbers lie inside) and "it is false" (one lies outside)."""
    (low, high), closed = test.claim.limits, isinstance(test.claim, SizeClaim)
    inside = [max(s.below(low, closed=closed), s.above(high, closed=closed)) for s in test.spreads]
    outside = [min(s.above(low), s.below(high)) for s in test.spreads]
    return min(1.0, 2.0 * max(inside)), min(1.0, 2.0 * len(outside) * min(outside))


def _rival(test: ClaimTest) -> float | None:
    return test.claim.rival if isinstance(test.claim, SizeClaim) else None


def _p(test: ClaimTest) -> float:
    """The p-value of the decision: of the paper's number as one of our runs, or that of a range."""
    if _rival(test) is None or not isinstance(test.claim, SizeClaim):
        return min(tails(test))
    return test.spreads[0].single_run_p(test.claim.value)


def _outcome(test: ClaimTest, confidence: float) -> Outcome:
    """The verdict on a claim with estimates, judged alone."""
    if not _decidable(test):
        return "undecided"
    inside, outside = tails(test)
    level, rival = 1.0 - confidence, _rival(test)
    if rival is not None and isinstance(test.claim, SizeClaim):
        ours, rivals = map(test.spreads[0].single_run_p, (test.claim.value, rival))
        if inside <= level:
            return "reproduced"
        return "contradicted" if ours <= level else "consistent" if rivals <= level else "undecided"
    if min(inside, outside) > level or _carried(test, confidence):
        return "undecided"
    return "reproduced" if inside < outside else "contradicted"


def _carried(test: ClaimTest, confidence: float) -> bool:
    """Whether an order is decided, but not without one of the seeds."""
    decided = _decidable(test) and min(tails(test)) <= 1.0 - confidence
    return (
        decided
        and not isinstance(test.claim, SizeClaim)
        and any(
            robustness.single_seed_decides(spread.seed_means, spread.of_tasks, confidence) for spread in test.spreads
        )
    )


def _decidable(test: ClaimTest) -> bool:
    return bool(test.spreads) and all(spread.n_seeds >= stats.MIN_SEEDS for spread in test.spreads)


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """1 if a claim of the paper is contradicted; 3 if none was decided at all; else 0."""
    outcomes = {verdict.verdict for verdict in verdicts if not verdict.unverified}
    return 1 if "contradicted" in outcomes else 0 if outcomes & {"reproduced", "consistent"} else 3


def line(verdict: Verdict) -> str:
    """One line of text: verdict, claim, and why."""
    return f"{verdict.verdict:12} {verdict.claim:34} {verdict.text}"


def summary(verdicts: Sequence[Verdict], as_if: bool = False) -> str:
    """The number of claims judged in this suite, by verdict; with a remark if they were judged `as_if`."""
    of_paper, of_others = ([v for v in verdicts if v.unverified == apart] for apart in (False, True))
    apart = f"From secondary sources, unverified: {_counted(of_others)}" if of_others else ""
    return " ".join(filter(None, [_counted(of_paper), apart, AS_IF * as_if]))


def _counted(verdicts: Sequence[Verdict]) -> str:
    counts = Counter[Outcome](verdict.verdict for verdict in verdicts if verdict.verdict != "not run")
    shown = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    return f"{counts.total() or 'None'} of {len(verdicts)} claims judged in this suite{': ' * bool(shown)}{shown}."


def not_run(verdicts: Sequence[Verdict]) -> list[str]:
    """A line for each reason why claims were not run, with these claims."""
    reasons = dict.fromkeys(v.text for v in verdicts if v.verdict == "not run")
    claims = {reason: [v.claim for v in verdicts if v.text == reason] for reason in reasons}
    return [f"* {reason} Claims: {', '.join(f'`{claim}`' for claim in claims[reason])}." for reason in reasons]


def markdown(verdicts: Sequence[Verdict], as_if: bool = False) -> str:
    """The verdicts as a table, and the claims that were not run, by reason."""
    judged = sorted((v for v in verdicts if v.verdict != "not run"), key=lambda v: OUTCOMES.index(v.verdict))
    rows = [[v.verdict + " (unverified)" * v.unverified, v.claim, v.place, v.says, v.text] for v in judged]
    table = tabulate(rows, ["verdict", "claim", "place", "the paper", "here"], tablefmt="github") if rows else ""
    units = f" Units: {SIZES}. {ALONE}" if rows else ""
    text = f"{summary(verdicts, as_if)}{units}"
    left = not_run(verdicts)
    return _section("Verdicts", text, *([table, ""] if rows else []), *(["Not run:", "", *left] if left else []))


def _section(title: str, text: str, *lines: str) -> str:
    return "\n".join([f"## {title}", "", text, "", *lines, ""])


def miniature_markdown(verdicts: Sequence[Verdict]) -> str:
    """The section "In the miniature", the orders that were judged there; empty without any."""
    judged = [(verdict, verdict.miniature) for verdict in verdicts if verdict.miniature]
    if not judged:
        return ""
    rows = [[order_outcome(order), v.claim, v.place, v.says, order.text] for v, order in judged]
    table = tabulate(rows, ["in the miniature", "order", "place", "the paper", "here"], tablefmt="github")
    return _section("In the miniature", f"{miniature_summary(verdicts)} {MINIATURE}", table)


def unfinished_markdown(reasons: Iterable[str]) -> str:
    """The section "Unfinished methods", with each reason once."""
    rows = [f"* {reason}" for reason in dict.fromkeys(reasons)]
    return _section("Unfinished methods", "They have no verdict, and no order in the miniature.", *rows)


def miniature_summary(verdicts: Sequence[Verdict]) -> str:
    """The number of orders in the miniature by outcome, in one sentence; empty without any."""
    outcomes = [verdict.miniature.outcome for verdict in verdicts if verdict.miniature]
    if not outcomes:
        return ""
    holds, fails, carried, open_ = (outcomes.count(name) for name in get_args(Order))
    apart = f"{carried} carried by one seed, " if carried else ""
    return f"{len(outcomes)} orders: {holds + fails} decided ({holds} hold, {fails} do not), {apart}{open_} undecided."


def order_outcome(order: InMiniature) -> str:
    """`decided: holds`, `decided: does not hold`, `decided, carried by one seed` or `undecided`."""
    words = {"undecided": "undecided", "carried by one seed": robustness.CARRIED}
    return words.get(order.outcome, f"decided: {order.outcome}")


def noted(table: Table, verdicts: Sequence[Verdict]) -> Table:
    """The table with notes on its cells of the paper that are decided."""
    judged = {(verdict.row, verdict.column): verdict.verdict for verdict in verdicts}
    printed = [(cell.row, cell.column) for cell in table.cells if cell.paper is not None]
    notes = [*table.footnotes]
    for outcome, text in _ABOUT.items():
        if cells := tuple(cell for cell in printed if judged.get(cell) == outcome):
            text = f"{outcome.capitalize()}: the paper's value {text}."
            notes.append(Footnote(mark=ascii_lowercase[len(notes)], text=text, cells=cells))
    return table.model_copy(update={"footnotes": tuple(notes)})


def _about(test: ClaimTest) -> dict[str, Any]:
    """The fields of a verdict that repeat its claim."""
    claim = test.claim
    cell = {"row": claim.row, "column": claim.column} if isinstance(claim, CellClaim) else {}
    names = {"claim": test.name, "kind": claim.kind, "place": claim.place, "says": claim.text}
    return {**names, "unverified": claim.unverified, **cell}


def _verdict(test: ClaimTest, holm: float | None, claims: int, confidence: float) -> Verdict:
    outcome, level = _outcome(test, confidence), 1.0 - confidence
    shown = _weakest(test, confidence)
    needed, remark = None, ""
    if outcome == "undecided" and _carried(test, confidence):
        remark = CARRIED
    elif outcome == "undecided":
        needed = seeds_needed(test, level)
        needed = needed and max(needed, *(spread.n_seeds + 1 for spread in test.spreads))
        on_limit = any(math.isclose(_room(s.mean, test.claim), 0.0, abs_tol=1e-9) for s in test.spreads)
        remark = _caveat(shown.seeds, needed, on_limit, _rival(test))
    run = ""
    if _rival(test) is not None and (ends := test.spreads[0].single_run(confidence)):
        run = f" one run lies in [{ends[0]:.1f}, {ends[1]:.1f}];"
    p = _p(test) if _decidable(test) else 1.0
    corrected = "" if holm is None else f", corrected for {claims} claims {readable(holm)}"
    basis = f"{shown.sizes}, p {readable(p)}{corrected}"
    numbers = f"{shown},{run} claimed {claimed_range(test.claim)}; {basis}."
    text = " ".join(filter(None, [numbers, remark, test.claim.caution]))
    return Verdict(**_about(test), verdict=outcome, text=text, p=p, **shown._asdict(), seeds_needed=needed)


def seeds_needed(test: ClaimTest, level: float) -> int | None:
    """Seeds that would decide a claim with a probability of `POWER`, were this the truth; None: no number of them."""
    rival = _rival(test)
    if rival is not None and isinstance(test.claim, SizeClaim):
        return test.spreads[0].seeds_for_single_run(test.claim.value - rival, level, POWER)
    return _largest([s.seeds_needed(abs(_room(s.mean, test.claim)), level, POWER) for s in test.spreads])


def _caveat(seeds: int, needed: int | None, on_limit: bool, rival: float | None) -> str:
    """The number of seeds that would decide a claim, in a sentence."""
    if needed is None and rival is not None:
        return f"No number of seeds would decide: {rival:.1f} is too near for a single run of the paper."
    if needed is None and on_limit:
        return "A measured value lies on the limit of the claim: no number of seeds would decide, were this the truth."
    if needed is None:
        return "No number of seeds would decide: the instructions are too few."
    if seeds < stats.MIN_SEEDS:
        return f"Fewer than {stats.MIN_SEEDS} seeds never decide: how trainings differ is not known."
    return f"{needed} seeds would decide with a probability of {POWER:g}, were this the truth."


class _Shown(NamedTuple):
    """The number that a verdict shows, with its interval; the names are the verdict's."""

    mean: float
    low: float
    high: float
    tasks: int
    seeds: int

    def __str__(self) -> str:
        return with_interval(self.mean, self.low, self.high)

    @property
    def sizes(self) -> str:
        """The numbers of tasks and seeds in words."""
        return f"{self.tasks} tasks, {self.seeds} seed{'s' * (self.seeds > 1)}"


def _weakest(test: ClaimTest, confidence: float) -> _Shown:
    spread = min(test.spreads, key=lambda spread: _room(spread.mean, test.claim))
    return _Shown(spread.mean, *spread.interval(confidence), spread.n_tasks, spread.n_seeds)


def _room(value: float, claim: Claim) -> float:
    """How far a value lies inside the range; negative outside."""
    low, high = claim.limits
    return min(value - low, high - value)


def claimed_range(claim: Claim) -> str:
    """The range in which the numbers of a claim must lie, in points or per cent."""
    low, high = claim.limits
    if isinstance(claim, SizeClaim) and claim.rival is not None:
        return f"{claim.value:.1f}, not {claim.rival:.1f}"
    if math.isinf(low):
        return f"at most {high:.1f}"
    if math.isinf(high):
        return f"at least {low:.1f}" if isinstance(claim, SizeClaim) else f"above {low:g}"
    return f"{low:.1f} to {high:.1f}"
