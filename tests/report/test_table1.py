import re
from dataclasses import replace
from pathlib import Path

import pytest

from coevolve.errors import UserError
from coevolve.records.episodes import StopReason
from coevolve.report import claims as claims_file
from coevolve.report.claims import Claims
from coevolve.report.labels import ReportLabels
from coevolve.report.table import latex, markdown
from coevolve.report.table1 import MeasuredCells

CLAIMS = claims_file.load(Path(__file__).parents[2] / "configs" / "claims.yaml")
SMALL = Claims.model_validate(
    {
        "source": "a paper",
        "columns": {
            "seen": {"label": "Seen", "env": "sciworld", "split": "seen"},
            "shop": {"label": "Shop", "env": "webshop", "split": "test"},
            "mean": {"label": "Mean"},
        },
        "rows": {
            "gpt4": {"label": "GPT-4", "place": "row 1", "cells": {"seen": 42.9, "shop": 63.2, "mean": 53.1}},
            "sft": {"label": "SFT", "place": "row 2", "cells": {"seen": 47.3, "mean": 53.2}},
        },
        "facts": [{"text": "Not what it seems.", "place": "elsewhere", "cells": {"gpt4": ["seen"]}}],
    }
)

LABELS = {"sft": "SFT", "eto": "ETO", "odd": "50 % odd_method & more"}


def cells_of(measurements, report, claims=SMALL):
    return MeasuredCells.of(measurements, claims, ReportLabels(LABELS, {"alfworld": "ALFWorld"}), report)


@pytest.fixture
def sft(measure):
    return measure("sft", "sciworld", "seen", {"a": [0.5, 0.5], "b": [0.5, 0.5]})


@pytest.fixture
def shop(measure):
    return measure("sft", "webshop", "test", {"c": [1.0, 0.0], "d": [0.5, 0.5], "e": [0.5, 0.5]})


def cell(table, row, column):
    return next(c for c in table.cells if (c.row, c.column) == (row, column))


def test_markdown_of_a_small_table(measure, sft, report):
    """Methods and splits that the paper lacks come last; numbers of tasks and seeds that differ are named."""
    others = [measure("eto", "sciworld", "seen", {"a": [0.25]}), measure("odd", "alfworld", "dev", {"c": [1.0]})]
    text = markdown(cells_of([sft, *others], report).reward_table())
    assert re.sub(" +", " ", re.sub("-+", "-", text)) == (
        "Average reward x 100 with its 95 % interval over tasks and, where there are several, trainings. In brackets "
        "the paper's cell (a paper). Suite micro, model tiny, protocol fixed. "
        "Tasks x seeds: Seen 2 x 2 (SFT), 1 x 1 (ETO); ALFWorld dev 1 x 1.\n"
        "\n"
        "| | Seen | Shop | Mean | ALFWorld dev |\n"
        "|-|-|-|-|-|\n"
        "| GPT-4 | not run (paper 42.9, note a) | not run (paper 63.2) | not run (paper 53.1) | not run |\n"
        "| SFT | 50.0 [50.0, 50.0] (paper 47.3) | not run | not run (paper 53.2) | not run |\n"
        "| ETO | 25.0 [25.0, 25.0] | not run | not run | not run |\n"
        "| 50 % odd_method & more | not run | not run | not run | 100.0 [100.0, 100.0] |\n"
        "\n"
        "* Note a: Not what it seems. (elsewhere)\n"
        "* Note b: Episodes lost to errors of the environment: ETO on Seen 1 of 2.\n"
    )


def test_episodes_that_the_environment_ended_stand_under_the_table(measure, report):
    """One without a record is known from the other row; under the paper's protocol it has a record of reward 0."""
    whole = measure("sft", "webshop", "test", {"c": [1.0, 0.0], "d": [0.5, 0.5]})
    lost = measure("eto", "webshop", "test", {"c": [1.0, 0.0], "d": [0.5, 0.5]})
    lost = replace(lost, records=lost.records[:-1])
    zero = lost.records[0].model_copy(update={"stop": StopReason.ENV_ERROR})
    note = "Episodes lost to errors of the environment: ETO on Shop"
    for records, count in ((lost.records, 1), ((zero, *lost.records[1:]), 2)):
        text = markdown(cells_of([whole, replace(lost, records=records)], report).reward_table())
        assert f"{note} {count} of 4." in text
    assert "lost to errors" not in markdown(cells_of([whole], report).reward_table())


def test_a_cell_does_not_change_when_others_are_added(measure, report):
    values = {f"t{i}": [i / 9] for i in range(10)}
    one, two = measure("sft", "sciworld", "seen", values), measure("sft", "webshop", "test", values)
    alone, together = (cells_of(ms, report).reward_table() for ms in ([one], [two, one]))
    assert cell(alone, "sft", "seen") == cell(together, "sft", "seen")
    assert cell(together, "sft", "seen").estimate.low < 50 < cell(together, "sft", "seen").estimate.high


def test_every_row_and_column_of_the_paper_is_listed_run_or_not(sft, report):
    table = cells_of([sft], report, CLAIMS).reward_table()
    assert list(table.rows) == list(CLAIMS.rows)
    assert list(table.columns) == list(CLAIMS.columns)
    assert [c.paper for c in table.cells] == [claim.value for claim in CLAIMS.cells() if claim.row in CLAIMS.rows]
    assert len([c for c in table.cells if c.estimate]) == 1


def test_success_is_a_table_of_its_own(shop, sft, report):
    table = cells_of([shop, sft], report).success_table()
    assert (list(table.rows), list(table.columns), table.footnotes) == (["sft"], ["seen", "shop"], ())
    assert [(c.column, c.estimate.mean, c.paper) for c in table.cells] == [
        ("seen", 0.0, None), ("shop", pytest.approx(100 / 6), None),
    ]  # fmt: skip
    assert table.caption.startswith("Success rate in per cent")


def test_a_table_of_what_was_measured_has_no_note_on_a_cell_that_it_lacks(measure, sft, shop, report):
    table = cells_of([sft, shop], report).reward_table(of_paper=False)
    assert list(table.rows) == ["sft"] and list(table.columns) == ["seen", "shop", "mean"]
    assert table.footnotes == ()  # the only note is on GPT-4's cell
    whole = {(c.row, c.column): c for c in cells_of([sft, shop], report).reward_table().cells}
    assert [whole[c.row, c.column] for c in table.cells] == list(table.cells)
    gpt4 = measure("gpt4", "sciworld", "seen", {"a": [0.5]})
    assert [note.mark for note in cells_of([gpt4], report).reward_table(of_paper=False).footnotes] == ["a"]
    other = cells_of([measure("odd", "sciworld", "seen", {"a": [0.5]})], report).reward_table(of_paper=False)
    assert list(other.rows) == ["odd"] and "paper" not in other.caption


def test_a_suite_of_other_environments_prints_none_of_the_papers_empty_columns(measure, sft, report):
    one = cells_of([sft], report).reward_table(["sciworld"])
    assert list(one.columns) == ["seen"] and list(one.rows) == ["gpt4", "sft"] and len(one.footnotes) == 1
    both = cells_of([sft], report).reward_table(["sciworld", "webshop", "alfworld"])
    assert both == cells_of([sft], report).reward_table()
    other = measure("odd", "alfworld", "dev", {"a": [1.0]})
    none = cells_of([other], report).reward_table(["alfworld"])
    assert list(none.columns) == ["alfworld dev"] and list(none.rows) == ["odd"] and none.footnotes == ()
    assert "paper" not in none.caption.split("Environments")[0] and "paper" not in markdown(none).split("\n\n")[1]
    shop = cells_of([measure("sft", "webshop", "test", {"a": [1.0]})], report).reward_table(["webshop"])
    assert list(shop.columns) == ["shop"] and shop.footnotes == ()  # the fact is of another column


def test_latex_is_balanced_and_escaped(measure, report):
    measured = measure("odd", "sciworld", "seen", {"a": [0.5]}, suite="my_suite")
    text = latex(cells_of([measured], report).reward_table())
    begun, ended = re.findall(r"\\begin\{(\w+)\}", text), re.findall(r"\\end\{(\w+)\}", text)
    assert begun == ["table", "tabular"] and ended == begun[::-1]
    assert text.count("{") == text.count("}")
    assert not re.search(r"(?<!\\)[_&#$](?![^\n]*\\\\)", text)
    assert not re.search(r"(?<!\\)%(?!\n)", text)
    assert r"50 \% odd\_method \& more" in text and r"Suite my\_suite" in text
    rows = text[text.index(r"\midrule") : text.index(r"\bottomrule")].strip().splitlines()[1:]
    assert len(rows) == 3
    assert all(len(re.findall(r"(?<!\\)&", row)) == 3 and row.endswith(r"\\") for row in rows)


def test_results_of_two_versions_of_an_environment_are_never_mixed_and_the_one_is_named(measure, report):
    mysql, mariadb = (
        measure(method, "intercode_sql", "test", {"a": [0.5]}, environment=environment)
        for method, environment in (("sft", "MySQL 9.7.4 (rows 1)"), ("eto", "MariaDB 10, non-comparable (rows 2)"))
    )
    with pytest.raises(UserError, match="intercode_sql come from different environments"):
        cells_of([mysql, mariadb], report).reward_table()
    cells = cells_of([replace(mysql, note="Template questions.")], report)
    for make in (MeasuredCells.reward_table, MeasuredCells.success_table):
        assert "Environments: MySQL 9.7.4 (rows 1). Template questions." in make(cells).caption


def test_nothing_measured_is_an_error(measure, report):
    with pytest.raises(UserError, match="nothing was measured"):
        cells_of([], report).reward_table()
    with pytest.raises(UserError, match="eto on sciworld seen has no evaluation records"):
        cells_of([measure("eto", "sciworld", "seen", {})], report).reward_table()


def test_a_row_is_named_if_more_than_a_tenth_of_its_turns_has_a_flaw(measure, sft, report):
    def flawed(measured, **flaws):
        records = tuple(each.model_copy(update={"turns": 10, "flaws": flaws}) for each in measured.records)
        return replace(measured, records=records)

    at_limit, above = flawed(sft, empty=1), flawed(measure("odd", "alfworld", "dev", {"a": [0.5]}), cut=1, no_action=2)
    (note,) = cells_of([at_limit, above], report).reward_table(of_paper=False).footnotes[-1:]
    row = "50 % odd_method & more, ALFWorld dev: 10 % cut at the token limit, 20 % without an action."
    assert note.text.startswith("More than a tenth of the turns were cut") and note.text.endswith(f"episodes. {row}")
    assert not cells_of([at_limit], report).reward_table(of_paper=False).footnotes
