"""A verdict on each claim of the paper: it agrees with our results, differs, or cannot be told yet.

**A number** of the paper is that of one run. It differs if it lies outside the prediction interval of one of our runs
(`estimation.single_run`). Inside, it agrees if that interval excludes the rival's number, which one run would have to
give if the claim were false (`rival` in `configs/claims.yaml`). A range agrees if our interval lies inside.

**An order** agrees if each of its differences is decided and above 0 (`estimation.decided`), and differs if one is
decided and below 0, at a level that is divided by their number.

Each claim is judged alone at 1 - confidence. Claims from a secondary source (`unverified`) are counted separately. A
suite with a small model has no results about the paper's cells; there the paper's orders are judged apart
(`miniature`).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Literal

from pydantic import Field

from coevolve.config.models import parameter_count
from coevolve.config.report import ReportConfig
from coevolve.config.suite import Suite
from coevolve.records.base import Record, is_none
from coevolve.records.tables import Estimate
from coevolve.report import estimation
from coevolve.report.claim_tests import ClaimTest, Results, prepare
from coevolve.report.claims import (
    CellClaim,
    Claim,
    Claims,
    FailuresClaim,
    LargestGainClaim,
    OrderingClaim,
    ShareClaim,
    ShareDifferenceClaim,
    SizeClaim,
)
from coevolve.report.labels import ReportLabels, words
from coevolve.report.number_text import with_interval
from coevolve.report.table import Footnote, Table
from coevolve.storage import files

Outcome = Literal["agrees", "differs", "cannot tell", "not run"]
OUTCOMES: tuple[Outcome, ...] = ("agrees", "differs", "cannot tell", "not run")
ALONE = "Each claim is judged at 5 % alone: of 20 that are false or at their limit, about one is judged wrongly."
#: A model with fewer parameters is a miniature. choice: all models of the papers have more.
SMALL = 1e9
MINIATURE = (
    "The paper's orders on this suite's own environments, tasks and model: none of them is about a cell of the paper. "
    "An order is decided if its interval over tasks and trainings excludes 0, also without any one of four or more "
    f"seeds. {ALONE} The largest gain compares several differences; the weakest is shown."
)
_ABOUT = {
    "agrees": "lies in the interval of one of our runs, which excludes the rival's",
    "differs": "lies outside the interval of one of our runs",
}


class Judgement(Record):
    """A verdict, and the sentence that states it; numbers are null if nothing was measured.

    `mean` with its interval is in points, per cent or failures. `seeds_needed`: seeds that would tell with 80 %
    probability, if what was measured is the truth; null if they are not known, or too many. A claim about several
    numbers (the largest gain) shows the number with the weakest evidence.
    """

    verdict: Outcome
    text: str
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    tasks: int | None = None
    seeds: int | None = None
    seeds_needed: int | None = None


class Verdict(Judgement):
    """The verdict on a claim, and its `place` and sentence (`says`) in the paper.

    `miniature`: on the order that it states, on a suite with a small model; left out if there is none.
    """

    claim: str
    place: str
    says: str
    kind: str
    row: str | None = None
    column: str | None = None
    unverified: bool = False
    miniature: Judgement | None = Field(default=None, exclude_if=is_none)


def is_miniature(suite: Suite) -> bool:
    """Whether all models of a suite are small."""
    return all(0 < parameter_count(model) < SMALL for model in suite.models.values())


def verify(claims: Claims, results: Results, report: ReportConfig, miniature: bool = False) -> list[Verdict]:
    """A verdict on every claim; `miniature` judges the paper's orders apart."""
    judged = [verdict(test, report.confidence) for test in prepare(claims, results, report.confidence)]
    if not miniature:
        return judged
    tests = prepare(claims, results, report.confidence, miniature=True)
    orders = {test.name: judge(test, report.confidence) for test in tests if test.estimates}
    return [each.model_copy(update={"miniature": orders.get(each.claim)}) for each in judged]


def verdict(test: ClaimTest, confidence: float) -> Verdict:
    """The verdict on a claim."""
    claim = test.claim
    cell = {"row": claim.row, "column": claim.column} if isinstance(claim, CellClaim) else {}
    about = {"claim": test.name, "kind": claim.kind, "place": claim.place, "says": claim.text}
    judged = judge(test, confidence) if test.estimates else Judgement(verdict="not run", text=test.missing)
    return Verdict(**dict(judged), **about, unverified=claim.unverified, **cell)


def judge(test: ClaimTest, confidence: float) -> Judgement:
    """What the estimates of a claim show."""
    claim, shown = test.claim, min(test.estimates, key=lambda each: _room(each.mean, test.claim))
    outcome = _outcome(claim, test.estimates, confidence)
    needed = _seeds_needed(claim, test.estimates, confidence) if outcome == "cannot tell" else None
    run = estimation.single_run(shown, confidence) if isinstance(claim, SizeClaim) and claim.rival is not None else None
    run_text = f", one run {run[0]:.1f} to {run[1]:.1f}" if run else ""
    sizes = f"{shown.n_tasks} tasks, {shown.n_seeds} seed{'s' * (shown.n_seeds > 1)}"
    measured = with_interval(shown.mean, shown.low, shown.high)
    counted = "failures" if isinstance(claim, FailuresClaim) and claim.quantity == "number" else "points"
    unit = "per cent" if claim.kind == "share" else counted
    text = f"The paper {claimed(claim)}, here {measured} {unit}{run_text} ({sizes}): {_answer(outcome, shown, needed)}."
    return Judgement(
        verdict=outcome,
        text=" ".join(filter(None, [text, claim.caution])),
        mean=shown.mean,
        low=shown.low,
        high=shown.high,
        tasks=shown.n_tasks,
        seeds=shown.n_seeds,
        seeds_needed=needed,
    )


def _outcome(claim: Claim, estimates: Sequence[Estimate], confidence: float) -> Outcome:
    if isinstance(claim, SizeClaim):
        (estimated,) = estimates
        if (run := estimation.single_run(estimated, confidence)) is None:
            return "cannot tell"
        if claim.rival is not None:
            ours, rivals = (run[0] <= number <= run[1] for number in (claim.value, claim.rival))
            return "differs" if not ours else "cannot tell" if rivals else "agrees"
        low, high = claim.limits
        if low <= estimated.low and estimated.high <= high:
            return "agrees"
        return "differs" if estimated.high < low or high < estimated.low else "cannot tell"
    if all(estimation.decided(each, confidence) > 0 for each in estimates):
        return "agrees"
    corrected = 1.0 - (1.0 - confidence) / len(estimates)
    return "differs" if any(estimation.decided(each, corrected) < 0 for each in estimates) else "cannot tell"


def _seeds_needed(claim: Claim, estimates: Sequence[Estimate], confidence: float) -> int | None:
    """Seeds that would tell, more than there are; None if how trainings differ is not known, or if no number would."""
    counts = []
    for each in estimates:
        of_tasks, of_seeds, mean = each.of_tasks or 0.0, each.of_seeds, each.mean
        if of_seeds is None:
            return None

        def power(seeds: int, *, of_tasks: float = of_tasks, of_seeds: float = of_seeds, mean: float = mean) -> float:
            if not isinstance(claim, SizeClaim):
                return estimation.power(mean, of_tasks, of_seeds, seeds, confidence)
            if claim.rival is not None:
                return estimation.single_run_power(claim.value - claim.rival, of_seeds, seeds, confidence)
            return float(estimation.half_width(0.0, of_seeds, seeds, confidence) <= abs(_room(mean, claim)))

        counts.append(estimation.seeds_needed(power))
    known = [count for count in counts if count is not None]
    return max(*known, estimates[0].n_seeds + 1) if len(known) == len(counts) else None


def _answer(outcome: Outcome, shown: Estimate, needed: int | None) -> str:
    if outcome != "cannot tell":
        return outcome
    if needed is not None:
        return f"cannot tell yet (about {needed} seeds would)"
    if shown.n_seeds < 2:
        return "cannot tell yet (one seed does not show how trainings differ)"
    return f"cannot tell (not even {estimation.MOST_SEEDS} seeds would)"


def _room(value: float, claim: Claim) -> float:
    """How far a value lies inside the range of a claim, which is that above 0 for an order; negative outside."""
    low, high = claim.limits if isinstance(claim, SizeClaim) else (0.0, math.inf)
    return min(value - low, high - value)


def claimed(claim: Claim) -> str:
    """The number of a claim and its rival's, or the range in which its numbers must lie, in points or per cent."""
    if not isinstance(claim, SizeClaim):
        return "above 0"
    if claim.rival is not None:
        return f"{claim.value:.1f}, not {claim.rival:.1f}"
    low, high = claim.limits
    return f"at most {high:.1f}" if math.isinf(low) else f"at least {low:.1f}" if math.isinf(high) else (
        f"{low:.1f} to {high:.1f}"
    )  # fmt: skip


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """1 if a claim of the paper differs; 3 if none could be told at all; else 0."""
    outcomes = {verdict.verdict for verdict in verdicts if not verdict.unverified}
    return 1 if "differs" in outcomes else 0 if "agrees" in outcomes else 3


def summary(verdicts: Sequence[Verdict]) -> str:
    """The number of claims judged in this suite, by verdict."""
    of_paper, of_others = ([v for v in verdicts if v.unverified == apart] for apart in (False, True))
    apart = f" From secondary sources, unverified: {_counted(of_others)}" if of_others else ""
    return f"{_counted(of_paper)}{apart}"


def _counted(verdicts: Sequence[Verdict]) -> str:
    judged = [verdict.verdict for verdict in verdicts if verdict.verdict != "not run"]
    return f"{len(judged) or 'None'} of {len(verdicts)} claims judged in this suite{_by_outcome(judged)}."


def _by_outcome(judged: Sequence[Outcome]) -> str:
    """Such as `: 2 agree, 1 differs, 3 cannot be told`; empty without any."""
    counts = Counter(judged)
    agree, differ, open_ = (counts[outcome] for outcome in OUTCOMES[:3])
    parts = [
        f"{agree} agree{'s' * (agree == 1)}" * bool(agree),
        f"{differ} differ{'s' * (differ == 1)}" * bool(differ),
        f"{open_} cannot be told yet" * bool(open_),
    ]
    return f": {', '.join(filter(None, parts))}" if judged else ""


def miniature_summary(verdicts: Sequence[Verdict]) -> str:
    """The number of orders in the miniature by verdict, in one sentence; empty without any."""
    judged = [verdict.miniature.verdict for verdict in verdicts if verdict.miniature]
    return f"{len(judged)} orders{_by_outcome(judged)}." if judged else ""


def not_run(verdicts: Sequence[Verdict]) -> list[str]:
    """A line for each reason why claims were not run, with these claims."""
    reasons = dict.fromkeys(v.text for v in verdicts if v.verdict == "not run")
    claims = {reason: [v.claim for v in verdicts if v.text == reason] for reason in reasons}
    return [f"* {reason} Claims: {', '.join(f'`{claim}`' for claim in claims[reason])}." for reason in reasons]


#: The heads of the columns of `rows`.
HEADS = ("verdict", "claim", "the paper", "here")


def rows(
    verdicts: Iterable[Verdict], name: Callable[[str], str] = str, *, miniature: bool = False
) -> list[tuple[str, ...]]:
    """Texts of the verdicts that were judged, or of the orders in the miniature, by `HEADS`; those that agree first.

    `name` makes a text of a claim's name.
    """
    chosen = [(v, v.miniature if miniature else v) for v in verdicts]
    judged = [(v, of) for v, of in chosen if of and of.verdict != "not run"]
    return [
        (of.verdict + " (unverified)" * v.unverified, name(v.claim), f"{v.place}: {v.says}", of.text)
        for v, of in sorted(judged, key=lambda pair: OUTCOMES.index(pair[1].verdict))
    ]


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as a list, and the claims that were not run, by reason; then the orders in the miniature."""
    judged, orders = (_listed(rows(verdicts, miniature=apart)) for apart in (False, True))
    left = not_run(verdicts)
    lines = ["## Verdicts", "", f"{summary(verdicts)}{f' {ALONE}' * bool(judged)}", "", *judged]
    lines += ["Not run:", "", *left, ""] if left else []
    if orders:
        lines += ["## In the miniature", "", f"{miniature_summary(verdicts)} {MINIATURE}", "", *orders]
    return "\n".join(lines)


def _listed(judged: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a list, with an empty line after them."""
    lines = [f"* `{claim}`, {outcome}: {text} {paper}" for outcome, claim, paper, text in judged]
    return [*lines, ""] if lines else []


def unfinished_markdown(reasons: Iterable[str]) -> str:
    """The section "Unfinished methods", with each reason once."""
    listed = [f"* {reason}" for reason in dict.fromkeys(reasons)]
    text = "They have no verdict, and no order in the miniature."
    return "\n".join(["## Unfinished methods", "", text, "", *listed, ""])


def write(verdicts: Sequence[Verdict], out: Path, tables: Sequence[str] = ()) -> dict[str, Any]:
    """Write `verdicts.json`, and `verdicts.md` with further `tables`; returns the number of claims by verdict."""
    files.write_json(out / "verdicts.json", [verdict.model_dump(mode="json") for verdict in verdicts])
    files.write_bytes(out / "verdicts.md", "\n".join([markdown(verdicts), *tables]).encode())
    return {outcome: sum(verdict.verdict == outcome for verdict in verdicts) for outcome in OUTCOMES}


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


def in_words(name: str, claims: Claims, labels: ReportLabels) -> str:
    """A claim in a few words, which no other claim has; a name that is no claim's stays as it is."""
    claim = claims.by_name().get(name)
    if claim is None:
        return name
    rows = {**labels.methods, **{key: row.label for key, row in (claims.rows | claims.ablations).items()}}

    def row(key: str) -> str:
        name = str(getattr(claim, key))
        return rows.get(name, words(name))

    env = labels.env(getattr(claim, "env", ""))
    where = " and ".join(claims.columns[key].label for key in claim.columns[:1]) or env
    where += f", {claim.model}" if claim.model and not isinstance(claim, CellClaim) else ""
    if isinstance(claim, CellClaim):
        return f"{row('row')}, {where or claims.columns[claim.column].label}: {claim.value:g}"
    if isinstance(claim, LargestGainClaim):
        return f"{row('better')} gains most over {row('than')} on {where}"
    if isinstance(claim, ShareClaim):
        return f"{row('method')}, {where}: {claim.value:g} % {words(claim.outcome)}"
    if isinstance(claim, FailuresClaim):
        more = "more failures than" if claim.quantity == "number" else "higher rewards of shared failures than"
        return f"{row('better')}: {more} {row('than')}, {where}"
    by = f" by {claim.value:g} points" if isinstance(claim, SizeClaim) else ""
    of = f" in {words(claim.outcome)}" if isinstance(claim, ShareDifferenceClaim) else ""
    after = f" after iteration {claim.iteration}" if isinstance(claim, OrderingClaim) and claim.iteration else ""
    return f"{row('better')} above {row('than')}{by}{of}{after}, {where}"
