"""Verdicts as tables for readers: claims in words, each value and each sentence once."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from coevolve.report.claims import CellClaim, Claims, FailuresClaim, LargestGainClaim, ShareClaim, SizeClaim
from coevolve.report.labels import ReportLabels, words
from coevolve.report.number_text import readable, with_interval
from coevolve.report.verdicts import HALF_WIDTH, POWER, InMiniature, Verdict, order_outcome

_HEADS = ("claim", "the paper", "here", "measured", "p", "tasks x seeds", "seeds needed", "remark")
_SENTENCES = re.compile(r"(?<=\.) (?=[A-Z0-9])")
#: What columns of the table have: the number of seeds, the number of tasks and the p-value.
_NEEDED, _BASIS = re.compile(r"(About )?\d+ seeds would "), re.compile(r"; \d+ tasks, \d+ seeds?(, p [\d.e-]*\d)?")


@dataclass(frozen=True)
class VerdictTable:
    """Texts by row and column, without empty columns; `notes`: sentences of several rows, with their marks in them."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[tuple[str, str], ...]


def verdict_table(judged: Sequence[Verdict], claims: Claims, labels: ReportLabels) -> VerdictTable:
    """The table of verdicts of one outcome."""
    needed = f"Seeds needed: to decide with a probability of {POWER:g}, were the measured value the truth."
    return _table([(verdict, verdict) for verdict in judged], claims, labels, needed)


def miniature_table(judged: Iterable[Verdict], claims: Claims, labels: ReportLabels) -> VerdictTable:
    """The table of orders that were judged in the miniature."""
    needed = f"Seeds needed: for an interval of +-{HALF_WIDTH:g}, if trainings differ as these do."
    return _table([(each, each.miniature) for each in judged if each.miniature], claims, labels, needed)


def in_words(name: str, claims: Claims, labels: ReportLabels) -> str:
    """A claim in a few words; a name that is no claim's stays as it is."""
    claim = claims.by_name().get(name)
    if claim is None:
        return name
    rows = {**labels.methods, **{key: row.label for key, row in (claims.rows | claims.ablations).items()}}

    def row(key: str) -> str:
        name = str(getattr(claim, key))
        return rows.get(name, words(name))

    where = " and ".join(claims.columns[key].label for key in claim.columns[:1]) or labels.env(
        getattr(claim, "env", "")
    )
    if isinstance(claim, CellClaim):
        return f"{row('row')}, {where}: {claim.value:g}"
    if isinstance(claim, LargestGainClaim):
        return f"{row('better')} gains most over {row('than')} on {where}"
    if isinstance(claim, ShareClaim):
        return f"{row('method')}, {where}: share of {words(claim.outcome)}"
    if isinstance(claim, FailuresClaim):
        more = "more failures than" if claim.quantity == "number" else "higher rewards of shared failures than"
        return f"{row('better')}: {more} {row('than')}, {where}"
    by = f" by {claim.value:g} points" if isinstance(claim, SizeClaim) else ""
    return f"{row('better')} above {row('than')}{by}, {where}"


def _table(
    shown: Sequence[tuple[Verdict, Verdict | InMiniature]], claims: Claims, labels: ReportLabels, needed: str
) -> VerdictTable:
    remarks = [_remarks(of) for _, of in shown]
    counts = Counter(sentence for of_row in remarks for sentence in of_row)
    common = [sentence for sentence, count in counts.items() if count > 1][: len(ascii_lowercase)]
    notes = list(zip(ascii_lowercase, common, strict=False))
    marks = {sentence: f"note {mark}" for mark, sentence in notes}
    rows = [
        _row(verdict, of, in_words(verdict.claim, claims, labels), " ".join(marks.get(each, each) for each in of_row))
        for (verdict, of), of_row in zip(shown, remarks, strict=True)
    ]
    filled = [column for column, texts in enumerate(zip(*rows, strict=True)) if any(texts)]
    if any(of.seeds_needed for _, of in shown):
        notes.append(("", needed))
    return VerdictTable(
        tuple(_HEADS[column] for column in filled),
        tuple(tuple(row[column] for column in filled) for row in rows),
        tuple(notes),
    )


def _row(verdict: Verdict, of: Verdict | InMiniature, claim: str, remark: str) -> tuple[str, ...]:
    """The texts of one row, in the order of `_HEADS`."""
    measured = ""
    if of.mean is not None and of.low is not None and of.high is not None:
        measured = with_interval(of.mean, of.low, of.high, readable)
    return (
        claim,
        f"{verdict.place}: {verdict.says}{' (unverified)' * verdict.unverified}",
        order_outcome(of) if isinstance(of, InMiniature) else "",
        f"{measured} {of.unit}" if isinstance(of, InMiniature) else measured,
        "" if isinstance(of, InMiniature) or of.p is None else readable(of.p),
        "" if of.tasks is None else f"{of.tasks:,} x {of.seeds}",
        "" if of.seeds_needed is None else f"{of.seeds_needed:,}",
        remark,
    )


def _remarks(of: Verdict | InMiniature) -> list[str]:
    """The sentences of a verdict's text without what its columns have."""
    first, *rest = _SENTENCES.split(of.text)
    if of.mean is not None and of.low is not None and of.high is not None:
        numbers = with_interval(of.mean, of.low, of.high)
        unit = of.unit if isinstance(of, InMiniature) else ""
        first = _BASIS.sub("", first.removeprefix(numbers).strip(", ").removeprefix(unit)).strip(" ;")
    return [text for text in (first[:1].upper() + first[1:], *rest) if text.strip(".") and not _NEEDED.match(text)]
