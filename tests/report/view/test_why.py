"""`why`: from a cell of the table to everything behind it, and what is said where the way is broken."""

import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest

from coevolve.errors import UserError
from coevolve.report import claims, why, why_text
from coevolve.storage import jsonl
from coevolve.types import EvalRecord, PreferencePair

HOME = "results/glance"
EVAL = f"{HOME}/tiny/webshop/coevolve/seed0/iter1/eval"


@pytest.fixture
def here(made, tmp_path):
    """A copy of the finished suite, to work in and to break."""
    shutil.copytree(made, tmp_path / "here", symlinks=True)
    with contextlib.chdir(tmp_path / "here"):
        yield tmp_path / "here"


@pytest.fixture
def paper():
    return claims.load("configs/claims.yaml")


def printed():
    return why.cells(Path(HOME))


def ask(query, paper):
    return why.ask(why.find(printed(), query), paper)


def test_a_cell_leads_to_everything_it_was_made_from(here, paper):
    answer = ask("table1: Co-evolving, WebShop", paper)
    records = jsonl.read(here / EVAL / "records.jsonl", EvalRecord)
    assert [list(one.records) for one in answer.evidence] == [records]
    assert answer.printed.cell.estimate.mean == pytest.approx(100 * answer.evidence[0].mean)
    assert answer.place.startswith("Table 1, Fine-tuning, Llama-2-7B-Chat + Ours, WebShop (arXiv 2511.22254")
    assert answer.chain.results[0].provenance.stage == "evaluate"
    stages = {result.provenance.stage for result in answer.chain.results}
    before = {"data", "prepare", "untrained", "pretrain", "sft"}
    assert stages == before | {"rollout", "pairs", "reference", "train", "evaluate"}
    assert "eto" not in {part for result in answer.chain.results for part in result.folder.split("/")}
    assert "+5.5 on WebShop (section 5.2.2)" in answer.said
    assert not any("ScienceWorld" in sentence for sentence in answer.said)
    assert answer.broken == ()


def test_as_text_each_result_is_told_once(here, paper):
    answer = ask("coevolve webshop", paper)
    text = why_text.text(answer, HOME)
    for result in answer.chain.results:
        name = re.escape(result.folder.removeprefix(f"{HOME}/"))
        assert len(re.findall(rf"^[| `-]*{name}: {result.provenance.stage},", text, re.MULTILINE)) == 1
        assert result.provenance.code_digest[:8] in text
    assert "paper     68.5: Table 1" in text
    assert text.endswith("all as they were")
    assert answer.evidence[0].records[0].trajectory_id in text


def test_as_json_it_is_whole(here, paper):
    answer = ask("coevolve webshop", paper)
    assert why.CellTrace.from_json(answer.to_json()) == answer
    assert len(json.loads(answer.to_json())["evidence"][0]["records"]) == 6


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("table1: Co-evolving, WebShop", "table1: Co-evolving, WebShop"),
        ("co-evolving webshop", "table1: Co-evolving, WebShop"),
        ("webshop COEVOLVE", "table1: Co-evolving, WebShop"),
        ("gpt4 sciworld_seen", "table1: GPT-4 in context, ScienceWorld seen"),
        ("eto web", "table1: ETO, WebShop"),
        ("success eto webshop", "table1 (success rate in per cent): ETO, WebShop"),
    ],
)
def test_a_few_words_find_a_cell(here, query, name):
    assert why.find(printed(), query).name == name


def test_several_cells_are_listed_and_so_are_near_ones(here):
    with pytest.raises(UserError, match=r"`eto sciworld` fits 2 cells; say which: `table1: ETO, ScienceWorld seen`; `"):
        why.find(printed(), "eto sciworld")
    with pytest.raises(UserError, match=r"`coevolving webshp` fits no cell.*`table1: Co-evolving, WebShop`"):
        why.find(printed(), "coevolving webshp")


def test_a_cell_that_was_not_run_says_so(here, paper):
    text = why_text.text(ask("gpt4 webshop", paper), HOME)
    assert "measured  not run" in text and "63.2: Table 1, In-context, GPT-4, WebShop" in text


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (f"{HOME}/paper/table1/table1.json", r"paper/table1/table1.json is not what `table1` wrote"),
        (
            f"{EVAL}/records.jsonl",
            r"records.jsonl is not what .*paper/table1 was made from .* and what `evaluate` wrote",
        ),
        (
            f"{HOME}/tiny/webshop/base/seed0/policy/target/model.safetensors",
            r"model.safetensors is not what `sft` wrote",
        ),
        (f"{HOME}/data/webshop/explore.jsonl", r"explore.jsonl is not what .* was made from"),
    ],
)
def test_a_changed_file_is_one_sentence(here, paper, file, sentence):
    path = here / file
    path.write_bytes(path.read_bytes() + b"\n")
    broken = ask("coevolve webshop", paper).broken
    assert len(broken) == 1
    assert re.search(sentence, broken[0]) and broken[0].startswith(file)


def test_a_lost_file_is_one_sentence(here, paper):
    (here / f"{HOME}/tiny/webshop/base/seed0/rollout/target/episodes.jsonl").unlink()
    broken = ask("coevolve webshop", paper).broken
    assert any("rollout/target/episodes.jsonl is missing" in sentence for sentence in broken)


def test_ids_are_followed_as_well_as_files(here, paper):
    """A result that was made from other episodes than it names, with every hash set right."""
    folder = here / f"{HOME}/tiny/webshop/coevolve/seed0/iter1/pairs/target"
    pairs = jsonl.read(folder / "pairs.jsonl", PreferencePair)
    jsonl.write(folder / "pairs.jsonl", [pairs[0].model_copy(update={"rejected_id": "f" * 16}), *pairs[1:]])
    broken = ask("coevolve webshop", paper).broken
    assert any("1 sides of pairs are no episodes it was made from, such as ffffffffffffffff" in each for each in broken)


def test_without_a_report_it_says_what_to_make(tmp_path):
    with pytest.raises(UserError, match="no tables; make the suite's tables first"):
        why.cells(tmp_path)
