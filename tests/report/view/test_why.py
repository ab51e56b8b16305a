"""`why`: from a cell of the table to everything behind it, and what is said where the way is broken."""

import contextlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import small_run

from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.pipeline import devices
from coevolve.pipeline.plan import Plan
from coevolve.records.evaluation import EvalRecord
from coevolve.records.pairs import PreferencePair
from coevolve.report import claims, why, why_text
from coevolve.storage import jsonl

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


def ask(query, paper, *overrides):
    plan = Plan(load_suite("configs/glance.yaml", overrides))
    return why.ask(why.find(printed(), query), paper, plan.leaves_provenance, plan.changed_since)


def test_a_cell_leads_to_everything_it_was_made_from(here, paper):
    """As text each result is told once, and as JSON it is whole."""
    answer = ask("table1: Co-evolving, WebShop", paper)
    records = jsonl.read(here / EVAL / "records.jsonl", EvalRecord)
    assert [list(one.records) for one in answer.evidence] == [records] and len(records) == 6
    assert answer.printed.cell.estimate.mean == pytest.approx(100 * answer.evidence[0].mean)
    assert answer.place.startswith("Table 1, Fine-tuning, Llama-2-7B-Chat + Ours, WebShop (arXiv 2511.22254")
    assert answer.chain.results[0].provenance.stage == "evaluate"
    stages = {result.provenance.stage for result in answer.chain.results}
    before = {"data", "prepare", "untrained", "pretrain", "sft"}
    assert stages == before | {"rollout", "pairs", "reference", "train", "evaluate"}
    assert "eto" not in {part for result in answer.chain.results for part in result.folder.split("/")}
    assert "+5.5 on WebShop (section 5.2.2)" in answer.said
    assert all("WebShop" in sentence for sentence in answer.said if "ScienceWorld" in sentence)
    assert answer.broken == ()
    assert why.CellTrace.from_json(answer.to_json()) == answer
    text = why_text.text(answer, HOME)
    for result in answer.chain.results:
        name = re.escape(result.folder.removeprefix(f"{HOME}/"))
        assert len(re.findall(rf"^[| `-]*{name}: {result.provenance.stage},", text, re.MULTILINE)) == 1
        assert result.provenance.code_digest[:8] in text
    assert "paper     68.5: Table 1" in text
    assert text.endswith("all as they were")
    assert records[0].trajectory_id in text


def test_a_few_words_find_a_cell_and_several_or_near_ones_are_listed(made, monkeypatch):
    monkeypatch.chdir(made)
    cells = printed()
    for query, name in (
        ("table1: Co-evolving, WebShop", "table1: Co-evolving, WebShop"),
        ("co-evolving webshop", "table1: Co-evolving, WebShop"),
        ("webshop COEVOLVE", "table1: Co-evolving, WebShop"),
        ("gpt4 webshop", "table1: GPT-4 in context, WebShop"),
        ("eto web", "table1: ETO, WebShop"),
        ("success eto webshop", "table1 (success rate in per cent): ETO, WebShop"),
    ):
        assert why.find(cells, query).name == name
    sentence = r"`in context webshop` fits 2 cells; say which: `table1: GPT-4 in context, WebShop`; `"
    with pytest.raises(UserError, match=sentence):
        why.find(cells, "in context webshop")
    with pytest.raises(UserError, match=r"`coevolving webshp` fits no cell.*`table1: Co-evolving, WebShop`"):
        why.find(cells, "coevolving webshp")


def test_a_cell_that_was_not_run_says_so(here, paper):
    text = why_text.text(ask("gpt4 webshop", paper), HOME)
    assert "measured  not run" in text and "63.2: Table 1, In-context, GPT-4, WebShop" in text


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("paper/table1/table1.json", r"paper/table1/table1.json is not what `table1` wrote"),
        (
            "tiny/webshop/coevolve/seed0/iter1/eval/records.jsonl",
            r"records.jsonl is not what .*paper/table1 was made from .* and what `evaluate` wrote",
        ),
        ("tiny/webshop/base/seed0/policy/target/model.safetensors", r"model.safetensors is not what `sft` wrote"),
        ("data/webshop/explore.jsonl", r"explore.jsonl is not what .* was made from"),
    ],
)
def test_a_changed_or_lost_file_is_one_sentence(here, paper, file, sentence):
    path = Path(HOME, file)
    path.write_bytes(path.read_bytes() + b"\n")
    (broken,) = ask("coevolve webshop", paper).broken
    assert re.search(sentence, broken) and broken.startswith(str(path))
    if not file.startswith("paper"):  # where cells are looked up
        path.unlink()
        assert any(f"{file} is missing" in each for each in ask("coevolve webshop", paper).broken)


def test_ids_are_followed_as_well_as_files(here, paper):
    """A result that was made from other episodes than it names, with every hash set right."""
    folder = here / f"{HOME}/tiny/webshop/coevolve/seed0/iter1/pairs/target"
    pairs = jsonl.read(folder / "pairs.jsonl", PreferencePair)
    jsonl.write(folder / "pairs.jsonl", [pairs[0].model_copy(update={"rejected_id": "f" * 16}), *pairs[1:]])
    broken = ask("coevolve webshop", paper).broken
    assert any("1 chosen or rejected ids match no input episode, such as ffffffffffffffff" in each for each in broken)


def test_episodes_that_a_training_plays_are_its_own(here, paper):
    """PPO plays with weights that are not saved; the pairs of IPR name explorations beside them."""
    shutil.rmtree(here / f"{HOME}/paper/table1")
    plan = Plan(load_suite("configs/glance.yaml", ["methods=[sft,ppo,ipr]"]))
    (here / "configs/glance.yaml").write_text(f"{small_run.SUITE}methods: [sft, ppo, ipr]\n")
    small_run.make(plan, f"{HOME}/paper/table1/table1.json")
    for method, file in (("ppo", "policy/target/episodes.jsonl"), ("ipr", "pairs/target/explored.jsonl")):
        assert list(here.glob(f"{HOME}/tiny/webshop/{method}/seed0/iter1/{file}"))
        assert ask(f"{method} webshop", paper, "methods=[sft,ppo,ipr]").broken == ()


@pytest.mark.parametrize(
    ("override", "stale"),
    [("dpo.max_grad_norm=0.25", {"train"}), ("rollout.max_new_tokens=25", {"rollout", "evaluate"})],
)
def test_a_setting_of_today_that_a_result_was_not_made_with_is_stale(here, paper, override, stale):
    answer = ask("coevolve webshop", paper, override)
    named = [
        re.match(r"stage `(\w+)` is stale: its settings changed after it made results/glance/", each)
        for each in answer.broken
    ]
    assert {each[1] for each in named} == stale and len(named) == len(stale)
    assert "NOT as they were:" in why_text.text(answer, HOME)


def test_a_result_of_other_code_is_stale(here, paper):
    """As a job leaves it that ran after a branch was switched, and before it was switched back."""
    record = here / EVAL / "provenance.json"
    record.write_text(re.sub(r'("code_digest": ")\w{4}', r"\g<1>0000", record.read_text()))
    (sentence,) = ask("coevolve webshop", paper).broken
    assert sentence == f"stage `evaluate` is stale: its code changed after it made {EVAL}; run the suite again."
    table = here / HOME / "paper/table1/provenance.json"
    table.write_text(re.sub(r'("code_digest": ")\w{4}', r"\g<1>0000", table.read_text()))
    assert any("stage `table1` is stale: its code" in each for each in ask("coevolve webshop", paper).broken)


def test_a_job_that_the_suite_no_longer_has_is_stale(here, paper):
    other = "recipes.failure_agent_first.learns=preference"  # a row that extends this one, and needs pairs
    answer = ask("coevolve webshop", paper, "recipes.coevolve.learns=selected", other)
    assert any(each.startswith("stage `train` is stale: its settings") for each in answer.broken)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_missing_provenance_is_a_sentence(here, paper, coevolve):
    (here / EVAL / "provenance.json").unlink()
    answer = ask("coevolve webshop", paper)
    assert answer.broken == (
        f"{EVAL}/provenance.json is missing; it should list {EVAL}/records.jsonl; run the stage that makes it again.",
    )
    assert "coevolve/seed0/iter1/eval: no provenance" in why_text.text(answer, HOME)
    (here / HOME / "tiny/webshop/base/seed0/policy/target/provenance.json").unlink()
    status, printed, _ = coevolve("why", "--suite", "glance", "table1: SFT, WebShop")
    assert status == 1 and "policy/target/provenance.json is missing; it should list" in printed


def test_a_provenance_that_lists_nothing_is_a_sentence(here, paper):
    edit(here / EVAL / "provenance.json", outputs={})
    assert ask("coevolve webshop", paper).broken == (
        f"{EVAL}/provenance.json does not list {EVAL}/records.jsonl; run the stage that makes it again.",
    )
    edit(here / HOME / "paper/table1/provenance.json", inputs={}, outputs={})
    broken = ask("coevolve webshop", paper).broken
    assert any(f"paper/table1/provenance.json does not list {EVAL}/records.jsonl" in each for each in broken)
    assert any("table1.json is not what `table1` wrote" in each for each in broken)


def test_a_provenance_that_lists_a_device_a_pipe_or_a_folder_elsewhere_opens_none_of_them(here, paper, coevolve):
    made = json.loads((here / EVAL / "provenance.json").read_text())
    elsewhere = {"/dev/zero": "0" * 64, "/root": "0" * 64, "../elsewhere": "0" * 64}
    edit(here / EVAL / "provenance.json", inputs=made["inputs"] | elsewhere)
    broken = ask("coevolve webshop", paper).broken
    sentence = f"is what {EVAL} was made from, but outside of the project and no file of the suite; it was not read."
    assert [each for each in broken if "outside" in each] == [f"{path} {sentence}" for path in elsewhere]
    os.mkfifo(here / "pipe")
    edit(here / EVAL / "provenance.json", inputs=made["inputs"] | {"pipe": "0" * 64})
    status, _, error = coevolve("why", "--suite", "glance", "coevolve", "webshop")
    assert status == 2 and "pipe: cannot be read (not a regular file); name a regular file." in error


@pytest.mark.parametrize("content", ["", "{}", "null"])
@pytest.mark.parametrize("folder", [EVAL, f"{HOME}/paper/table1"])
def test_an_emptied_provenance_is_a_sentence(here, folder, content, coevolve):
    (here / folder / "provenance.json").write_text(content)
    status, _, error = coevolve("why", "--suite", "glance", "coevolve", "webshop")
    assert status == 2 and f"{folder}/provenance.json: not a provenance of this version of the kit" in error


def test_emptied_records_and_policies_are_sentences(here, paper):
    (here / EVAL / "records.jsonl").write_text("")
    answer = ask("coevolve webshop", paper)
    assert len(answer.broken) == 1 and "records.jsonl is not what" in answer.broken[0]
    assert f"{EVAL}/records.jsonl: 0 records\n" in why_text.text(answer, HOME)
    policy = f"{HOME}/tiny/webshop/coevolve/seed0/iter1/policy/target/policy.json"
    (here / policy).write_text("")
    with pytest.raises(UserError, match=f"{policy}: missing or unreadable"):
        ask("coevolve webshop", paper)
    (here / HOME / "paper/table1/table1.json").write_text("[")
    with pytest.raises(UserError, match=r"table1\.json: not readable as JSON"):
        printed()


def test_what_no_provenance_says_is_called_unknown_and_different_hardware_is_named(here, paper):
    assert f"; {devices.processor()}\n" in why_text.text(ask("coevolve webshop", paper), HOME)
    for path in here.rglob("provenance.json"):
        edit(path, commit="", dirty=None, hardware=None)
    edit(here / EVAL / "provenance.json", hardware="Another CPU, 8 x NVIDIA H100 80GB HBM3")
    text = why_text.text(ask("coevolve webshop", paper), HOME)
    assert re.search(r"commit unknown, changes unknown; .*; hardware unknown \(\d+ results\)\n", text)
    assert "; Another CPU, 8 x NVIDIA H100 80GB HBM3 (1 results)\n" in text


def test_without_a_report_it_says_what_to_make(tmp_path):
    with pytest.raises(UserError, match="no tables; make the suite's tables first"):
        why.cells(tmp_path)
