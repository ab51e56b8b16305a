"""A job refuses code that is not the plan's, and inputs that are not as their stage wrote them."""

import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest
from command_line import exit_status, stage_command
from small_run import make

from coevolve.config.loading import load_suite
from coevolve.config.machine import Shards
from coevolve.pipeline.job_file import JobFile
from coevolve.pipeline.plan import Plan
from coevolve.storage import provenance

HOME = "results/glance"
EVAL = f"{HOME}/tiny/webshop/coevolve/seed0/iter1/eval"
RECORDS = f"{EVAL}/records.jsonl"
EPISODES = f"{HOME}/tiny/webshop/base/seed0/rollout/target/episodes.jsonl"
FIGURE3 = ("figure3", {})
ON_ENV = {"env": "webshop"}
PAIRS = ("pairs", {"model": "tiny", "branch": "coevolve/seed0/iter1", "agent": "target", **ON_ENV})


@pytest.fixture(scope="module")
def finished(made, tmp_path_factory):
    """A copy of the finished suite, that this module's tests break and mend."""
    return shutil.copytree(made, tmp_path_factory.mktemp("broken") / "run", symlinks=True)


@pytest.fixture
def here(finished, tmp_path):
    """The finished suite as the working folder; each test's edits are undone."""
    kept = shutil.copytree(finished / "results", tmp_path / "results", symlinks=True)
    with contextlib.chdir(finished):
        yield finished
    for folder in ("results", "elsewhere", "out"):
        shutil.rmtree(finished / folder, ignore_errors=True)
    shutil.copytree(kept, finished / "results", symlinks=True)


def plan():
    return Plan(load_suite("configs/glance.yaml"))


def command(job, *options, **replaced):
    """The command of a person's job, to a folder of its own, with the inputs of the plan; `replaced` ones by name."""
    return stage_command(job, "glance", "out", plan().require(*job).inputs | replaced, options)


def planned(job, **changes):
    """The command of a planned job as the DAG would give it, to a folder of its own, with changes of its file."""
    file = JobFile.of(plan(), plan().require(*job))
    file.model_copy(update={"out": "out", **changes}).write(Path("planned.json"))
    return "job", "planned.json"


@pytest.fixture
def refused(capsys):
    """Runs a command of a job and gives its sentence; it must end with status 2 and leave nothing."""

    def run(words):
        assert exit_status(*words) == 2
        assert not Path("out").exists()
        sentence = capsys.readouterr().err.strip().splitlines()[-1]
        assert sentence.startswith("coevolve: ")
        return sentence

    return run


def test_a_job_of_the_plan_runs_and_a_job_of_other_code_is_refused(here, refused):
    sentence = refused(planned(FIGURE3, code_digest="0"))
    assert "stage `figure3`: its code changed after the run was planned; run the same snakemake" in sentence
    assert exit_status(*planned(FIGURE3)) == 0


def test_a_planned_job_has_the_settings_of_its_plan_whatever_the_suite_says_since(here):
    words, config = planned(FIGURE3), plan().fingerprint(plan().require(*FIGURE3)).partition("-")[0]
    suite = Path("configs/glance.yaml")
    kept = suite.read_text()
    suite.write_text(f"{kept}looks: [1, 2]\n")
    try:
        assert plan().fingerprint(plan().require(*FIGURE3)).partition("-")[0] != config
        assert exit_status(*words) == 0
    finally:
        suite.write_text(kept)
    assert provenance.read(Path("out", provenance.NAME)).config_digest == config


def test_a_job_of_another_version_of_the_kit_is_refused(here, refused):
    words = planned(FIGURE3)
    file = Path(words[1])
    file.write_text(file.read_text().replace('"result":', '"place":'))
    assert "planned.json: not a job of this version of the kit; run the same snakemake command" in refused(words)


def edited(path):
    """A run's rewards set by hand."""
    lines = [json.loads(line) | {"reward": 1.0} for line in Path(path).read_text().splitlines()]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def duplicated(path):
    return Path(path).read_text() * 2


def without_the_last(path):
    return "".join(Path(path).read_text().splitlines(keepends=True)[:-1])


@pytest.mark.parametrize("change", [edited, duplicated])
@pytest.mark.parametrize(("path", "job"), [(RECORDS, FIGURE3), (EPISODES, PAIRS)], ids=["records", "episodes"])
def test_an_input_that_was_changed_by_hand_is_refused(here, refused, change, path, job):
    Path(path).write_text(change(path))
    sentence = refused(command(job))
    assert f"{path}: the file was changed: its sha256 is" in sentence and "but stage `" in sentence
    assert f"delete {path} and run the suite again; `coevolve status` prints the command" in sentence


def test_an_input_that_its_provenance_does_not_list_is_refused(here, refused):
    record = Path(EVAL, "provenance.json")
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"outputs": {}}))
    assert f"{RECORDS}: the provenance.json beside it does not list this file; delete" in refused(command(FIGURE3))
    record.write_text("")
    assert f"{EVAL}/provenance.json: not a provenance of this version of the kit" in refused(command(FIGURE3))


def test_a_planned_job_needs_the_provenance_and_a_copy_by_hand_does_not(here, refused):
    Path(EVAL, "provenance.json").unlink()
    sentence = refused(planned(FIGURE3))
    assert f"{RECORDS}: no provenance.json beside it; delete {RECORDS} and run" in sentence
    assert exit_status(*command(FIGURE3)) == 0


ON_POLICY = {"model": "tiny", "agent": "target", **ON_ENV}
ITERATION = {**ON_POLICY, "branch": "eto/seed0/iter1"}


@pytest.mark.parametrize(
    ("job", "name", "options"),
    [
        (("reference", {**ON_POLICY, "branch": "base/seed0", "of": "experts_target"}), "policy", ()),
        (("train", ITERATION), "reference", ("--set", "dpo.precompute_reference=false")),
        (("gradients", ITERATION), "policy", ()),
        (("gradients", ITERATION), "reference", ("--set", "dpo.precompute_reference=false")),
    ],
)
def test_weights_that_are_not_those_of_their_policy_are_refused(here, refused, job, name, options):
    inputs = plan().require(*job).inputs
    policy = Path("elsewhere")
    shutil.copytree(Path(str(inputs.get(name, inputs.get("start")))).parent, policy)
    weights = policy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    scores = {"scores": []} if options else {}
    sentence = refused(command(job, *options, **{name: "elsewhere/policy.json"}, **scores))
    assert re.search("elsewhere: its files hash to .*; rerun the stage that made the policy", sentence)


def copied(path):
    """A copy that no provenance covers."""
    target = Path("elsewhere", Path(path).relative_to("results"))
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(path, target))


def test_a_record_that_stands_twice_is_refused_where_no_provenance_covers_it(here, refused):
    copies = {file.path: copied(file.path) for file in plan().require(*FIGURE3).inputs["records"]}
    path = copies[RECORDS]
    path.write_text(duplicated(path))
    sentence = refused(command(FIGURE3, "--root", "elsewhere"))
    assert f"{path}: line 7 repeats the EvalRecord of line 1; delete" in sentence


def test_an_episode_that_stands_twice_is_refused_whatever_its_reward(here, refused):
    path = copied(EPISODES)
    first = json.loads(path.read_text().splitlines()[0]) | {"reward": 0.5, "turns": []}
    path.write_text(f"{path.read_text()}{json.dumps(first)}\n")
    assert "repeats the Trajectory of line 1; delete" in refused(command(PAIRS, target=str(path)))


@pytest.mark.parametrize("job", [("data", ON_ENV), ("rollout", {**PAIRS[1], "branch": "base/seed0"})])
@pytest.mark.parametrize("file", ["shop", "goals.jsonl"])
def test_a_flipped_byte_in_the_prepared_shop_is_refused(here, refused, job, file):
    target = Path(HOME, "prepared/webshop", file)
    largest = max((p for p in target.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size, default=target)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    assert f"{target}: the file was changed" in refused(command(job))
    largest.unlink()
    assert f"{target}: the file was changed" in refused(command(job))


@pytest.mark.parametrize("change", [without_the_last, duplicated])
def test_parts_with_too_few_or_too_many_episodes_are_refused(here, capsys, change):
    divided = Plan(load_suite("configs/glance.yaml"), shards=Shards(rollout=2, evaluate=1))
    job = ("rollout", {**PAIRS[1], "branch": "base/seed0"})
    parts = divided.require(*job).inputs["parts"]
    for part in parts:
        make(divided, part)
    paths = [copied(part) for part in parts]
    if change is without_the_last:
        paths[0].write_text(without_the_last(paths[0]))
    else:
        paths.append(Path(shutil.copy(paths[0], paths[0].with_name("again.jsonl"))))
    inputs = {"tasks": divided.require(*job).inputs["tasks"], "parts": paths}
    assert exit_status(*stage_command(job, "glance", "out", inputs)) == 2
    assert not Path("out").exists()
    assert re.search(r"the parts hold \d episodes of task `[^`]+`, not \d; delete `parts`", capsys.readouterr().err)
