"""InterCode's reward: how many rows agree, and how well their order does."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any


def reward(answer: list[tuple[Any, ...]] | None, gold: list[tuple[Any, ...]]) -> float:
    """Upstream's raw reward in [-1, 1]; an `answer` of None (an error, no result set) earns 0.

    Rows are compared as `str(row)`. The share of common rows (multiset intersection over union, 1 if both are empty) is
    multiplied by Kendall's tau-b between the common rows in the answer's order and in the gold's, and rounded to two
    digits. Where tau is not defined, as for a single common row, the share stays as it is.
    """
    share = overlap(answer, gold)
    ours, golds = [str(row) for row in answer or ()], [str(row) for row in gold]
    common = Counter(ours) & Counter(golds)
    tau = kendall_tau_b(_only(ours, common), _only(golds, common))
    return share if math.isnan(tau) else _two_digits(tau * share)


def overlap(answer: list[tuple[Any, ...]] | None, gold: list[tuple[Any, ...]]) -> float:
    """Share of common rows, in [0, 1]: the reward in whatever order the rows are, which is what was paid in 2023."""
    if answer is None:
        return 0.0
    ours, golds = Counter(map(str, answer)), Counter(map(str, gold))
    union = ours | golds
    return (ours & golds).total() / union.total() if union else 1.0


def kendall_tau_b(x: Sequence[str], y: Sequence[str]) -> float:
    """Kendall's tau-b of two equally long sequences, NaN where all of either is tied; equal to scipy's to the last bit.

    Strings rank by code point. Takes n log n comparisons: discordant pairs are inversions of `y` once sorted by `x`.
    """
    total = math.comb(len(x), 2)
    tied_x, tied_y, tied_both = _ties(x), _ties(y), _ties(zip(x, y, strict=True))
    if total in (tied_x, tied_y):
        return math.nan
    discordant, seen = 0, list[str]()
    for _, item in sorted(zip(x, y, strict=True)):
        discordant += len(seen) - bisect_right(seen, item)
        insort(seen, item)
    surplus = total - tied_x - tied_y + tied_both - 2 * discordant
    tau = surplus / math.sqrt(total - tied_x) / math.sqrt(total - tied_y)
    return min(1.0, max(-1.0, tau))


def _ties(items: Iterable[object]) -> int:
    """Number of pairs of equal items."""
    return sum(math.comb(count, 2) for count in Counter(items).values())


def _only(rows: Iterable[str], kept: Counter[str]) -> list[str]:
    """The first `kept[row]` occurrences of each row, in order."""
    left = kept.copy()
    taken = []
    for row in rows:
        if left[row] > 0:
            left[row] -= 1
            taken.append(row)
    return taken


def _two_digits(value: float) -> float:
    # Upstream rounds a numpy float, which scales first: 0.175 becomes 0.18 where Python's own float becomes 0.17.
    return round(value * 100) / 100
