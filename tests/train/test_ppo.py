"""PPO: its equations against plain loops in float64."""

import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from train.doors import PPO, train
from train.settings import ADAPTERS

from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.train import ppo
from coevolve.train.online import Experience

SHAPE = (4, 17)


# The reference: one episode at a time, its action tokens alone, in plain numbers.


def reference_rewards(reward, kl, weight):
    rewards = [-weight * k for k in kl]
    rewards[-1] += reward
    return rewards


def reference_gae(rewards, values, discount, gae_lambda):
    """Eq. 11 of the GAE paper as the sum it is: A_t = sum_l (gamma lambda)^l delta_{t+l}."""
    after = [*values[1:], 0.0]
    deltas = [r + discount * later - now for r, later, now in zip(rewards, after, values, strict=True)]
    return [
        sum((discount * gae_lambda) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))
    ]


def reference_loss(logp, value, old, config):
    """Of one action token; `old`: its log-prob, value, advantage and return."""
    old_logp, old_value, advantage, goal = old
    low, high, near = torch.tensor([1 - config.clip, 1 + config.clip, config.value_clip], dtype=torch.float64)
    ratio = torch.exp(logp - old_logp)
    policy = -min(ratio * advantage, min(max(ratio, low), high) * advantage)
    moved = old_value + min(max(value - old_value, -near), near)
    critic = max((value - goal) ** 2, (moved - goal) ** 2) / 2
    return policy + config.value_weight * critic


def random_batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    logps, values, kl = torch.randn((3, *SHAPE), generator=generator, dtype=torch.float64)
    actions = torch.rand(SHAPE, generator=generator) < 0.4
    actions[:, 5] = True
    return logps, values, kl, torch.tensor([1.0, 0.0, 0.25, -0.5], dtype=torch.float64), actions


def test_rewards_and_advantages_are_those_of_the_action_tokens_alone():
    _, values, kl, outcomes, actions = random_batch()
    hidden = [tensor.masked_fill(~actions, math.nan) for tensor in (values, kl)]
    rewards = ppo.token_rewards(outcomes, hidden[1], actions, 0.05)
    advantages = ppo.gae(rewards, hidden[0], actions, discount=0.97, gae_lambda=0.9)
    for episode, acted in enumerate(actions):
        expected = reference_rewards(outcomes[episode].item(), kl[episode][acted].tolist(), 0.05)
        assert rewards[episode][acted].tolist() == pytest.approx(expected, rel=1e-12)
        expected = reference_gae(expected, values[episode][acted].tolist(), 0.97, 0.9)
        assert advantages[episode][acted].tolist() == pytest.approx(expected, rel=1e-12)
    assert (rewards[~actions] == 0).all() and (advantages[~actions] == 0).all()


def random_experience(seed):
    rng = np.random.default_rng(seed)
    length = int(rng.integers(12, 30))
    mask = [0] * 4 + rng.integers(0, 2, length - 4).tolist()
    mask[5] = 1
    ids = tuple(rng.integers(5, 300, length).tolist())
    return Experience(ids, tuple(mask), prompt=4, reward=float(rng.random()), truncated=False)


def plain(model, head, row):
    """(log-prob, value) of each action token of one row, by the model's own full output."""
    output = model(input_ids=torch.tensor([row.input_ids]), output_hidden_states=True)
    found = []
    for k in range(1, len(row)):
        if row.action_mask[k]:
            logp = torch.log_softmax(output.logits[0, k - 1], dim=-1)[row.input_ids[k]]
            found.append((logp, head(output.hidden_states[-1][0, k - 1])[0]))
    return found


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_a_step_follows_the_gradient_of_the_equations(llama, other, micro):
    """The trainer against plain loops, in float64, once its policy has moved away from the one that played."""
    rows = [random_experience(seed) for seed in range(3)]
    config = PPO.model_copy(update={"micro_batch": micro, "batch_size": 3, "max_grad_norm": 1e9})
    model, reference = (loading.load_model(path, dtype=torch.float64) for path in (llama, other))
    trainer = ppo.PpoTrainer(model, reference, config, seed=1)
    torch.nn.init.normal_(trainer.head.weight, generator=torch.Generator().manual_seed(0))

    before = [[(logp.item(), value.item()) for logp, value in plain(model, trainer.head, row)] for row in rows]
    under = [[logp.item() for logp, _ in plain(reference, trainer.head, row)] for row in rows]
    kl = [[now[0] - then for now, then in zip(*pair, strict=True)] for pair in zip(before, under, strict=True)]
    advantages = [
        reference_gae(
            reference_rewards(row.reward, kl[i], config.kl), [value for _, value in before[i]], config.discount,
            config.gae_lambda,
        )
        for i, row in enumerate(rows)
    ]  # fmt: skip
    flat = np.concatenate(advantages)

    batch, seen = trainer.estimate(rows)
    assert seen["kl"] == pytest.approx(np.mean([sum(episode) for episode in kl]), rel=1e-9)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1), dtype=weight.dtype)
    total, clipped = torch.zeros((), dtype=torch.float64), 0
    for i, row in enumerate(rows):
        for k, (logp, value) in enumerate(plain(model, trainer.head, row)):
            advantage = (advantages[i][k] - flat.mean()) / (flat.std() + 1e-8)
            old = (*before[i][k], advantage, advantages[i][k] + before[i][k][1])
            ratio = math.exp(logp.item() - old[0])
            clipped += ratio > 1 + config.clip if advantage > 0 else ratio < 1 - config.clip
            total = total + reference_loss(logp, value, [torch.tensor(x, dtype=torch.float64) for x in old], config)
    weights = [*model.parameters(), *trainer.head.parameters()]
    expected = torch.autograd.grad(total / len(flat), weights)

    logged = trainer.step(rows, batch, [2, 0, 1])
    assert logged["clipped"] == pytest.approx(clipped / len(flat)) and 0 < clipped < len(flat)
    assert logged["learning_rate"] == config.learning_rate
    assert logged["policy_loss"] + config.value_weight * logged["value_loss"] == pytest.approx(logged["loss"])
    assert logged["grad_norm"] == pytest.approx(sum(g.square().sum().item() for g in expected) ** 0.5, rel=1e-9)
    assert logged["loss"] == pytest.approx(total.item() / len(flat), rel=1e-9)
    scale = max(gradient.abs().max() for gradient in expected)
    for weight, gradient in zip(weights, expected, strict=True):
        assert (weight.grad - gradient).abs().max() <= 1e-9 * scale


def test_a_step_without_a_gradient_shrinks_the_weights_by_the_decay(llama, other):
    """AdamW: each step multiplies a weight by 1 - rate x decay."""
    config = PPO.model_copy(update={"weight_decay": 0.5, "learning_rate": 0.02, "kl": 0.0, "passes": 2})
    rows = [replace(random_experience(seed), reward=0.0) for seed in range(8)]
    model, reference = (loading.load_model(path, dtype=torch.float64) for path in (llama, other))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer = ppo.PpoTrainer(model, reference, config, seed=1)
    trainer.learn(rows, iteration=0)
    assert [step["grad_norm"] for step in trainer.history] == [0.0, 0.0]
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.detach(), before[name] * (1 - 0.02 * 0.5) ** 2)


def test_each_pass_visits_all_episodes_in_an_order_of_its_own(llama):
    class Recorder(ppo.PpoTrainer):
        """Keeps which episodes each step was given."""

        def step(self, episodes, batch, selected):
            visited.append(list(selected))
            return super().step(episodes, batch, selected)

    visited: list[list[int]] = []
    config = PPO.model_copy(update={"passes": 3, "batch_size": 4})
    trainer = Recorder(loading.load_model(llama), loading.load_model(llama), config, seed=1)
    rows = [random_experience(seed) for seed in range(12)]
    for iteration in range(2):
        trainer.learn(rows, iteration)
    passes = [list(chain.from_iterable(visited[first : first + 3])) for first in range(0, 18, 3)]
    assert all(sorted(order) == list(range(12)) for order in passes)
    assert len({tuple(order) for order in passes}) == 6


def test_a_loss_that_is_no_number_ends_the_training(half, tmp_path):
    with pytest.raises(UserError, match=r"lower `ppo\.learning_rate`"):
        train("ppo", half, tmp_path, "nan", learning_rate=1e30)
    assert not (tmp_path / "nan").exists()


def test_adapters_that_are_off_are_the_reference(half, tmp_path, monkeypatch):
    """No second model is held beside them."""
    made = []

    class Witness(ppo.PpoTrainer):
        def __init__(self, *given):
            made.append(given[1])
            super().__init__(*given)

    monkeypatch.setattr(ppo, "PpoTrainer", Witness)
    for lora in (None, ADAPTERS):
        train("ppo", half, tmp_path, f"with-{lora is not None}", lora, epochs=1.0)
    assert [reference is None for reference in made] == [False, True]
