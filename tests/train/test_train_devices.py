"""Two devices learn what one learns, an uneven last batch and all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coevolve.config import DpoConfig, LoraConfig, SftConfig
from coevolve.train import dpo, sft
from coevolve.train.rows import PairRow, Row
from coevolve.types import PairKind

ADAPTERS = LoraConfig(rank=2, alpha=4, dropout=0.0, target_modules="all-linear")


def rows(n, length):
    return [
        Row(tuple((7 * i + 3 * k) % 290 + 5 for k in range(length)), (0,) * 5 + (1,) * (length - 5)) for i in range(n)
    ]


def train(case: str, start: Path, out: Path, work: Path):
    torch.set_num_threads(1)
    optimiser = {
        "epochs": 2,
        "batch_size": 4,
        "micro_batch": 1,
        "warmup": 0.1,
        "schedule": "cosine",
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "save_steps": 2,
    }
    places = {"start": start, "out": out, "work": work, "seed": 7}
    if case == "sft":
        return sft.run_sft(rows(9, 20), config=SftConfig(**optimiser, learning_rate=1e-2), lora=None, **places)
    pairs = [PairRow(PairKind.EXPERT_TARGET, *sides, 0.5, 0.5) for sides in zip(rows(9, 20), rows(9, 14), strict=True)]
    own = {"learning_rate": [5e-3], "beta": [0.1], "reference": "previous", "nll": "mean"}
    config = DpoConfig(**optimiser, **own, precompute_reference=case != "dpo on the fly")
    lora = ADAPTERS if case == "dpo with adapters" else None
    return dpo.run_dpo(pairs, config=config, iteration=1, reference=None, lora=lora, **places)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sft", "dpo", "dpo on the fly", "dpo with adapters"])
def test_two_devices_learn_what_one_learns(case, llama, tmp_path, root):
    report = train(case, llama, tmp_path / "one", tmp_path / "work-one")
    assert report.steps == 6
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", __file__]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    arguments = [case, str(llama), str(tmp_path / "two"), str(tmp_path / "work-two")]
    subprocess.run([*command, *arguments], check=True, env=environment, capture_output=True, timeout=300)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    start = load_file(llama / "model.safetensors")
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=2e-6)
    assert max((tensor - start[name]).abs().max() for name, tensor in one.items()) > 1e-3


if __name__ == "__main__":
    train(sys.argv[1], *map(Path, sys.argv[2:]))
