"""A verdict on each claim of the paper: reproduced, contradicted, underpowered or not run.

A claim states that a number lies in a range (a cell within its tolerance, a difference above 0). It has two p-values:
that of "it lies inside", as in a test of equivalence, and that of "it lies outside". Each is twice the one-sided share
of draws (`stats.spread`: paired by task and seed), so a claim is decided at 5 % exactly if its 95 % interval lies
inside the range, or outside. Holm's correction over all decidable claims applies to the smaller of the two.

A claim about the size of the paper's own cells keeps its instructions and varies trainings; one about an order varies
both. With fewer than three training seeds no claim is decided: the variance of trainings is unknown. Claims from a
secondary source (`unverified`) are judged and counted separately.

A suite with a small model has results that are not about the paper's cells. The paper's orders are judged on them too,
apart and each alone: "in the miniature" an order holds, does not hold, or is undecided.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Literal, NamedTuple

from pydantic import Field
from tabulate import tabulate

from coevolve.config.derived.sizes import parameter_count
from coevolve.config.sections import ReportConfig
from coevolve.config.suite import Suite
from coevolve.records.base import Record, is_none
from coevolve.report import stats
from coevolve.report.claim_tests import ClaimTest, Results, prepare
from coevolve.report.claims import CellClaim, Claim, Claims, FailuresClaim, SizeClaim
from coevolve.report.number_text import readable, with_interval
from coevolve.report.table import Footnote, Table
from coevolve.storage import files

Outcome = Literal["reproduced", "contradicted", "underpowered", "not run"]
Order = Literal["holds", "does not hold", "undecided"]
OUTCOMES: tuple[Outcome, ...] = ("reproduced", "contradicted", "underpowered", "not run")
#: Power of a test with `seeds_needed` seeds, if the true value is the measured one.
POWER = 0.8
AS_IF = "As if: orders are judged on results that are not about the paper's setting. They show what verdicts look like."
SIZES = "reward in points, shares in per cent"
#: A model with fewer parameters is a miniature. choice: all models of the papers have more.
SMALL = 1e9
#: Half of the interval's width, in points, that `InMiniature.seeds_needed` is about.
HALF_WIDTH = 3.0
_IN_MINIATURE: dict[Outcome, Order] = {
    "reproduced": "holds",
    "contradicted": "does not hold",
    "underpowered": "undecided",
}
_JUDGED = "the interval over trainings alone, on the paper's own tasks (the cell's is over tasks, too),"
MINIATURE = (
    "The paper's orders on this suite's own environments, tasks and model: none of them is about a cell of the paper. "
    "An order is decided if its interval over tasks and trainings excludes 0. Each is judged alone, without a "
    "correction for their number. The largest gain compares several differences: the weakest is shown, and that it "
    "does not hold is corrected for their number."
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

    `p` is Holm's over all claims judged with it. `seeds_needed`: seeds that would decide the claim; None also if no
    number would. A claim about several numbers (the largest gain) shows the number with the weakest evidence.
    `miniature`: the order that it states, on a suite with a small model; left out if there is none.
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
    outcome, needed, remark = _IN_MINIATURE[judge([test], confidence)[0].verdict], None, ""
    shown = _weakest(test, confidence)
    if outcome == "undecided":
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
    """A verdict on every claim, at the level 1 - `confidence` over all that are the paper's, and over the others."""
    families = {
        apart: [test for test in tests if _decidable(test) and test.claim.unverified == apart]
        for apart in (False, True)
    }
    adjusted = {
        test.name: p
        for family in families.values()
        for test, p in zip(family, stats.holm([min(tails(test)) for test in family]), strict=True)
    }
    return [
        _verdict(test, adjusted.get(test.name, 1.0), max(1, len(families[test.claim.unverified])), confidence)
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


def _decidable(test: ClaimTest) -> bool:
    return bool(test.spreads) and all(spread.n_seeds >= stats.MIN_SEEDS for spread in test.spreads)


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """1 if a claim of the paper is contradicted; 3 if none was decided at all; else 0."""
    outcomes = {verdict.verdict for verdict in verdicts if not verdict.unverified}
    return 1 if "contradicted" in outcomes else 0 if "reproduced" in outcomes else 3


def line(verdict: Verdict) -> str:
    """One line of text: verdict, claim, and why."""
    return f"{verdict.verdict:12} {verdict.claim:34} {verdict.text}"


def summary(verdicts: Sequence[Verdict], as_if: bool = False) -> str:
    """The number of claims by verdict; with a remark if they were judged `as_if`."""
    of_paper, of_others = ([v for v in verdicts if v.unverified == apart] for apart in (False, True))
    apart = f"From secondary sources, unverified: {_counted(of_others)}." if of_others else ""
    return " ".join(filter(None, [f"{len(of_paper)} claims: {_counted(of_paper)}.", apart, AS_IF * as_if]))


def _counted(verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdict.verdict for verdict in verdicts)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)


def markdown(verdicts: Sequence[Verdict], as_if: bool = False) -> str:
    """The verdicts as a table, and the claims that were not run, by reason."""
    judged = sorted((v for v in verdicts if v.verdict != "not run"), key=lambda v: OUTCOMES.index(v.verdict))
    rows = [[v.verdict + " (unverified)" * v.unverified, v.claim, v.place, v.says, v.text] for v in judged]
    table = tabulate(rows, ["verdict", "claim", "place", "the paper", "here"], tablefmt="github") if rows else "None."
    reasons = dict.fromkeys(v.text for v in verdicts if v.verdict == "not run")
    claims = {reason: [v.claim for v in verdicts if v.text == reason] for reason in reasons}
    left = [f"* {reason} Claims: {', '.join(f'`{claim}`' for claim in claims[reason])}." for reason in reasons]
    return _section("Verdicts", f"{summary(verdicts, as_if)} Units: {SIZES}.", table, "", *left)


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
    holds, fails, open_ = (outcomes.count(name) for name in ("holds", "does not hold", "undecided"))
    return f"{len(outcomes)} orders: {holds + fails} decided ({holds} hold, {fails} do not), {open_} undecided."


def order_outcome(order: InMiniature) -> str:
    """`decided: holds`, `decided: does not hold` or `undecided`."""
    return order.outcome if order.outcome == "undecided" else f"decided: {order.outcome}"


def noted(table: Table, verdicts: Sequence[Verdict]) -> Table:
    """The table with notes on its cells of the paper that are reproduced or contradicted."""
    judged = {(verdict.row, verdict.column): verdict.verdict for verdict in verdicts}
    printed = [(cell.row, cell.column) for cell in table.cells if cell.paper is not None]
    notes = [*table.footnotes]
    for outcome, where in (("reproduced", "within"), ("contradicted", "outside")):
        if cells := tuple(cell for cell in printed if judged.get(cell) == outcome):
            text = f"{outcome.capitalize()}: {_JUDGED} lies {where} the tolerance of the paper's value."
            notes.append(Footnote(mark=ascii_lowercase[len(notes)], text=text, cells=cells))
    return table.model_copy(update={"footnotes": tuple(notes)})


def _about(test: ClaimTest) -> dict[str, Any]:
    """The fields of a verdict that repeat its claim."""
    claim = test.claim
    cell = {"row": claim.row, "column": claim.column} if isinstance(claim, CellClaim) else {}
    names = {"claim": test.name, "kind": claim.kind, "place": claim.place, "says": claim.text}
    return {**names, "unverified": claim.unverified, **cell}


def _verdict(test: ClaimTest, p: float, claims: int, confidence: float) -> Verdict:
    inside, outside = tails(test)
    level = 1.0 - confidence
    decided: Outcome = "reproduced" if inside < outside else "contradicted"
    outcome: Outcome = decided if p <= level and _decidable(test) else "underpowered"
    shown = _weakest(test, confidence)
    needed, remark = None, ""
    if outcome == "underpowered":
        needed = _largest([s.seeds_needed(abs(_room(s.mean, test.claim)), level / claims, POWER) for s in test.spreads])
        needed = needed and max(needed, *(spread.n_seeds + 1 for spread in test.spreads))
        on_limit = any(math.isclose(_room(s.mean, test.claim), 0.0, abs_tol=1e-9) for s in test.spreads)
        remark = _caveat(shown.seeds, needed, on_limit)
    basis = f"{shown.sizes}, p {readable(p)} of {claims} claims"
    numbers = f"{shown}, claimed {claimed_range(test.claim)}; {basis}."
    text = " ".join(filter(None, [numbers, remark, test.claim.caution]))
    return Verdict(**_about(test), verdict=outcome, text=text, p=p, **shown._asdict(), seeds_needed=needed)


def _caveat(seeds: int, needed: int | None, on_limit: bool) -> str:
    """The number of seeds that would decide an underpowered claim, in a sentence."""
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
    if math.isinf(low):
        return f"at most {high:.1f}"
    if math.isinf(high):
        return f"at least {low:.1f}" if isinstance(claim, SizeClaim) else f"above {low:g}"
    return f"{low:.1f} to {high:.1f}"
