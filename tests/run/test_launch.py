"""The command line over several processes: what one learns, whoever fails, and who writes."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from builders import episode, pair, turn
from command_line import stage_command
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from coevolve.chat.chat_template import Renderer
from coevolve.errors import UserError
from coevolve.pipeline import launch
from coevolve.pipeline.launch import Launch
from coevolve.policies import loading
from coevolve.records.pairs import PairKind
from coevolve.storage import files, jsonl
from coevolve.train import policy_io, reference_logps, tiny_model
from coevolve.train.settings import TinyArchitecture

LAUNCHES = ("ddp", "zero2", "zero3")
VARIANTS = {
    "full": [],
    "lora": ["models.tiny.lora={rank: 2, alpha: 4, dropout: 0.0, target_modules: all-linear}"],
    "reference on the fly": ["dpo.precompute_reference=false"],
}
WORDS = ["look", "around", "open", "the", "door", "to", "kitchen", "pick", "up", "red", "apple", "focus", "box"]
SETTINGS = {"epochs": 2, "batch_size": 4, "micro_batch": 1, "save_steps": 2, "max_grad_norm": 0.5, "warmup": 0.1}
RATES = {"sft": "sft.learning_rate=0.002", "train": "dpo.learning_rate=[0.0005]"}
BRANCHES = {"sft": "base/seed0", "train": "coevolve/seed0/iter1"}


def words(number, count):
    return " ".join(WORDS[(number * 7 + k * (number + 3)) % len(WORDS)] for k in range(count))


def trajectory(number):
    turns = (turn("look", words(number, 3), text=words(number + k, 4)) for k in range(2))
    name = f"sciworld/lifespan/{number}"
    return episode(name, 1.0, turns, agent="expert", prompt=words(number, 6))


def preference(number):
    kind = list(PairKind)[number % 3]
    return pair(trajectory(number), trajectory(number + 5), kind, lambda_sft=0.1 * number)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A policy with matrices large enough for ZeRO-3 to divide, trajectories and pairs; 9 fill 3 steps unevenly."""
    home = tmp_path_factory.mktemp("inputs")
    wide = TinyArchitecture(vocab_size=300, hidden_size=384, layers=1, heads=2, intermediate_size=400)
    tiny_model.build(wide, context=96, texts=[words(n, 9) for n in range(20)], seed=1, out=home / "policy", name="tiny")
    jsonl.write(home / "sft.jsonl", [trajectory(number) for number in range(9)])
    jsonl.write(home / "pairs.jsonl", [preference(number) for number in range(9)])
    renderer = Renderer(loading.load_tokenizer(home / "policy"))
    sides = [(each.prompt, side) for each in map(preference, range(9)) for side in (each.chosen, each.rejected)]
    rows = reference_logps.without_prefixes(renderer.render(*side).input_ids for side in sides)
    scores = reference_logps.score(policy_io.load(home / "policy"), rows, lambda done, total: None)
    reference_logps.write(home / "scores.safetensors", rows, scores)
    policy = home / "policy/policy.json"
    return {
        "sft": {"start": [policy], "experts": [home / "sft.jsonl"]},
        "train": {"start": [policy], "pairs": [home / "pairs.jsonl"]},
        "before": {"scores": [home / "scores.safetensors"]},
        "on the fly": {"reference": [policy]},
    }


@pytest.fixture
def command(inputs, root):
    """The command line of a stage, without a launch."""

    def build(stage, out, *settings):
        section = "sft" if stage == "sft" else "dpo"
        given = [f"{section}.{key}={value}" for key, value in SETTINGS.items()]
        given += [RATES[stage], "dpo.beta=[0.1]", "models.tiny.context=96", *settings]
        options = [part for setting in given for part in ("--set", setting)]
        on = {"model": "tiny", "env": "sciworld", "branch": BRANCHES[stage], "agent": "target"}
        held_to = "on the fly" if "dpo.precompute_reference=false" in settings else "before"
        files = inputs[stage] | (inputs[held_to] if stage == "train" else {})
        suite = root / "configs/suites/smoke.yaml"
        return [sys.executable, "-m", "coevolve", *stage_command((stage, on), suite, out, files, options)]

    return build


@pytest.fixture
def environment(root):
    return {**os.environ, "ACCELERATE_USE_CPU": "1", "PYTHONPATH": str(root)}


def launched(root, kind, processes=2):
    return ["--processes", str(processes), "--launch", str(root / f"configs/accelerate/{kind}.yaml")]


def notes(out):
    return json.loads((out / "provenance.json").read_text())["notes"]


def curve(out):
    return [step["loss"] for step in notes(out)["history"]]


def approximately(numbers):
    return {name: number if number is None else pytest.approx(number, rel=1e-5) for name, number in numbers.items()}


def run(command, environment):
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "variant"), [("sft", "full"), ("train", "full"), ("train", "lora"), ("train", "reference on the fly")]
)
def test_two_processes_learn_what_one_learns(stage, variant, command, environment, root, tmp_path):
    settings = VARIANTS[variant]
    alone = run(command(stage, tmp_path / "alone", *settings), environment)
    assert alone.returncode == 0, alone.stderr
    one = loading.load_model(tmp_path / "alone").state_dict()
    assert "launch" not in notes(tmp_path / "alone")
    for kind in LAUNCHES:
        out = tmp_path / kind
        done = run([*command(stage, out, *settings), *launched(root, kind)], environment)
        assert done.returncode == 0, done.stderr
        assert curve(out) == pytest.approx(curve(tmp_path / "alone"), rel=1e-5)
        gold = notes(tmp_path / "alone").get("gold", {})
        assert bool(gold) == (stage == "train")
        assert (gold.get("before") is None) == (stage == "sft" or variant == "reference on the fly")
        assert notes(out).get("gold", {}) == approximately(gold)
        two = loading.load_model(out).state_dict()
        assert two.keys() == one.keys()
        for name, tensor in one.items():
            torch.testing.assert_close(two[name], tensor, rtol=0, atol=1e-5)
        file = files.sha256(root / f"configs/accelerate/{kind}.yaml")
        assert notes(out)["launch"] == {"processes": 2, "nodes": 1, "file": file}
    assert {path.name for path in tmp_path.iterdir()} == {"alone", *LAUNCHES}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAUNCHES)
def test_one_killed_process_ends_all_and_the_next_run_goes_on(kind, command, environment, root, tmp_path):
    line = [*command("train", tmp_path / "out", "dpo.epochs=8"), *launched(root, kind)]
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) as parent:
        while not list(tmp_path.glob(".work-out/*/checkpoint-*/whole")):
            assert parent.poll() is None, parent.stderr.read()
            time.sleep(0.01)
        ranks = [child for child in psutil.Process(parent.pid).children() if "--threads" in child.cmdline()]
        next(child for child in ranks if child.environ()["RANK"] == "1").send_signal(signal.SIGKILL)
        stderr = parent.stderr.read()
    assert parent.returncode == 2, stderr
    assert stderr.count("coevolve: ") == 1 and "killed by SIGKILL" in stderr.splitlines()[-1]
    assert not [child for child in ranks if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not (tmp_path / "out").exists()
    # DeepSpeed's own folders: it is really there, on CPUs too.
    assert bool(list(tmp_path.glob(".work-out/*/checkpoint-*/global_step*"))) == (kind != "ddp")
    resumed = run(line, environment)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stderr.count("resuming from checkpoint-") == 1
    assert (
        run([*command("train", tmp_path / "whole", "dpo.epochs=8"), *launched(root, kind)], environment).returncode == 0
    )
    assert curve(tmp_path / "out") == curve(tmp_path / "whole")
    assert files.sha256(tmp_path / "out/model.safetensors") == files.sha256(tmp_path / "whole/model.safetensors")


def test_a_rank_that_starts_after_the_result_was_written_ends(command, environment, tmp_path):
    """Without a pair the ranks share no computation, so rank 0 does not wait for the others in it."""
    out, empty = tmp_path / "out", tmp_path / "empty.jsonl"
    empty.touch()
    line = [f"pairs={empty}" if word.startswith("pairs=") else word for word in command("train", out)]
    launch_of_two = {**environment, "WORLD_SIZE": "2", "COEVOLVE_LAUNCH_ID": "launch"}
    ranks = [subprocess.Popen(line, env={**launch_of_two, "RANK": "0"})]
    try:
        while not out.exists():
            assert not ranks[0].poll()
            time.sleep(0.01)
        ranks.append(subprocess.Popen(line, env={**launch_of_two, "RANK": "1"}))
        assert [rank.wait() for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert "no pair to train on" in notes(out)["note"]
    assert not (tmp_path / ".work-out").exists()


def test_a_killed_process_is_named_before_a_partner_that_aborts(root, tmp_path):
    codes = {0: -signal.SIGABRT, 1: -signal.SIGKILL}
    failures = {rank: ProcessFailure(rank, 1, code, str(tmp_path / "none")) for rank, code in codes.items()}
    settings = Launch(root / "configs/accelerate/ddp.yaml", 2, 1)
    assert launch._sentence(failures, settings).startswith("process 1 of 2 was killed by SIGKILL")


def test_a_killed_compilation_leaves_no_lock(tmp_path):
    locks = [tmp_path / name / "lock" for name in ("compiling", "killed")]
    code = "import sys, time; file = open(sys.argv[1], 'x'); print('open', flush=True); time.sleep(600)"
    processes = []
    for lock in locks:
        lock.parent.mkdir()
        processes.append(subprocess.Popen([sys.executable, "-c", code, lock], stdout=subprocess.PIPE, text=True))
    try:
        assert [process.stdout.readline() for process in processes] == ["open\n", "open\n"]
        processes[1].kill()
        processes[1].wait()
        launch.delete_abandoned_locks(tmp_path)
        assert [lock.exists() for lock in locks] == [True, False]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.mark.slow
def test_what_every_process_refuses_is_said_once(command, environment, root, tmp_path):
    done = run([*command("sft", tmp_path / "out", "sft.batch_size=3"), *launched(root, "ddp")], environment)
    assert done.returncode == 2
    assert done.stderr.count("`batch_size` 3 is not a multiple of `micro_batch` 1 times 2 devices") == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "stage", "sentence"),
    [
        (("absent", 2, 1), "sft", "no such file"),
        (("ddp", 3, 2), "sft", "is not a multiple of --nodes 2"),
        (("ddp", 2, 1), "rollout", "`rollout` runs in one process"),
        (("ddp", 4, 2), "sft", "no Slurm job"),
        (("ddp", 64, 1), "sft", "64 devices required"),
        (("fsdp", 2, 1), "sft", "FSDP would be DDP"),
        (("other", 2, 1), "sft", r"unknown keys \(\['zero_stage'\]\)"),
    ],
)
def test_what_cannot_start_is_one_sentence(settings, stage, sentence, root, tmp_path, monkeypatch):
    kind, processes, nodes = settings
    monkeypatch.setenv("ACCELERATE_USE_CPU", str(int(kind == "fsdp")))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "other.yaml").write_text("distributed_type: MULTI_GPU\nzero_stage: 3\n")
    folder = tmp_path if kind == "other" else root / "configs/accelerate"
    with pytest.raises(UserError, match=sentence):
        launch.launch(Launch(folder / f"{kind}.yaml", processes, nodes), stage, tmp_path / "job.json", threads=1)


def test_launch_files_name_keys_that_accelerate_reads(root):
    files = sorted((root / "configs/accelerate").glob("*.yaml"))
    assert {file.stem for file in files} == {"ddp", "zero2", "zero3", "fsdp"}
    known = {action.dest for action in launch_command_parser()._actions}
    for file in files:
        load_config_from_file(str(file))  # refuses unknown keys of its own level
        given = yaml.safe_load(file.read_text())
        nested = [*given.get("deepspeed_config", {}), *given.get("fsdp_config", {})]
        assert set(nested) <= known
        assert given["num_processes"] == -1 and given["same_network"]
