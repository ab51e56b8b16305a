"""InterCode's reward: the share of common rows, times the rank correlation of their order."""

import math
from collections import Counter
from collections.abc import Iterable
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
    if common.total() < 2:
        return share
    from scipy.stats import kendalltau  # takes a second, and a policy without two right rows needs none of it

    tau = kendalltau(_first_occurrences(answer_rows, common), _first_occurrences(gold_rows, common)).statistic
    # A numpy float is scaled before it is rounded: numpy rounds 0.175 to 0.18, Python's float to 0.17.
    return share if math.isnan(tau) else float(round(tau * share, 2))


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


def _first_occurrences(rows: Iterable[str], counts: Counter[str]) -> list[str]:
    """The first `counts[row]` occurrences of each row, in order."""
    left = counts.copy()
    selected = []
    for row in rows:
        if left[row] > 0:
            left[row] -= 1
            selected.append(row)
    return selected
