"""The second paper's table: its own differences tested, and our results beside it where they exist."""

import dataclasses
import re

import pytest
from report.explored import measurement
from scipy import stats as scipy_stats

from coevolve.config.loading import load_suite
from coevolve.report import claims, second_paper


@pytest.fixture(scope="module")
def table(root):
    return claims.load(root / "configs/claims.yaml").success_tables["agent_data"]


def test_no_difference_of_the_paper_is_significant(table):
    differences = second_paper.differences(table)
    for each in differences:
        tasks = table.columns[each.column].tasks
        k = [round(table.rows[name].cells[each.column] * tasks / 100) for name in (each.row, each.against)]
        expected = scipy_stats.chi2_contingency([[count, tasks - count] for count in k], correction=False).pvalue
        assert each.p == pytest.approx(expected) and each.p > 0.05
    assert {each.row for each in differences} >= {"qwen3_4b_full", "qwen25_7b_full", "qwen3_30b_full"}
    assert second_paper.sentence(table).startswith(f"No single difference of these {len(differences)} is significant")


def test_a_difference_that_is_large_enough_is_named_and_without_any_the_table_is_printed_too(table, report):
    large = table.rows["qwen3_4b_full"].model_copy(update={"cells": {"bfcl": 75.0}})
    changed = table.model_copy(update={"rows": table.rows | {"qwen3_4b_full": large}})
    assert "differences are significant at 5 %: qwen3_4b_full on bfcl" in second_paper.sentence(changed)
    rows = {name: row.model_copy(update={"against": ""}) for name, row in table.rows.items()}
    text = second_paper.markdown(table.model_copy(update={"rows": rows}), [], report)
    assert "It compares none of its rows." in text and "Qwen3-4B full" in text


def test_every_rate_is_a_whole_number_of_tasks(table):
    for row in table.rows.values():
        for column, rate in row.cells.items():
            n = table.columns[column].tasks
            assert rate == pytest.approx(100 * round(rate * n / 100) / n, abs=0.01)


def test_ours_stand_beside_it_and_appworld_is_empty_with_its_reason(table, report):
    without = second_paper.markdown(table, [], report)
    assert without.count("| not run") == sum("bfcl" in row.cells for row in table.rows.values())
    assert without.count("| not available") == 4 and "its data bundle is not in its wheel" in without
    assert not re.search(r"^\* .*: *(None)?$", without, re.MULTILINE), "a remark of nothing"
    ours = measurement("agent_data", "bfcl", "test", {"a": [1.0, 0.5], "b": [1.0, 1.0]}, model="tiny")
    text = second_paper.markdown(table, [ours], report)
    (line,) = [line for line in text.splitlines() if "(3 of 4, 2 seeds, tiny, micro)" in line]
    assert re.match(r"\| Qwen3-4B full +\| BFCL", line)
    low, high = map(float, re.search(r"75\.0 \[([\d.]+), ([\d.]+)\] \(3 of 4", line).groups())
    assert 0.0 <= low < 75.0 < high <= 100.0  # over tasks and seeds
    none = measurement("agent_data", "bfcl", "test", {"a": [0.0, 0.0], "b": [0.0, 0.0]}, model="tiny")
    assert "0.0 [0.0, 65.8] (0 of 4" in second_paper.markdown(table, [none], report)  # Wilson's, of two tasks
    empty = dataclasses.replace(ours, records=())
    assert second_paper.markdown(table, [empty], report) == without, "a split whose every episode ended by an error"
    generated = dataclasses.replace(ours, note="BFCL: generated tasks; non-comparable.")
    assert "tiny, micro) BFCL: generated tasks; non-comparable." in second_paper.markdown(table, [generated], report)


def test_the_abstracts_gains_are_contradicted_by_the_cells_that_the_page_names(table):
    zero, full = (table.rows[row].cells for row in ("qwen3_4b", "qwen3_4b_full"))
    (remark,) = [each for each in table.remarks if "abstract" in each]
    gains = [full[column] - zero[column] for column in ("bfcl", "appworld")]
    assert f"+{gains[0]:.1f} on BFCL and +{gains[1]:.2f} on AppWorld" in remark


def test_only_suites_with_its_rows_have_the_table(root):
    paper = claims.load(root / "configs/claims.yaml")
    shown = [len(second_paper.tables(paper, load_suite(name), [])) for name in ("smoke", "micro_bfcl", "agent_data")]
    assert shown == [0, 0, 1]
