"""Trainings that are killed, and end as if they had not been."""

import json
import multiprocessing
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from train.settings import WITH_DROPOUT, dpo_config

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.records.pairs import PairKind
from coevolve.storage import files
from coevolve.train import dpo
from coevolve.train import trainer as training
from coevolve.train.dataset import TokenizedPair
from coevolve.train.policy_io import TrainingRun
from coevolve.train.settings import LoraConfig

CONFIG = dpo_config(epochs=8, warmup=0.03, schedule="cosine", learning_rate=[1e-3], save_steps=5)
STEPS = 48


def train(start: Path, out: Path, work: Path, lora: LoraConfig | None):
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    rows = [TokenizedTrajectory(tuple(ids), (0,) * 20 + (1,) * 20) for ids in rng.integers(5, 300, (44, 40)).tolist()]
    pairs = [
        TokenizedPair(PairKind.EXPERT_TARGET, *sides, 0.5, 0.5) for sides in zip(rows[::2], rows[1::2], strict=True)
    ]
    return dpo.run_dpo(pairs, CONFIG, TrainingRun(start, out, work, 7, lora), iteration=1, reference=None)


def train_until(path: Path, *arguments):
    """Train in a process that is killed once `path` exists: a checkpoint's directory is there before it is whole."""
    # A forked process need not import torch and TRL again, and cannot use a GPU.
    context = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
    process = context.Process(target=train, args=arguments)
    process.start()
    while not path.exists():
        assert process.is_alive(), "the training ended before it could be killed"
        time.sleep(0.0005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("lora", [None, pytest.param(WITH_DROPOUT, marks=pytest.mark.slow)], ids=["full", "lora"])
def test_killed_trainings_end_in_the_same_bytes(llama, tmp_path, lora):
    whole = train(llama, tmp_path / "whole", tmp_path / "work-whole", lora)
    out, work = tmp_path / "out", tmp_path / "work"
    train_until(work / "checkpoint-20", llama, out, work, lora)
    assert not (out / "policy.json").exists()
    last = training.last_checkpoint(work)
    assert last.name in ("checkpoint-15", "checkpoint-20")
    # Another that was killed while it was written, and lies in the way.
    shutil.copytree(last, work / "checkpoint-25", ignore=shutil.ignore_patterns("trainer_state.json"))
    (work / "checkpoint-25" / "optimizer.pt").write_bytes(b"torn")
    resumed = train(llama, out, work, lora)
    assert files.sha256(out) == files.sha256(tmp_path / "whole")
    assert resumed.steps == STEPS and not (work / f"checkpoint-{STEPS}").exists(), "the policy itself is written next"
    assert [step["loss"] for step in resumed.history] == [step["loss"] for step in whole.history]
    metrics = [json.loads(line) for line in (work / training.METRICS).read_text().splitlines()]
    assert [(step["step"], step["loss"]) for step in metrics] == [
        (number, step["loss"]) for number, step in enumerate(whole.history, start=1)
    ]


def checkpoint(work, step, state, **others):
    """A checkpoint's folder with the state of its training, and other files."""
    path = work / f"checkpoint-{step}"
    path.mkdir()
    for name, text in {"trainer_state.json": state, **others}.items():
        if text is not None:
            (path / name).write_text(text)
    return path


def test_half_written_checkpoints_are_skipped_and_removed(tmp_path):
    """One of several processes is whole when all of them have said so."""
    assert training.last_checkpoint(tmp_path) is training.last_checkpoint(tmp_path / "absent") is None
    ranks = {f"rng_state_{rank}.pth": "" for rank in range(2)}
    checkpoint(tmp_path, 5, '{"global_step": 5}')
    whole = checkpoint(tmp_path, 10, '{"global_step": 10}', **ranks, **{training.COMPLETE: ""})
    torn = [
        checkpoint(tmp_path, 15, '{"global_step": 1'),
        checkpoint(tmp_path, 20, None),
        checkpoint(tmp_path, 25, '{"global_step": 25}', **ranks),
    ]
    assert training.last_checkpoint(tmp_path) == whole
    assert not any(path.exists() for path in torn)
