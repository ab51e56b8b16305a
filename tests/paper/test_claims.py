import re
from pathlib import Path

import pytest
import yaml

from coevolve.errors import UserError
from coevolve.paper import claims

ROOT = Path(__file__).parents[2]
FILE = ROOT / "configs" / "claims.yaml"
SPEC = ROOT.parent / "shared" / "SPEC.md"


def altered(tmp_path, change):
    raw = yaml.safe_load(FILE.read_text())
    change(raw)
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


def test_table_1_is_whole():
    table = claims.load(FILE)
    assert list(table.rows) == ["gpt4", "gpt35", "sft", "ppo", "rft", "eto", "coevolve"]
    assert list(table.columns) == ["webshop", "sciworld_seen", "sciworld_unseen", "intercode_sql", "mean"]
    assert len(table.claims()) == 35
    assert table.value("coevolve", "sciworld_unseen") == 66.3
    assert table.value("positive_agent", "webshop") is None
    assert table.claims()[0].place == "Table 1, In-context, GPT-4, WebShop"


def test_every_printed_mean_is_that_of_its_row():
    for row in claims.load(FILE).rows.values():
        cells = dict(row.cells)
        mean = cells.pop("mean")
        assert sum(cells.values()) / 4 == pytest.approx(mean, abs=0.0501)


def test_cells_are_those_of_the_reading_of_the_paper():
    if not SPEC.exists():
        pytest.skip("the reading of the paper is not beside this clone")
    read = [
        [float(value) for value in re.findall(r"\| (\d+\.\d) ", line)]
        for line in SPEC.read_text().splitlines()
        if re.match(r"\|[^|]+(\| \d+\.\d ){5}\|", line)
    ]
    assert [list(row.cells.values()) for row in claims.load(FILE).rows.values()] == read


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["rows"]["eto"]["cells"].update(webshop="high"), r"rows\.eto\.cells\.webshop"),
        (lambda raw: raw["rows"]["eto"]["cells"].update(alfworld=1.0), "`alfworld` is no key of `columns`"),
        (lambda raw: raw["rows"]["eto"].update(note="?"), r"rows\.eto\.note"),
        (lambda raw: raw["facts"][0]["cells"].update(gpt5=["mean"]), "`gpt5` is no key of `rows`"),
        (lambda raw: raw["columns"]["mean"].update(env="x"), r"columns\.mean.*give `env` and `split`, or neither"),
        (lambda raw: raw.pop("source"), "source"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path, change, message):
    path = altered(tmp_path, change)
    with pytest.raises(UserError, match=message) as raised:
        claims.load(path)
    assert str(path) in str(raised.value)


def test_absent_and_unreadable_files_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        claims.load(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(UserError, match="not readable as YAML"):
        claims.load(tmp_path / "bad.yaml")
