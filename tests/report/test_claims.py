from pathlib import Path

import pytest
import yaml

from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.report import claims

ROOT = Path(__file__).parents[2]
FILE = ROOT / "configs" / "claims.yaml"
#: The cells of Table 1, typed from the paper: WebShop, ScienceWorld seen and unseen, InterCodeSQL, mean.
TABLE_1 = """
GPT-4 in context          63.2 42.9 38.1 38.5 45.7
GPT-3.5-Turbo in context  62.4  7.9 10.5 37.8 29.7
Llama-2-7B-Chat SFT       59.2 47.3 41.9 30.8 44.8
PPO                       64.2 59.4 51.7 52.4 56.9
RFT                       61.3 71.6 54.3 35.6 55.7
ETO                       63.0 65.6 55.5 51.7 59.0
co-evolving               68.5 72.0 66.3 49.6 64.1
"""


def altered(tmp_path, change):
    raw = yaml.safe_load(FILE.read_text())
    change(raw)
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


def agent_data_rows(raw):
    return raw["success_tables"]["agent_data"]["rows"]


def test_table_1_is_whole():
    table = claims.load(FILE)
    assert list(table.rows) == ["gpt4", "gpt35", "sft", "ppo", "rft", "eto", "coevolve"]
    assert list(table.columns) == ["webshop", "sciworld_seen", "sciworld_unseen", "intercode_sql", "mean"]
    assert table.value("positive_agent", "webshop") == 62.76
    assert table.value("positive_agent", "mean") is None
    assert table.cells()[0].place == "Table 1, In-context, GPT-4, WebShop"


def test_every_printed_mean_is_that_of_its_row():
    for row in claims.load(FILE).rows.values():
        cells = dict(row.cells)
        mean = cells.pop("mean")
        assert sum(cells.values()) / 4 == pytest.approx(mean, abs=0.0501)


def test_cells_are_those_of_the_reading_of_the_paper():
    read = [[float(value) for value in line.split()[-5:]] for line in TABLE_1.split("\n")[1:-1]]
    assert [list(row.cells.values()) for row in claims.load(FILE).rows.values()] == read


def test_every_difference_that_is_stated_is_that_of_its_cells():
    """The text says "on par" of -2.1 points."""
    table = claims.load(FILE)
    stated = {
        name: statement for name, statement in table.statements.items() if isinstance(statement, claims.DifferenceClaim)
    }
    for name, statement in stated.items():
        if name != "intercode_sql_on_par":
            cells = [table.value(method, statement.column) for method in (statement.better, statement.than)]
            assert cells[0] - cells[1] == pytest.approx(statement.value, abs=1e-9)
    assert len(stated) == 7


def test_every_order_that_is_stated_is_that_of_its_cells():
    table = claims.load(FILE)
    for statement in table.statements.values():
        if isinstance(statement, claims.OrderingClaim) and statement.than != "in_context":
            assert table.value(statement.better, statement.column) > table.value(statement.than, statement.column)


def test_statements_name_their_place_and_methods_of_the_kit():
    table = claims.load(FILE)
    recipes = load_suite(ROOT / "configs/suites/smoke.yaml").recipes
    known = set(recipes) | set(table.rows)
    for statement in table.statements.values():
        assert statement.place and statement.text
        assert {getattr(statement, name) for name in ("better", "than", "method") if hasattr(statement, name)} <= known


def test_shares_of_a_method_add_up_to_a_hundred():
    shares = [
        statement for statement in claims.load(FILE).statements.values() if isinstance(statement, claims.ShareClaim)
    ]
    for method in ("eto", "coevolve"):
        own = [s.value for s in shares if (s.method, s.env) == (method, "webshop") and s.rival]
        assert len(own) == 3 and sum(own) == pytest.approx(100.0)


def test_facts_print_the_numbers_they_are_about():
    facts = [fact.text for fact in claims.load(FILE).facts]
    assert "64.8 / 64.4 for GPT-4 and 16.5 / 13.0 for GPT-3.5-Turbo" in facts[0]
    assert "reports 67.4 on WebShop and 73.8 / 65.0 on ScienceWorld" in facts[1]
    assert not any("{" in fact for fact in facts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["rows"]["eto"]["cells"].update(webshop="high"), r"rows\.eto\.cells\.webshop"),
        (lambda raw: raw["rows"]["eto"]["cells"].update(alfworld=1.0), "`alfworld` is not a key of `columns`"),
        (lambda raw: raw["rows"]["eto"].update(note="?"), r"rows\.eto\.note"),
        (lambda raw: raw["facts"][0]["cells"].update(gpt5=["mean"]), "`gpt5` is not a key of `rows`"),
        (lambda raw: raw["columns"]["mean"].update(env="x"), r"columns\.mean.*give `env` and `split`, or neither"),
        (lambda raw: raw.pop("source"), "source"),
        (lambda raw: raw["rows"]["gpt4"]["cells"].update(sciworld_seen=43.0), "gpt4.sciworld_seen.*differ"),
        (lambda raw: raw["facts"][0].update(text="{gpt4.alfworld}"), "`gpt4.alfworld` is not a number"),
        (lambda raw: raw["statements"]["webshop_gain"].update(column="shop"), "`webshop_gain`: `shop` is not a key"),
        (lambda raw: raw["statements"]["webshop_gain"].update(kind="guess"), r"statements\.webshop_gain"),
        (lambda raw: agent_data_rows(raw)["without_rare"].update(against="ful"), "`ful` is not a row"),
        (lambda raw: agent_data_rows(raw)["without_rare"].update(cells={"shop": 1.0}), "`shop` is not a column"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path, change, message):
    path = altered(tmp_path, change)
    with pytest.raises(UserError, match=message) as raised:
        claims.load(path)
    assert str(path) in str(raised.value)
