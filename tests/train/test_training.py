"""Trainings end to end: what they write, what they report, what they refuse."""

import json
import logging
import math
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from train.settings import ADAPTERS, OPTIMISER, dpo_config, see_two_gpus, sft_config
from transformers import TrainerCallback

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.records.pairs import PairKind
from coevolve.storage import files, policy_dir
from coevolve.train import dpo, policy_io, sft
from coevolve.train import trainer as training
from coevolve.train.dataset import TokenizedPair, slot_order
from coevolve.train.policy_io import TrainingRun
from coevolve.train.settings import LoraConfig, PretrainConfig

SHORT = {"epochs": 2, "warmup": 0.1, "schedule": "cosine", "weight_decay": 0.01, "save_steps": 3}
SFT = sft_config(**SHORT)
DPO = dpo_config(**SHORT, learning_rate=[5e-3])


def row(seed, length=20):
    ids = np.random.default_rng(seed).integers(5, 300, length)
    return TokenizedTrajectory(tuple(ids.tolist()), tuple(int(k >= 5 and k % 5 > 1) for k in range(length)))


ROWS = [row(seed) for seed in range(10)]
PAPERS = (PairKind.EXPERT_TARGET, PairKind.EXPERT_FAILURE, PairKind.FAILURE_FAILURE)
KINDS = [*PAPERS, PairKind.FAILURE_FAILURE]
PAIRS = [
    TokenizedPair(KINDS[i % 4], row(i), row(100 + i), *((1.0, 0.0) if i % 4 > 1 else (0.5, 0.5))) for i in range(10)
]


def run_sft(tmp_path, llama, name="sft", rows=ROWS, config=SFT, lora=None, seed=7, **more):
    out, work = tmp_path / name, tmp_path / f"work-{name}"
    return sft.run_sft(rows, config, TrainingRun(llama, out, work, seed, lora, **more)), out


def run_dpo(tmp_path, llama, name="dpo", pairs=PAIRS, config=DPO, lora=None, seed=7, reference=None, **more):
    out, work = tmp_path / name, tmp_path / f"work-{name}"
    run = TrainingRun(llama, out, work, seed, lora, **more)
    return dpo.run_dpo(pairs, config, run, iteration=1, reference=reference), out


def tensors(path):
    return load_file(path / "model.safetensors")


def test_sft_learns_and_writes_a_policy(tmp_path, llama, caplog, capsys):
    """Progress is logged and not printed."""
    started = time.monotonic()
    with caplog.at_level(logging.INFO, logger="coevolve.train"):
        report, out = run_sft(tmp_path, llama)
    assert 0 < report.seconds <= time.monotonic() - started
    assert (report.rows, report.steps, report.tokens) == (10, 6, 2 * 10 * 20)
    assert report.last_loss < report.first_loss - 0.1
    assert [step["step"] for step in report.history] == [1, 2, 3, 4, 5, 6]
    written = [json.loads(line) for line in (tmp_path / "work-sft" / training.METRICS).read_text().splitlines()]
    assert [(s["step"], s["loss"]) for s in written] == [(s["step"], s["loss"]) for s in report.history]
    said = [message.rpartition(",") for message in caplog.messages if message.startswith("step ")]
    assert [head for head, _, _ in said] == [f"step {s['step']} of 6, loss {s['loss']:.4f}" for s in report.history]
    assert said[-1][2] == " 0 s left" and capsys.readouterr().out == ""
    ref = policy_dir.describe(out)
    assert (ref.name, ref.base) == ("tiny+sft", "tiny")
    assert all(tensor.dtype == torch.float32 for tensor in tensors(out).values())


def test_pretraining_learns_every_token(tmp_path, llama):
    rows = [TokenizedTrajectory(row.input_ids, (0,) * 20) for row in ROWS]
    config = PretrainConfig(**OPTIMISER | SHORT, learning_rate=1e-2)
    report = sft.run_pretrain(rows, config, TrainingRun(llama, tmp_path / "out", tmp_path / "work", seed=7))
    assert report.last_loss < report.first_loss - 0.1
    assert report.first_loss == pytest.approx(math.log(300), rel=0.05)


@pytest.mark.parametrize("lora", [None, ADAPTERS], ids=["full", "lora"])
def test_dpo_widens_the_margin_and_reports_each_kind(tmp_path, llama, lora):
    config = DPO.model_copy(update={"epochs": 10.0})
    report, out = run_dpo(tmp_path, llama, config=config, lora=lora)
    assert set(report.kinds) == set(PAPERS)
    assert [report.kinds[kind]["pairs"] for kind in PAPERS] == [3, 3, 4]
    for means in report.kinds.values():
        assert means["rewards/margins"] > 0 and means["rewards/accuracies"] > 0.5 and means["logps/chosen"] < 0
    assert report.kinds[PairKind.FAILURE_FAILURE]["loss"] < math.log(2)
    assert (out / "model.safetensors").exists() == (lora is None)
    json.dumps(report.history)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, alpha=4, dropout=0.2, target_modules="all-linear")])
def test_same_seed_same_bytes(tmp_path, llama, lora):
    first, again = (run_dpo(tmp_path, llama, name, lora=lora)[1] for name in ("a", "b"))
    _, other = run_dpo(tmp_path, llama, "c", lora=lora, seed=8)
    assert files.sha256(first) == files.sha256(again) != files.sha256(other)


def test_without_pairs_the_policy_is_the_one_it_started_from(tmp_path, llama):
    nothing = TokenizedTrajectory(tuple(range(10)), (0,) * 10)
    report, out = run_dpo(tmp_path, llama, pairs=[TokenizedPair(PairKind.FAILURE_FAILURE, row(1), nothing, 1.0, 0.0)])
    assert policy_dir.describe(out) == policy_dir.describe(llama)
    assert (report.steps, report.dropped, report.first_loss) == (0, 1, None)
    assert "no pair to train on (1 of 1 dropped)" in report.note


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rows": []}, "sft: none of 0 trajectories has an action token among its first 48 tokens; ra"),
        ({"context": 4}, "sft: none of 10 trajectories has an action token among its first 4 tokens"),
        (
            {"config": SFT.model_copy(update={"micro_batch": 3})},
            r"`batch_size` 4 is not a multiple of `micro_batch` 3.*; .*`sft`, `dpo`",
        ),
        (
            {"config": SFT.model_copy(update={"learning_rate": 1e30, "epochs": 20.0, "save_steps": 1})},
            r"step \d of 60: loss .*nan.*; lower `learning_rate` of .*`sft`, `dpo`",
        ),
        *(
            (
                {"lora": ADAPTERS.model_copy(update={"target_modules": ["self_attn.q_proj", target]})},
                rf"`lora\.target_modules`: `{target}` is not .*; it has down_proj, gate_proj,",
            )
            for target in ("q_porj", "proj", "norm", "embed_tokens", "lm_head")
        ),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(tmp_path, llama, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        run_sft(tmp_path, llama, **changes)
    assert not (tmp_path / "sft").exists()


def test_narrow_weights_are_refused(tmp_path, llama):
    model, run = loading.load_model(llama, dtype=torch.bfloat16), TrainingRun(llama, tmp_path / "out", tmp_path, 7)
    trainer = sft.SupervisedTrainer(ROWS, [0, 1, 2, 3], model=model, config=SFT, run=run)
    with pytest.raises(UserError, match="bfloat16; load the policy in float32"):
        training.train(trainer, tmp_path)


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("cosine", 0.5, [1 / 3, 2 / 3, 1.0, 1.0, 0.75, 0.25]),
        ("linear", 0.5, [1 / 3, 2 / 3, 1.0, 1.0, 2 / 3, 1 / 3]),
        ("constant", 0.5, [1 / 3, 2 / 3, 1.0, 1.0, 1.0, 1.0]),
        ("constant", 0.0, [1.0] * 6),
        ("cosine", 0.01, [1.0, *((1 + np.cos(np.pi * k / 5)) / 2 for k in range(5))]),
    ],
)
def test_the_rate_of_each_step_is_its_formula_and_no_step_is_lost(schedule, warmup, expected, llama, tmp_path):
    changes = {"schedule": schedule, "warmup": warmup, "batch_size": 2, "micro_batch": 1, "epochs": 1.2}
    config = SFT.model_copy(update=changes)
    order = slot_order(len(ROWS), config.batch_size, config.epochs, 0)
    model = policy_io.load(llama)
    run = TrainingRun(llama, tmp_path / "out", tmp_path, 0)
    supervised = sft.SupervisedTrainer(ROWS, order, model=model, config=config, run=run)
    rates = []

    class Recorder(TrainerCallback):
        def on_pre_optimizer_step(self, *_, optimizer, **__):
            rates.append(optimizer.param_groups[0]["lr"] / config.learning_rate)

    supervised.add_callback(Recorder())
    training.train(supervised, tmp_path)
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize("run", [run_sft, run_dpo])
def test_adapter_dropout_changes_what_is_learned(run, tmp_path, llama):
    histories = {}
    for dropout in (0.0, 0.5):
        lora = ADAPTERS.model_copy(update={"dropout": dropout})
        report, _ = run(tmp_path, llama, f"dropout{dropout}", lora=lora)
        histories[dropout] = [step["loss"] for step in report.history]
    # Adapters start at 0, so dropout changes nothing before the first step.
    assert histories[0.0][0] == pytest.approx(histories[0.5][0], rel=1e-5)
    assert histories[0.0][2:] != histories[0.5][2:]


def test_a_training_without_a_gradient_shrinks_its_matrices_by_the_decay(tmp_path, llama):
    """AdamW: each step multiplies a matrix by 1 - rate x decay; norms do not decay. Other files stay as they are."""
    silent = [TokenizedPair(pair.kind, pair.chosen, pair.rejected, 0.0, 0.0) for pair in PAIRS]
    report, out = run_dpo(tmp_path, llama, pairs=silent, config=DPO.model_copy(update={"weight_decay": 0.5}))
    kept = math.prod(1 - 0.5 * step["learning_rate"] for step in report.history)
    assert kept < 0.995
    for name, tensor in tensors(llama).items():
        expected = tensor if "norm" in name else tensor * kept
        torch.testing.assert_close(tensors(out)[name], expected)
    before, after = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (llama, out))
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= before.keys()
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} == {"model.safetensors", "policy.json"}


def test_one_process_trains_on_one_device(tmp_path, llama, monkeypatch):
    alone, _ = run_sft(tmp_path, llama, "alone")
    see_two_gpus(monkeypatch)
    beside_another, _ = run_sft(tmp_path, llama, "beside_another")
    assert beside_another.history == alone.history
