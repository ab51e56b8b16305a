"""GRPO on TRL's trainer: what it is given, and the gradient of its equation."""

import math
import shutil
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from train.doors import GRPO, TASKS, world
from train.settings import ADAPTERS
from transformers import TrainerCallback
from trl.trainer import base_trainer

from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.records.episodes import StopReason, Trajectory
from coevolve.storage import jsonl
from coevolve.train import grpo, online
from coevolve.train import trainer as training
from coevolve.train.policy_io import TrainingRun


class Witness(TrainerCallback):
    """Takes down the gradients of the first step."""

    def __init__(self, model):
        self.model, self.gradients = model, None

    def on_pre_optimizer_step(self, args, state, control, **_):
        self.gradients = self.gradients or {name: p.grad.clone() for name, p in self.model.named_parameters()}


def other_policy(start, folder):
    """A policy whose weights differ from those of `start`."""
    model = loading.load_model(start, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("kl_from", "normalize"), [("start", None), ("other", None), ("start", "group")])
def test_a_step_follows_the_gradient_of_the_equation(half, tmp_path, kl_from, normalize):
    """Eq. 3 and 4 with plain loops in float64; TRL's own head computes in float32.

    The policy has moved away from the start, so that the KL term has a gradient: that of `beta` times the log-ratio.
    """
    reference = other_policy(half, tmp_path / "other") if kl_from == "other" else None
    run = TrainingRun(half, tmp_path / "out", tmp_path, seed=3)
    explorer = online.Explorer(world(), run)
    plan = [list(TASKS)]
    config = GRPO.model_copy(update={"max_grad_norm": 1e9, "batch_size": 16, "group": 8, "beta": 2.0})
    config = config.model_copy(update={"normalize": normalize})
    trainer = grpo.group_trainer(explorer, plan, config, run, reference)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    moved = {name: weight.detach().double().clone() for name, weight in trainer.model.named_parameters()}
    witness = Witness(trainer.model)
    trainer.add_callback(witness)
    training.train(trainer, tmp_path)

    with closing(jsonl.Journal(tmp_path / "episodes-0-0.jsonl", Trajectory)) as journal:
        rows = [(episode.task.task_id, explorer.experience(episode)) for episode in journal.records]
    model, start = (loading.load_model(folder, dtype=torch.float64) for folder in (half, reference or half))
    model.load_state_dict(moved, strict=False)
    counts = Counter[str]()
    for task, row in rows:
        counts[task] += sum(row.action_mask[1:])
    share = {task: counts.total() / (len(counts) * count) for task, count in counts.items()}
    assert len(set(share.values())) > 1  # groups of different length
    total, penalty, tokens = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0
    for task, row in rows:
        rewards = torch.tensor([other.reward for name, other in rows if name == task], dtype=torch.float64)
        advantage = (row.reward - rewards.mean()) / (rewards.std() + 1e-4)
        logits, before = (each(input_ids=torch.tensor([row.input_ids])).logits[0] for each in (model, start))
        for k in range(1, len(row)):
            if row.action_mask[k]:
                logp = torch.log_softmax(logits[k - 1], dim=-1)[row.input_ids[k]]
                ratio = (logp - torch.log_softmax(before[k - 1], dim=-1)[row.input_ids[k]]).detach()
                weight = share[task] if normalize else 1.0
                total, penalty, tokens = total - weight * advantage * logp, penalty + 2.0 * ratio * logp, tokens + 1
    of_kl = torch.autograd.grad(penalty / tokens, list(model.parameters()), retain_graph=True)
    expected = torch.autograd.grad((total + penalty) / tokens, list(model.parameters()))
    scale = max(gradient.abs().max() for gradient in expected)
    assert scale > 1e-3 and max(gradient.abs().max() for gradient in of_kl) > 0.05 * scale
    for (name, _), gradient in zip(model.named_parameters(), expected, strict=True):
        assert (witness.gradients[name] - gradient).abs().max() < 1e-4 * scale, name


def test_adapters_have_no_other_reference_and_one_with_other_weights_is_refused(half, tmp_path):
    run = TrainingRun(half, tmp_path / "out", tmp_path, 3)
    with pytest.raises(UserError, match="with `lora` the KL divergence is from the policy that training starts from"):
        grpo.run_grpo(world(), GRPO, replace(run, lora=ADAPTERS), reference=half)
    other = shutil.copytree(half, tmp_path / "other")
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(UserError, match=r"other: its files hash to .*; rerun the stage that made the policy"):
        grpo.run_grpo(world(), GRPO, run, reference=other)


def test_trl_gets_the_ids_that_were_sampled(half, tmp_path):
    run = TrainingRun(half, tmp_path / "out", tmp_path, seed=3)
    explorer = online.Explorer(world(), run)
    model = loading.load_model(half).train()
    episodes = explorer.play(model, 0, TASKS)
    assert model.training, "dropout is off in episodes alone"
    failed = episodes[0].model_copy(update={"stop": StopReason.ENV_ERROR})
    given = grpo.completions([explorer.experience(episode) for episode in (*episodes, failed)], 1)
    assert given["reward"] == [*(episode.reward for episode in episodes), None]
    for episode, prompt, ids, mask in zip(
        episodes, given["prompt_ids"], given["completion_ids"], given["env_mask"], strict=False
    ):
        said = [token for turn in episode.turns for token in turn.token_ids]
        assert [token for token, own in zip(ids, mask, strict=True) if own] == said
        assert (*prompt, *ids) == explorer.experience(episode).input_ids
    assert sum(given["env_mask"][-1]) == 0 and len(given["completion_ids"][-1]) > 0


class Rare(online.Explorer):
    """Says that each token was sampled with an eighth of its probability."""

    def experience(self, episode):
        row = super().experience(episode)
        return row and replace(row, logps=tuple(logp - math.log(8) for logp in row.logps))


def test_the_correction_weights_tokens_by_how_much_likelier_they_are_in_training_up_to_three(half, tmp_path):
    norms = {}
    for correction in (None, "token_truncate"):
        run = TrainingRun(half, tmp_path / "out", tmp_path / str(correction), seed=3)
        run.work.mkdir()
        explorer = Rare(replace(world(), dtype="bfloat16"), run)
        settings = {"beta": 0.0, "max_grad_norm": 1e9, "importance_sampling": correction}
        trainer = grpo.group_trainer(explorer, [list(TASKS)], GRPO.model_copy(update=settings), run)
        (step,) = training.train(trainer, run.work)
        norms[correction] = step["grad_norm"]
    assert norms["token_truncate"] == pytest.approx(3 * norms[None], rel=0.02)
    assert norms[None] > 1e-3


def test_the_kl_terms_reference_is_in_the_type_of_the_passes(half, tmp_path):
    for dtype, held in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        run = TrainingRun(half, tmp_path / "out", tmp_path, seed=3, dtype=dtype)
        trainer = grpo.group_trainer(online.Explorer(world(), run), [list(TASKS)], GRPO, run)
        assert {weight.dtype for weight in trainer.ref_model.parameters()} == {held}
        assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}


def test_no_telemetry(half, tmp_path, monkeypatch):
    """TRL sends it where a trainer is made, except in CI."""
    sent = []
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(base_trainer, "send_telemetry", lambda **kwargs: sent.append(kwargs))
    run = TrainingRun(half, tmp_path / "out", tmp_path, seed=3)
    grpo.group_trainer(online.Explorer(world(), run), [list(TASKS)], GRPO, run, None)
    assert sent == []
