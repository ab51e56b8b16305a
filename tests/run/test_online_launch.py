"""PPO and GRPO over several processes: who plays what, and that they learn what one process learns."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from command_line import exit_status, stage_command
from run.replayed import replaying
from safetensors.torch import load_file
from small_run import make

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import files_of
from coevolve.records.episodes import Trajectory
from coevolve.storage import jsonl

SUITE = """
extends: [small.yaml, envs/webshop-small.yaml, envs/bfcl-small.yaml]
suite: ranks
iterations: {webshop: 1, bfcl: 1}
seeds: [0]
methods: [grpo, ppo, agent_data]
envs:
  webshop:
    tasks: {sft: 6, explore: 6, evaluate: 3}
    workers: 8
  bfcl:
    tasks: {generated: {train: 24, evaluate: 4, actions: 2, seed: 7}, sft: 12}
    step_limit: 4
    workers: 8
models:
  tiny:
    context: 512
    tiny: {vocab_size: 420, hidden_size: 256, layers: 1, heads: 2, intermediate_size: 420}
    pretrain: {epochs: 1, batch_size: 4}
sft: {epochs: 2, batch_size: 4}
rollout: {max_new_tokens: 16}
grpo: {epochs: 1, batch_size: 12, micro_batch: 4, group: 2, save_steps: 1, beta: 0.1, max_grad_norm: 0.5, warmup: 0.0}
ppo: {epochs: 6, rollouts: 7, passes: 2, batch_size: 5, micro_batch: 2, max_grad_norm: 0.5}
task_evolution: {steps: 3, initial_tasks: 5, initial_fragments: 16, turns: 6, actions: 2}
recipes:
  agent_data: {settings: {grpo: {batch_size: 10, micro_batch: 5}}} # five groups: the last rank has one less
"""
HERE = Path(__file__).parents[1]
JOBS = {
    stage: (stage, {"model": "tiny", "env": env, "branch": f"{method}/seed0/iter1", "agent": "target"})
    for stage, env, method in (
        ("grpo", "webshop", "grpo"),
        ("ppo", "webshop", "ppo"),
        ("grpo_round", "bfcl", "agent_data"),
    )
}
LAUNCHES = [("ddp", 3), ("zero2", 3), ("zero3", 2), ("fsdp", 2)]


@pytest.fixture(scope="module")
def home(root, tmp_path_factory):
    """A folder with the inputs of the three stages, and one process's result of each."""
    pytest.importorskip("bfcl_eval", reason="the wheel of envs_setup/bfcl.lock is not installed; run `make setup`")
    folder = tmp_path_factory.mktemp("ranks")
    shutil.copytree(root / "configs", folder / "configs")
    (folder / "data").symlink_to(root / "data")
    (folder / "configs/ranks.yaml").write_text(SUITE)
    with contextlib.chdir(folder):
        plan = Plan(load_suite("configs/ranks.yaml"))
        for stage, job in JOBS.items():
            for path in files_of(plan.require(*job).inputs):
                make(plan, path)
            assert exit_status(*stage_command(job, "ranks", folder / stage)) == 0
            jsonl.write(folder / f"{stage}.jsonl", map(rewarded, episodes(folder / stage)))
            with replaying(folder / f"{stage}.jsonl"):
                assert exit_status(*stage_command(job, "ranks", folder / f"{stage}-replayed")) == 0
        yield folder


def rewarded(episode):
    """The episode with a reward that differs within its group: an untrained policy earns nothing."""
    seed = sum(episode.task.task_id.encode()) + 3 * episode.sample + len(episode.turns[0].token_ids)
    return episode.model_copy(update={"reward": seed % 5 / 4})


def with_logps(episode):
    """The episode with log-probs of sampling, which nothing but a logged distance depends on."""
    turns = [turn.model_copy(update={"logps": (-1.0,) * len(turn.token_ids)}) for turn in episode.turns]
    return episode.model_copy(update={"turns": tuple(turns)})


def command(stage, out, processes, kind, recorded=None, *options):
    several = ["--processes", str(processes), "--launch", f"configs/accelerate/{kind}.yaml", *options]
    program = "coevolve" if recorded is None else "run.replayed"
    return [sys.executable, "-m", program, *stage_command(JOBS[stage], "ranks", out, options=several)]


def environment(recorded=None, kind=""):
    paths, fsdp = os.pathsep.join([str(HERE), str(HERE.parent)]), "1" if kind == "fsdp" else ""
    own = {"ACCELERATE_USE_CPU": "1", "PYTHONPATH": paths, "REPLAYED": str(recorded), "FSDP_ON_CPUS": fsdp}
    return {**os.environ, **own}


def run(stage, out, processes, kind, recorded=None, *options):
    done = subprocess.run(
        command(stage, out, processes, kind, recorded, *options), env=environment(recorded, kind), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def episodes(out):
    """Of all steps; reading refuses an episode that is there twice."""
    return jsonl.read(out / "episodes.jsonl", Trajectory)


def history(out):
    return json.loads((out / "provenance.json").read_text())["notes"]["history"]


def content(episode):
    return episode.model_copy(update={"seconds": 0.0, "attempts": 1})


@pytest.mark.slow
@pytest.mark.parametrize("stage", JOBS)
@pytest.mark.parametrize(("kind", "processes"), LAUNCHES)
def test_several_processes_learn_what_one_learns_from_the_same_episodes(stage, kind, processes, home, tmp_path):
    recorded = home / f"{stage}.jsonl"
    run(stage, tmp_path / "out", processes, kind, recorded)
    assert episodes(tmp_path / "out") == jsonl.read(recorded, Trajectory)
    alone = home / f"{stage}-replayed"
    for step, expected in zip(history(tmp_path / "out"), history(alone), strict=True):
        for name in ("loss", "grad_norm"):
            assert step[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), (step["step"], name)
        assert expected["grad_norm"] > 1e-3
    one, several = (load_file(out / "model.safetensors") for out in (alone, tmp_path / "out"))
    for name, tensor in one.items():
        torch.testing.assert_close(several[name], tensor, rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_passes_in_bfloat16_learn_what_one_process_learns_in_it(kind, home, tmp_path):
    """The first step: the next ones start from weights that bfloat16 has rounded otherwise."""
    several, alone, recorded = (tmp_path / name for name in ("several", "alone", "recorded.jsonl"))
    jsonl.write(recorded, map(with_logps, jsonl.read(home / "grpo.jsonl", Trajectory)))
    for out, processes in ((several, 2), (alone, 1)):
        run("grpo", out, processes, kind, recorded, "--set", "models.tiny.training_dtype=bfloat16")
    for name in ("loss", "grad_norm"):
        assert history(several)[0][name] == pytest.approx(history(alone)[0][name], rel=0.02), name


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "kind"), [("grpo", "ddp"), ("ppo", "zero3"), ("grpo_round", "zero3")])
def test_the_first_step_is_sampled_as_by_one_process_and_a_killed_rank_ends_all(stage, kind, home, tmp_path):
    line = command(stage, tmp_path / "out", 3, kind)
    journals = {}
    with subprocess.Popen(line, env=environment(), stderr=subprocess.PIPE, text=True) as parent:
        while len(journals) < 3 or not all(journals.values()):  # each rank has played in the second step
            assert parent.poll() is None, parent.stderr.read()
            journals = {path.name: path.stat().st_size for path in tmp_path.glob(".work-out/*/episodes-1-*.jsonl")}
            time.sleep(0.01)
        ranks = [child for child in psutil.Process(parent.pid).children() if "--threads" in child.cmdline()]
        next(child for child in ranks if child.environ()["RANK"] == "1").send_signal(signal.SIGKILL)
        stderr = parent.stderr.read()
    assert parent.returncode == 2 and "killed by SIGKILL" in stderr.splitlines()[-1], stderr
    first = {path: path.read_bytes() for path in tmp_path.glob(".work-out/*/episodes-0-*.jsonl")}
    assert len(first) == 3
    assert "resuming from checkpoint-1" in run(stage, tmp_path / "out", 3, kind)
    played, alone = ([content(each) for each in episodes(out)] for out in (tmp_path / "out", home / stage))
    assert len(played) == len(alone)
    of_first = [[each for each in found if each.policy.name.endswith("@0")] for found in (played, alone)]
    assert of_first[0] == of_first[1]
