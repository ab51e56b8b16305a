"""The page on adding a table is true: in a copy of the kit its product is made and listed."""

import shutil

import pytest
from small_run import SUITE

from coevolve.records.evaluation import EvalRecord
from coevolve.storage import jsonl

RUNS, LIST = "coevolve/pipeline/product_runs.py", "coevolve/pipeline/products.py"


@pytest.fixture(scope="module")
def added(read, kit, made):
    """A copy of the kit with the finished suite and the page's table."""
    kit.write("configs/glance.yaml", SUITE)
    shutil.copytree(made / "results", kit.folder / "results", dirs_exist_ok=True)
    function, line = read("add_a_table").blocks("python")
    kit.edit(RUNS, "def _final(job", f"{function}\n\ndef _final(job")
    kit.edit(LIST, ")  # fmt: skip\nABLATION", f"    {line.strip()},\n)  # fmt: skip\nABLATION")
    return kit


def test_it_is_made_and_listed(read, added):
    made, listed = (command.replace("smoke", "glance") for command in read("add_a_table").commands)
    added.shell(made)
    heads, _, *rows = (added.folder / "results/endings/endings.md").read_text().splitlines()
    ends = [cell.strip() for cell in heads.strip("|").split("|")][2:]
    counts = {row.split("|")[1].strip(): sum(map(int, row.strip("|").split("|")[2:])) for row in rows}
    records = jsonl.read(added.folder / "results/glance/tiny/webshop/base/seed0/eval/records.jsonl", EvalRecord)
    assert counts["sft"] == len(records) and {record.stop.value for record in records} <= {*ends}
    assert "endings" in added.shell(listed)


def test_what_it_adds_keeps_to_the_style(added):
    for check in (("check",), ("format", "--check")):
        added.run("ruff", *check, RUNS, LIST)
