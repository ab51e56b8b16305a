"""InterCode's reward: the share of common rows, times the rank correlation of their order."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any


def reward(answer: list[tuple[Any, ...]] | None, gold: list[tuple[Any, ...]]) -> float:
    """Upstream's raw reward in [-1, 1]; 0 for an `answer` of None (an error, or no result set).

    Rows are compared as `str(row)`. The share of common rows (multiset intersection over union, 1 if both are empty) is
    multiplied by Kendall's tau-b between the common rows in the answer's order and in the gold's, and rounded to two
    digits. If tau is undefined, as for a single common row, the reward is the share.
    """
    share = overlap(answer, gold)
    answer_rows, gold_rows = [str(row) for row in answer or ()], [str(row) for row in gold]
    common = Counter(answer_rows) & Counter(gold_rows)
    tau = kendall_tau_b(_first_occurrences(answer_rows, common), _first_occurrences(gold_rows, common))
    # Upstream rounds a numpy float, which is scaled first: numpy rounds 0.175 to 0.18, Python's float to 0.17.
    return share if math.isnan(tau) else round(tau * share * 100) / 100


def is_exact(answer: list[tuple[Any, ...]] | None, gold: list[tuple[Any, ...]]) -> bool:
    """Whether the answer has the gold's rows in the gold's order: the reward before rounding is 1 then, and only then.

    The rounded reward is 1 for an answer with one row too many beside 200 right ones, too.
    """
    return answer is not None and list(map(str, answer)) == list(map(str, gold))


def overlap(answer: list[tuple[Any, ...]] | None, gold: list[tuple[Any, ...]]) -> float:
    """Share of common rows, in [0, 1]; in 2023 this was upstream's whole reward, whatever the rows' order."""
    if answer is None:
        return 0.0
    answer_rows, gold_rows = Counter(map(str, answer)), Counter(map(str, gold))
    union = answer_rows | gold_rows
    return (answer_rows & gold_rows).total() / union.total() if union else 1.0


def kendall_tau_b(x: Sequence[str], y: Sequence[str]) -> float:
    """Kendall's tau-b of two sequences of equal length; NaN if all elements of one are tied.

    Equal to `scipy.stats.kendalltau` to the last bit. Strings are ordered by code point. Discordant pairs are counted
    as the inversions of `y` after sorting by `x`, in n log n comparisons.
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


def _first_occurrences(rows: Iterable[str], counts: Counter[str]) -> list[str]:
    """The first `counts[row]` occurrences of each row, in order."""
    left = counts.copy()
    selected = []
    for row in rows:
        if left[row] > 0:
            left[row] -= 1
            selected.append(row)
    return selected
