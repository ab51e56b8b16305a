"""The committed simulation of intervals and verdicts: made again with few runs it gives the same rates."""

import re

import pytest

from benchmarks import intervals


def rates(page):
    """Every per cent of the page's tables, by what stands before it in its row, and those of the sentence on looks."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    found = {}
    for row in rows:
        names = 2 if row[0] in intervals.WORLDS else 1
        found |= {(*row[:names], n): float(cell) for n, cell in enumerate(row[names:]) if re.fullmatch(r"[\d.]+", cell)}
    (looks,) = re.findall(r"decides ([\d.]+) % of nulls; with the levels of declared looks\n([\d.]+) %", page)
    return found | {("looks", n): float(rate) for n, rate in enumerate(looks)}


def test_few_runs_give_the_committed_rates():
    cases = 150
    committed, made = rates(intervals.FILE.read_text()), rates(intervals.page(cases))
    assert committed.keys() == made.keys() and len(committed) == 12 * 5 + 2 + 3 * 3 + 2
    for key, rate in committed.items():
        share = min(max(rate / 100, 0.02), 0.98)
        assert made[key] / 100 == pytest.approx(rate / 100, abs=4.5 * (share * (1 - share) / cases) ** 0.5), key


def test_the_worlds_show_what_the_page_says():
    """The t interval holds in the first three worlds, and not where trainings collapse; declared looks keep 5 %."""
    table = rates(intervals.FILE.read_text())
    covers = {key: rate for key, rate in table.items() if key[0] in intervals.WORLDS and key[2] == 0}
    assert all(rate >= 93 for (world, *_), rate in covers.items() if world != "collapses")
    assert all(rate <= 87 for (world, *_), rate in covers.items() if world == "collapses")
    assert table["3.5", 0] >= 60 and table["3.5", 1] <= 6
    assert table["looks", 0] > 9 and table["looks", 1] <= 6
