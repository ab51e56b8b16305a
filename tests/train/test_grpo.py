"""GRPO on TRL's trainer: what it is given, what it learns from it, its resumption."""

import json
import shutil
from contextlib import closing

import pytest
import torch
from pydantic import ValidationError
from train.doors import TASKS, CutOffError, half_trained, interrupt, mean_reward, world
from transformers import TrainerCallback, TrainingArguments
from trl.trainer import base_trainer

from coevolve import seeds
from coevolve.config.baselines import GrpoConfig
from coevolve.config.sections import LoraConfig
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.records.episodes import Sampling, StopReason, Trajectory
from coevolve.storage import jsonl, policy_dir
from coevolve.train import grpo, online
from coevolve.train import trainer as training
from coevolve.train.policy_io import TrainingRun

ADAPTERS = LoraConfig(rank=2, alpha=4, dropout=0.1, target_modules="all-linear")
CONFIG = GrpoConfig(
    epochs=4, batch_size=8, micro_batch=4, group=4, learning_rate=2e-3, warmup=0.0, schedule="constant",
    weight_decay=0.0, max_grad_norm=1.0, save_steps=1, clip=0.2, beta=0.05,
)  # fmt: skip


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    return half_trained(tmp_path_factory.mktemp("half"))


def train(start, folder, name, config=CONFIG, lora=None, where=None):
    out, work = folder / name, folder / f"work-{name}"
    where = where or world()
    return grpo.run_grpo(where, config, TrainingRun(start, out, work, 3, lora)), out


def test_grpo_raises_the_reward(half, tmp_path):
    before = mean_reward(half, tmp_path)
    config = CONFIG.model_copy(
        update={"epochs": 20.0, "batch_size": 32, "micro_batch": 16, "group": 8, "beta": 0.0, "save_steps": 100}
    )
    report, out = train(half, tmp_path, "learned", config)
    assert 0.3 < before < 0.6
    assert mean_reward(out, tmp_path) > before + 0.15
    assert (report.rows, report.dropped, report.truncated, report.steps) == (320, 0, 0, 10)
    assert policy_dir.describe(out).name == policy_dir.describe(half).name + "+grpo"
    assert len({episode.policy.sha256 for episode in jsonl.read(out / "episodes.jsonl", Trajectory)}) == 10
    json.dumps(report.history)


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


@pytest.mark.parametrize("kl_from", ["start", "other"])
def test_a_step_follows_the_gradient_of_the_equation(half, tmp_path, kl_from):
    """Eq. 3 and 4 with plain loops in float64; TRL's own head computes in float32.

    The policy has moved away from the start, so that the KL term has a gradient: that of `beta` times the log-ratio.
    """
    reference = other_policy(half, tmp_path / "other") if kl_from == "other" else None
    run = TrainingRun(half, tmp_path / "out", tmp_path, seed=3)
    explorer = online.Explorer(world(), run)
    plan = [list(TASKS)]
    config = CONFIG.model_copy(update={"max_grad_norm": 1e9, "batch_size": 16, "group": 8, "beta": 2.0})
    trainer = grpo.group_trainer(explorer, plan, config, run, reference)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    moved = {name: weight.detach().double().clone() for name, weight in trainer.model.named_parameters()}
    witness = Witness(trainer.model)
    trainer.add_callback(witness)
    training.train(trainer, tmp_path)

    with closing(jsonl.Journal(tmp_path / "episodes-0.jsonl", Trajectory)) as journal:
        rows = [(episode.task.task_id, explorer.experience(episode)) for episode in journal.records]
    model, start = (loading.load_model(folder, dtype=torch.float64) for folder in (half, reference or half))
    model.load_state_dict(moved, strict=False)
    total, penalty, tokens = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0
    for task, row in rows:
        rewards = torch.tensor([other.reward for name, other in rows if name == task], dtype=torch.float64)
        advantage = (row.reward - rewards.mean()) / (rewards.std() + 1e-4)
        logits, before = (each(input_ids=torch.tensor([row.input_ids])).logits[0] for each in (model, start))
        for k in range(1, len(row)):
            if row.action_mask[k]:
                logp = torch.log_softmax(logits[k - 1], dim=-1)[row.input_ids[k]]
                ratio = (logp - torch.log_softmax(before[k - 1], dim=-1)[row.input_ids[k]]).detach()
                total, penalty, tokens = total - advantage * logp, penalty + 2.0 * ratio * logp, tokens + 1
    of_kl = torch.autograd.grad(penalty / tokens, list(model.parameters()), retain_graph=True)
    expected = torch.autograd.grad((total + penalty) / tokens, list(model.parameters()))
    scale = max(gradient.abs().max() for gradient in expected)
    assert scale > 1e-3 and max(gradient.abs().max() for gradient in of_kl) > 0.05 * scale
    for (name, _), gradient in zip(model.named_parameters(), expected, strict=True):
        assert (witness.gradients[name] - gradient).abs().max() < 1e-4 * scale, name


def test_adapters_have_no_other_reference_than_the_policy_without_them(half, tmp_path):
    run = TrainingRun(half, tmp_path / "out", tmp_path, 3, ADAPTERS)
    with pytest.raises(UserError, match="with `lora` the KL divergence is from the policy that training starts from"):
        grpo.run_grpo(world(), CONFIG, run, reference=half)


def test_adapters_of_a_layer_that_the_model_lacks_are_refused(half, tmp_path):
    with pytest.raises(UserError, match=r"`lora\.target_modules`: `q_porj` is not a linear layer of the decoder"):
        train(half, tmp_path, "wrong", lora=ADAPTERS.model_copy(update={"target_modules": ["q_porj"]}))


def test_a_reference_policy_with_other_weights_is_refused(half, tmp_path):
    other = shutil.copytree(half, tmp_path / "other")
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(UserError, match=r"other: its files hash to .*; rerun the stage that made the policy"):
        grpo.run_grpo(world(), CONFIG, TrainingRun(half, tmp_path / "out", tmp_path, 3), reference=other)


def test_each_step_plays_the_tasks_that_are_scheduled_for_it(half, tmp_path):
    config = CONFIG.model_copy(update={"epochs": 2.0, "group": 8})  # one of the two tasks a step
    report, out = train(half, tmp_path, "visits", config)
    schedule = [[task.task_id for task in step] for step in online.task_schedule(TASKS, 1, 2.0, seed=3)]
    played = [jsonl.read(tmp_path / f"work-visits/episodes-{step}.jsonl", Trajectory) for step in range(report.steps)]
    assert [sorted({episode.task.task_id for episode in step}) for step in played] == schedule
    assert {task for step in schedule for task in step} == {task.task_id for task in TASKS}
    assert [len(step) for step in played] == [8] * 4
    for step, episodes in enumerate(played):
        assert {episode.seed for episode in episodes} == {seeds.derive(3, "explore", step)}
    sampled = {episode.sampling for episode in jsonl.read(out / "episodes.jsonl", Trajectory)}
    assert sampled == {Sampling(temperature=1.0, top_p=1.0, max_new_tokens=16)}


def test_trl_gets_the_ids_that_were_sampled(half, tmp_path):
    run = TrainingRun(half, tmp_path / "out", tmp_path, seed=3)
    explorer = online.Explorer(world(), run)
    episodes = explorer.play(loading.load_model(half), 0, TASKS)
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


def test_episodes_of_other_weights_are_played_again(half, tmp_path, caplog):
    """As after a resumption on a GPU, whose repeated steps end in weights with other bits."""
    run = TrainingRun(half, tmp_path / "out", tmp_path, seed=3)
    explorer, model = online.Explorer(world(), run), loading.load_model(half)
    first = explorer.play(model, 0, TASKS)
    written = (tmp_path / "episodes-0.jsonl").read_bytes()
    assert explorer.play(model, 0, TASKS) == first
    assert (tmp_path / "episodes-0.jsonl").read_bytes() == written and not caplog.messages
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-3
    again = explorer.play(model, 0, TASKS)
    shas = {episode.policy.sha256 for episode in again}
    assert len(shas) == 1 and not shas & {episode.policy.sha256 for episode in first}
    kept = jsonl.read(tmp_path / "episodes-0.jsonl", Trajectory)
    assert len(kept) == len(again) == len(first) and {episode.policy.sha256 for episode in kept} == shas
    assert caplog.messages == ["step 0: 2 episodes of other weights, from before the resumption, are discarded."]


@pytest.mark.parametrize("lora", [None, ADAPTERS], ids=["full", "lora"])
def test_an_interrupted_training_ends_in_the_same_bytes(half, tmp_path, lora):
    whole, straight = train(half, tmp_path, "whole", lora=lora)
    with pytest.raises(CutOffError):
        train(half, tmp_path, "torn", lora=lora, where=interrupt(world(), 120))
    assert training.last_checkpoint(tmp_path / "work-torn") is not None
    resumed, out = train(half, tmp_path, "torn", lora=lora)
    assert policy_dir.describe(out).sha256 == policy_dir.describe(straight).sha256 != policy_dir.describe(half).sha256
    assert [step["loss"] for step in resumed.history] == [step["loss"] for step in whole.history]
    assert resumed.rows == whole.rows == 32


def test_a_broken_world_is_no_experience(half, tmp_path):
    broken = [task.model_copy(update={"data": {"key": 0, "broken": 99}}) for task in TASKS]
    report, _ = train(half, tmp_path, "broken", where=world(tasks=broken))
    assert 0 < report.dropped < 32 and report.rows == 32 - report.dropped
    assert all(step["loss"] == pytest.approx(0.0, abs=1e-6) for step in report.history), "all that is left is worth 0"


def test_batches_are_whole_groups():
    with pytest.raises(ValidationError, match="multiple of `group`"):
        GrpoConfig(**{**CONFIG.model_dump(), "group": 3})


def test_one_device(half, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="GRPO trains on one device"):
        train(half, tmp_path, "two")


def test_no_telemetry(half, tmp_path, monkeypatch):
    """TRL sends it where a trainer is made, except in CI."""
    sent = []
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(base_trainer, "send_telemetry", lambda **kwargs: sent.append(kwargs))
    run = TrainingRun(half, tmp_path / "out", tmp_path, seed=3)
    grpo.group_trainer(online.Explorer(world(), run), [list(TASKS)], CONFIG, run, None)
    assert sent == []


def test_a_process_trains_on_one_of_several_gpus(half, tmp_path, monkeypatch):
    """Where two are visible, transformers would take twice as many episodes in each step."""
    alone, _ = train(half, tmp_path, "alone")
    prepare = TrainingArguments.__post_init__

    def prepare_two(args):
        prepare(args)
        args._n_gpu = 2

    monkeypatch.setattr(TrainingArguments, "__post_init__", prepare_two)
    beside_another, _ = train(half, tmp_path, "beside_another")
    assert [step["loss"] for step in beside_another.history] == [step["loss"] for step in alone.history]
