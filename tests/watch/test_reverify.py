"""`coevolve reverify`: a result as it was made agrees with what its actions meet now, and a changed one does not."""

import json
import shutil
from pathlib import Path

import pytest
from builders import relist

from coevolve.config.loading import load_suite
from coevolve.config.recorded import settings_here
from coevolve.config.restriction import as_dict
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import REMADE
from coevolve.pipeline.stage import files_by_name, files_of
from coevolve.pipeline.stages import evaluate
from coevolve.records.episodes import Trajectory
from coevolve.records.provenance import Provenance
from coevolve.settings.protocol import Quirks
from coevolve.shipped import CONFIGS
from coevolve.storage import jsonl, provenance
from coevolve.watch.reverify import remade_job, remade_records

EVALUATED = "tiny/webshop/coevolve/seed0/iter1/eval"
EPISODES, RECORDS = f"{EVALUATED}/episodes.jsonl", f"{EVALUATED}/records.jsonl"
PAIRS = "tiny/webshop/coevolve/seed0/iter1/pairs/target/pairs.jsonl"


@pytest.fixture
def suite(made, tmp_path, monkeypatch):
    """A copy of a suite's results that a test can edit."""
    monkeypatch.chdir(made)
    return shutil.copytree(made / "results/glance", tmp_path / "glance", symlinks=True)


@pytest.fixture
def reverify(coevolve, made, suite):
    """Checks the copy, or a folder or an archive of it; returns the exit status and what was printed."""

    def check(path=suite):
        status, printed, errors = coevolve("reverify", path, "--cache", made / "agreed", "--json")
        if status == 2:
            return status, errors
        return status, json.loads(printed)

    return check


def edit(path, change):
    """Change the lines of a file, and what the provenance beside it says of the file: a careful forgery."""
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line}\n" for line in change(lines)), encoding="utf-8")
    relist(path.parent)


def changed_turn(**values):
    """Changes the second turn of the second episode."""

    def change(lines):
        episode = json.loads(lines[1])
        episode["turns"][1] |= values
        return [lines[0], json.dumps(episode), *lines[2:]]

    return change


def changed_episode(**values):
    return lambda lines: [json.dumps(json.loads(lines[0]) | values), *lines[1:]]


def first_difference(outcome, file):
    return next(each["difference"] for each in outcome["files"] if (each["file"], each["status"]) == (file, "differs"))


def test_a_suite_as_it_was_made_agrees_in_every_file(reverify, suite):
    status, outcome = reverify()
    checks = {each["file"]: each for each in outcome["files"]}
    assert (status, {each["status"] for each in checks.values()}) == (0, {"same"})
    played = {path.relative_to(suite).as_posix() for path in suite.rglob("episodes.jsonl")}
    assert checks.keys() >= played | {RECORDS, PAIRS}
    assert sum(each["turns"] for each in checks.values()) > 100
    assert all(each["context"] == 0 for each in checks.values()), "the policies are here, and so the tokenizers"


@pytest.mark.parametrize(
    ("change", "what", "turn"),
    [
        (changed_turn(observation="Observation:\nnothing"), "observation", 1),
        (changed_turn(text="Action: search[a]"), "action", 1),
        (changed_turn(action="search[a]"), "action", 1),
        (changed_turn(score=0.5), "score", 1),
        (changed_episode(reward=0.5), "reward", 4),
        (changed_episode(stop="step_limit"), "stop", 4),
        (changed_episode(environment="another shop"), "environment", -1),
        (lambda lines: [lines[0], *lines[2:]], "number of episodes in provenance.json", None),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "next episode of the task list", None),
        (lambda lines: [*lines, lines[0]], "records", None),
    ],
)
def test_changed_episodes_are_found_with_their_turn(reverify, suite, change, what, turn):
    edit(suite / EPISODES, change)
    status, outcome = reverify(suite / EVALUATED)
    difference = first_difference(outcome, "episodes.jsonl")
    assert (status, difference["what"], difference["turn"]) == (1, what, turn)


def test_edited_results_are_found_with_their_line_and_other_files_are_hashed(reverify, suite):
    """The inputs of a job that is not made again are those that it read."""
    other = "tiny/webshop/eto/seed0/iter1/eval/episodes.jsonl"
    edit(suite / RECORDS, changed_episode(reward=1.0))
    edit(suite / PAIRS, lambda lines: lines[1:])
    edit(suite / other, changed_turn(token_ids=[5]))
    (suite / "data/webshop/drops.jsonl").write_text("")
    status, outcome = reverify()
    assert status == 1
    assert [first_difference(outcome, file)["what"][:5] for file in (RECORDS, PAIRS)] == ["line ", "line "]
    assert first_difference(outcome, other)["what"] == "token ids"
    assert first_difference(outcome, "data/webshop/drops.jsonl")["what"] == "sha256"
    read = first_difference(outcome, "paper/summary/provenance.json")
    assert read["what"] == "input results/glance/data/webshop/drops.jsonl"


@pytest.mark.parametrize("malformed", ["ends_turn", "answered"])
def test_records_are_made_again_with_the_flaws_of_their_environment(suite, malformed):
    """A message without a call ends the user's turn under `ends_turn`, and is a flaw of the turn otherwise."""
    folder = (suite / EPISODES).parent
    first, *others = jsonl.read(suite / EPISODES, Trajectory)
    turn = first.turns[0].model_copy(update={"text": "Thought: nothing.", "action": None, "truncated": False})
    episodes = [first.model_copy(update={"turns": (turn, *first.turns[1:])}), *others]
    jsonl.write(suite / EPISODES, episodes)
    bfcl = load_suite("smoke_agent_data").envs["bfcl"]
    section = bfcl.model_copy(update={"rules": bfcl.rules.model_copy(update={"malformed": malformed})})
    record = provenance.read(folder / "provenance.json")
    config = settings_here(record.config | {"envs": {"bfcl": section.model_dump(mode="json")}})
    switches = Quirks.model_validate(config["protocols"][record.protocol])
    for needs_actions in (True, False):
        made = evaluate.records(episodes, switches, record.seeds["suite"], 1, needs_actions)
        jsonl.write(suite / RECORDS, made)
        difference = remade_records(folder, record.model_copy(update={"config": config}))
        assert (difference is None) == (needs_actions == (malformed == "answered"))


def test_episodes_that_no_provenance_lists_are_named(reverify, suite):
    record = suite / "tiny/webshop/base/seed0/rollout/target/provenance.json"
    about = json.loads(record.read_text())
    record.write_text(json.dumps(about | {"outputs": {}}))
    (suite / EVALUATED / "provenance.json").unlink()
    status, outcome = reverify(suite / "tiny")
    difference = first_difference(outcome, "webshop/base/seed0/rollout/target/episodes.jsonl")
    assert (status, difference["recorded"]) == (1, "not listed")
    unlisted = {each["file"]: each["how"] for each in outcome["files"] if each["status"] == "unchecked"}
    assert unlisted[EPISODES.removeprefix("tiny/")] == "no provenance.json beside it"


def test_prices_that_a_job_drew_are_drawn_again_from_the_seed_in_its_notes(coevolve, reverify, tmp_path):
    policy, out = "results/glance/tiny/webshop/base/seed0/policy/target", tmp_path / "drawn"
    where = ("--suite", "configs/glance.yaml", "--env", "webshop", "--protocol", "paper", "--root", out)
    assert coevolve("evaluate-model", policy, *where)[0] == 0
    status, outcome = reverify(out)
    found = {Path(each["file"]).name: each for each in outcome["files"]}
    assert (status, found["episodes.jsonl"]["status"], found["episodes.jsonl"]["episodes"]) == (0, "same", 6)
    (record,) = out.glob("*/evaluation/provenance.json")
    about = json.loads(record.read_text())
    assert about["notes"].pop("chance") >= 0 and "drawn in each job" in about["notes"]["environments"][0]
    record.write_text(json.dumps(about))
    status, outcome = reverify(record.parent)
    (episodes, records) = outcome["files"]
    assert (status, episodes["status"], records["status"]) == (0, "unchecked", "same")
    assert episodes["how"].startswith("its prices were drawn from a seed that its provenance lacks")


def test_an_archive_has_what_its_check_reads_but_the_shop_and_the_policies(
    coevolve, reverify, made, tmp_path, monkeypatch
):
    found = {}
    for option in ((), ("--evaluations",)):
        archive = tmp_path / f"{len(option)}.tar.xz"
        monkeypatch.chdir(made)
        assert coevolve("export", "evidence", "--suite", "configs/glance.yaml", "--out", archive, *option)[0] == 0
        monkeypatch.chdir(tmp_path)
        status, outcome = reverify(archive)
        found = {each["file"].removeprefix("results/glance/"): each for each in outcome["files"]}
        assert (status, found[PAIRS]["status"]) == (0, "same")
        assert found["tiny/webshop/base/seed0/rollout/target/episodes.jsonl"]["context"] > 0, "without a tokenizer"
        assert (EPISODES in found, found[RECORDS]["status"]) == ((True, "same") if option else (False, "unchecked"))
    assert {each["status"] for each in found.values()} == {"same"}


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("suites/**/*.yaml")))
def test_a_job_that_is_made_again_has_the_sections_and_inputs_of_the_suites_job(root, monkeypatch, name):
    monkeypatch.chdir(root)
    plan = Plan(load_suite(name))
    first = {job.stage.name: job for job in reversed(plan.jobs()) if job.stage.name in REMADE}
    for stage, planned in first.items():
        inputs = planned.inputs
        config = as_dict(plan.settings(planned))
        values = dict.fromkeys(("config_digest", "code_digest", "commit", "container", "started"), "")
        values |= {
            "stage": stage,
            "wildcards": planned.wildcards,
            "config": settings_here(config),
            "inputs": dict.fromkeys(files_of(inputs), ""),
        }
        values |= {"seeds": {}, "versions": {}, "outputs": {}, "protocol": plan.suite.protocol, "dirty": None}
        job = remade_job(Provenance(**values, seconds=0.0), Path)
        assert as_dict(job.suite) == config, stage
        assert {name: sorted(map(str, files)) for name, files in job.inputs.items()} == {
            name: sorted(files) for name, files in files_by_name(inputs).items()
        }


def test_scores_without_actions_and_folders_without_results_are_one_sentence(reverify, root, tmp_path):
    for path, words in (
        (root / "results/reference/real", "has the scores of a run and not its actions"),
        (tmp_path / "nowhere", "no folder, and no archive that can be read"),
        (root / "docs", "no provenance.json in it"),
    ):
        status, error = reverify(path)
        assert status == 2 and f"{path}: {words}" in error and len(error.splitlines()) == 1
