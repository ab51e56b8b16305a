"""Trainings that are killed, and end as if they had not been."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from coevolve import store
from coevolve.train import loop

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import torch
from coevolve.config import DpoConfig, LoraConfig
from coevolve.train import dpo
from coevolve.train.rows import PairRow, Row
from coevolve.types import PairKind

torch.set_num_threads(1)
start, out, work, adapters = sys.argv[1:]
rng = np.random.default_rng(0)
row = lambda: Row(tuple(rng.integers(5, 300, 40).tolist()), (0,) * 20 + (1,) * 20)
pairs = [PairRow(PairKind.EXPERT_TARGET, row(), row(), 0.5, 0.5) for _ in range(22)]
config = DpoConfig(
    epochs=10, batch_size=4, micro_batch=2, warmup=0.03, schedule="cosine", weight_decay=0.0, max_grad_norm=1.0,
    save_steps=5, learning_rate=[1e-3], beta=[0.1], reference="previous", nll="mean", precompute_reference=True,
)
lora = LoraConfig(rank=2, alpha=4, dropout=0.1, target_modules="all-linear") if adapters == "lora" else None
report = dpo.run_dpo(
    pairs, start=Path(start), reference=None, config=config, iteration=1, lora=lora, seed=7,
    out=Path(out), work=Path(work),
)
assert len(report.history) == report.steps == 60
"""


def training(start, out, work, adapters):
    command = [sys.executable, "-c", SCRIPT, str(start), str(out), str(work), adapters]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def finish(process):
    assert process.wait(timeout=120) == 0


def kill_when(process, path):
    """SIGKILL as soon as `path` exists: a checkpoint's directory exists before it is whole."""
    while not path.exists():
        assert process.poll() is None, "the training ended before it could be killed"
        time.sleep(0.0005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("adapters", ["full", pytest.param("lora", marks=pytest.mark.slow)])
def test_killed_trainings_end_in_the_same_bytes(llama, tmp_path, adapters):
    finish(training(llama, tmp_path / "whole", tmp_path / "work-whole", adapters))
    out, work = tmp_path / "out", tmp_path / "work"
    kill_when(training(llama, out, work, adapters), work / "checkpoint-10")
    assert not (out / "policy.json").exists()
    # The second run starts from checkpoint 5 or 10; a half-written later one lies in its way.
    (last,) = [p for p in work.glob("checkpoint-*") if (p / "trainer_state.json").exists()][-1:]
    shutil.copytree(last, work / "checkpoint-15", ignore=shutil.ignore_patterns("trainer_state.json"))
    (work / "checkpoint-15" / "optimizer.pt").write_bytes(b"torn")
    kill_when(training(llama, out, work, adapters), work / "checkpoint-30")
    finish(training(llama, out, work, adapters))
    assert store.sha256(out) == store.sha256(tmp_path / "whole")


def checkpoint(work, step, state):
    path = work / f"checkpoint-{step}"
    path.mkdir()
    if state is not None:
        (path / "trainer_state.json").write_text(state)
    return path


def test_half_written_checkpoints_are_skipped_and_removed(tmp_path):
    checkpoint(tmp_path, 5, json.dumps({"global_step": 5}))
    whole = checkpoint(tmp_path, 10, json.dumps({"global_step": 10}))
    torn = [checkpoint(tmp_path, 15, '{"global_step": 1'), checkpoint(tmp_path, 20, None)]
    assert loop.last_complete(tmp_path) == whole
    assert not any(path.exists() for path in torn)


def test_no_checkpoint_at_all(tmp_path):
    assert loop.last_complete(tmp_path) is None
    assert loop.last_complete(tmp_path / "absent") is None
