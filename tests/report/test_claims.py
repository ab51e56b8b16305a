"""What the statements of the claims refer to, and what is refused; numbers: tests/config/test_paper_numbers.py."""

from pathlib import Path

import pytest
import yaml

from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.report import claims

ROOT = Path(__file__).parents[2]
FILE = ROOT / "configs" / "claims.yaml"


def altered(tmp_path, change):
    raw = yaml.safe_load(FILE.read_text())
    change(raw)
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


def agent_data_rows(raw):
    return raw["success_tables"]["agent_data"]["rows"]


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
