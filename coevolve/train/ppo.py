"""PPO over multi-turn episodes, re-implemented here: TRL has removed its trainer, and never masked observations.

Schulman et al. 2017 (eq. 7, the clipped ratio; eq. 11 and 12, GAE; section 5, pass after pass over the same episodes)
on the tokens the agent chose. Between two of its tokens lie the environment's: they are neither states nor actions, so
the state after an action token is the one before the next action token. The episode's reward comes with the last action
token, a KL penalty against the start policy with each (Ouyang et al. 2022, eq. 2). A linear head on the policy's last
hidden state says the value of the state before a token.

Shapes: B episodes, T predicted tokens; `actions` [B, T] is True where the agent chose the token. What stands elsewhere
does not matter.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from coevolve import seeds
from coevolve.config.baselines import PpoConfig
from coevolve.config.sections import LoraConfig
from coevolve.errors import UserError
from coevolve.storage import policy_dir
from coevolve.train import online, policy_io
from coevolve.train.collate import lay
from coevolve.train.online import Experience, Explorer, World
from coevolve.train.train_report import TrainReport

logger = logging.getLogger(__name__)

_CHECKPOINT = "ppo.pt"


@dataclass(frozen=True)
class Batch:
    """What an iteration learns from, all [B, T]: log-probs in nats and values as they were before its first step, the
    advantages (whitened) and returns that follow from them, and where the actions are.
    """

    logps: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    actions: Tensor

    def select(self, episodes: Sequence[int], width: int) -> Batch:
        """Some of the episodes, `width` predicted tokens of each."""
        chosen = (tensor[list(episodes), :width] for tensor in vars(self).values())
        return Batch(*chosen)


@dataclass(frozen=True)
class Losses:
    """Per action token, 0 elsewhere, all [B, T]: the clipped policy term, the clipped value term, and 1 where the
    policy's ratio was clipped.
    """

    policy: Tensor
    value: Tensor
    clipped: Tensor


def token_rewards(rewards: Tensor, kl: Tensor, actions: Tensor, weight: float) -> Tensor:
    """Rewards of the action tokens, [B, T]: -`weight` times `kl` [B, T], and at the last of them the episode's, [B]."""
    left = actions.flip(1).cumsum(dim=1).flip(1)  # action tokens from here on
    last = actions & (left == 1)
    return (-weight * kl).masked_fill(~actions, 0.0) + last * rewards[:, None]


def gae(rewards: Tensor, values: Tensor, actions: Tensor, *, discount: float, gae_lambda: float) -> Tensor:
    """Advantages of the action tokens, [B, T], 0 elsewhere (Schulman et al. 2017, eq. 11 and 12).

    delta_k = r_k + gamma V_k' - V_k and A_k = delta_k + gamma lambda A_k', where k' is the next action token; after the
    last one both are 0, whatever ended the episode.
    """
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    for k in reversed(range(values.shape[1])):
        delta = rewards[:, k] + discount * next_value - values[:, k]
        acted, advantage = actions[:, k], delta + discount * gae_lambda * next_advantage
        next_value = torch.where(acted, values[:, k], next_value)
        next_advantage = torch.where(acted, advantage, next_advantage)
        advantages[:, k] = advantage.masked_fill(~acted, 0.0)
    return advantages


def whiten(values: Tensor, actions: Tensor) -> Tensor:
    """`values` [B, T] with mean 0 and deviation 1 over all action tokens, 0 elsewhere (choice: as is usual)."""
    acted = values[actions]
    return ((values - acted.mean()) / (acted.std(correction=0) + 1e-8)).masked_fill(~actions, 0.0)


def ppo_losses(logps: Tensor, values: Tensor, old: Batch, *, clip: float, value_clip: float) -> Losses:
    """Schulman et al. 2017, eq. 7, as a loss: max(-A rho, -A clip(rho, 1 - `clip`, 1 + `clip`)), rho = pi / pi_old.

    The value term is 1/2 max((V - R)^2, (V_old + clip(V - V_old, +- `value_clip`) - R)^2) (choice: clipped, as OpenAI's
    code does and the paper does not).
    """
    ratio = torch.exp((logps - old.logps).masked_fill(~old.actions, 0.0))
    plain, bounded = -old.advantages * ratio, -old.advantages * ratio.clamp(1 - clip, 1 + clip)
    near = old.values + (values - old.values).clamp(-value_clip, value_clip)
    value = torch.maximum((values - old.returns) ** 2, (near - old.returns) ** 2) / 2
    return Losses(
        policy=torch.maximum(plain, bounded).masked_fill(~old.actions, 0.0),
        value=value.masked_fill(~old.actions, 0.0),
        clipped=(bounded > plain).float().masked_fill(~old.actions, 0.0),
    )


class PpoTrainer:
    """A policy, its value head and their optimiser; `reference` None: the policy itself without its adapters.

    The head starts at 0 and the optimiser has no momentum yet, so the first advantages are the returns themselves.
    """

    def __init__(self, model: Any, reference: Any | None, config: PpoConfig, seed: int) -> None:
        self.accelerator = Accelerator(mixed_precision="bf16" if torch.cuda.is_available() else "no")
        device = self.accelerator.device
        self.model = self.model_wrapped = model.to(device).train()
        self.head = torch.nn.Linear(model.config.hidden_size, 1, device=device, dtype=model.dtype)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.history: list[dict[str, float]] = []
        self._reference = reference.to(device).requires_grad_(requires_grad=False) if reference is not None else None
        self._config, self._seed = config, seed
        self._trained = [weight for weight in model.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(
            [*self._trained, *self.head.parameters()], lr=config.learning_rate, weight_decay=config.weight_decay
        )

    def learn(self, rows: Sequence[Experience], iteration: int) -> None:
        """Take `passes` passes over the rows, and add an entry of history a step."""
        batch, seen = self.estimate(rows)
        with online.seeded(self._seed, "dropout", iteration):
            for number in range(self._config.passes):
                order = seeds.generator(self._seed, "pass", iteration, number).permutation(len(rows)).tolist()
                for first in range(0, len(rows), self._config.batch_size):
                    taken = order[first : first + self._config.batch_size]
                    self.history.append({"step": len(self.history) + 1, **seen, **self.step(rows, batch, taken)})

    def estimate(self, rows: Sequence[Experience]) -> tuple[Batch, dict[str, float]]:
        """What the rows teach the policy as it is, and the mean reward and KL (nats per episode) of the episodes."""
        config, width = self._config, max(row.tokens for row in rows) - 1
        parts: list[list[Tensor]] = []
        with torch.no_grad(), online.evaluating(self.model):
            for first in range(0, len(rows), config.micro_batch):
                micro = rows[first : first + config.micro_batch]
                found = (*self.forward(micro), self.reference(micro))
                parts.append([pad(tensor, (0, width - tensor.shape[1])) for tensor in found])
        logps, values, actions, reference = (torch.cat(part) for part in zip(*parts, strict=True))
        kl = (logps - reference).masked_fill(~actions, 0.0)
        outcomes = torch.tensor([row.reward for row in rows], device=values.device, dtype=values.dtype)
        rewards = token_rewards(outcomes, kl, actions, config.kl)
        advantages = gae(rewards, values, actions, discount=config.discount, gae_lambda=config.gae_lambda)
        batch = Batch(logps, values, whiten(advantages, actions), advantages + values, actions)
        return batch, {"reward": outcomes.mean().item(), "kl": kl.sum(dim=1).mean().item()}

    def step(self, rows: Sequence[Experience], batch: Batch, taken: Sequence[int]) -> dict[str, float]:
        """One step of the optimiser on the mean loss of the taken rows' action tokens; returns what is to be logged."""
        config, tokens = self._config, int(batch.actions[list(taken)].sum())
        sums = torch.zeros(3, dtype=torch.float64)
        self._optimizer.zero_grad()
        for first in range(0, len(taken), config.micro_batch):
            losses = self._micro_losses(rows, batch, taken[first : first + config.micro_batch])
            shares = torch.stack([losses.policy.sum(), losses.value.sum(), losses.clipped.sum()]) / tokens
            self.accelerator.backward(shares[0] + config.value_weight * shares[1])
            sums += shares.detach().double().cpu()
        norm = torch.nn.utils.clip_grad_norm_([*self._trained, *self.head.parameters()], config.max_grad_norm).item()
        policy, value, clipped = sums.tolist()
        loss = policy + config.value_weight * value
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise UserError(f"PPO: loss {loss}, gradient norm {norm}; lower `learning_rate`.")
        self._optimizer.step()
        own = {"policy_loss": policy, "value_loss": value, "clipped": clipped}
        return {"loss": loss, "grad_norm": norm, "learning_rate": config.learning_rate, **own}

    def forward(self, rows: Sequence[Experience]) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs and values of the action tokens, 0 elsewhere, and where those are; all [B, T]."""
        ids, targets, actions = self._tokens(rows)
        with self.accelerator.autocast():
            hidden, logps = _predict(self.model, ids, targets, actions)
            values = self.head(hidden).squeeze(-1).to(logps.dtype)
        empty = logps.new_zeros(actions.shape)
        return empty.masked_scatter(actions, logps), empty.masked_scatter(actions, values), actions

    def reference(self, rows: Sequence[Experience]) -> Tensor:
        """Log-probs of the action tokens under the start policy, 0 elsewhere, [B, T]."""
        ids, targets, actions = self._tokens(rows)
        model = self._reference or self.model
        without = contextlib.nullcontext() if self._reference else self.model.disable_adapter()
        with torch.no_grad(), self.accelerator.autocast(), without:
            _, logps = _predict(model, ids, targets, actions)
        return logps.new_zeros(actions.shape).masked_scatter(actions, logps)

    def save(self, work: Path, iteration: int) -> None:
        """Write all that the iterations after `iteration` depend on; the file is whole or the one before."""
        state = {
            "iteration": iteration,
            "model": {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad},
            "head": self.head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "history": self.history,
        }
        aside = work / f".{_CHECKPOINT}.tmp"
        torch.save(state, aside)
        aside.replace(work / _CHECKPOINT)

    def resume(self, work: Path) -> int:
        """Take up what `save` wrote, if anything; returns the number of iterations that are done."""
        if not (work / _CHECKPOINT).exists():
            return 0
        state = torch.load(work / _CHECKPOINT, map_location=self.accelerator.device, weights_only=True)
        self.model.load_state_dict(state["model"], strict=False)
        self.head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.history = state["history"]
        return int(state["iteration"])

    def _micro_losses(self, rows: Sequence[Experience], batch: Batch, taken: Sequence[int]) -> Losses:
        logps, values, _ = self.forward([rows[index] for index in taken])
        old = batch.select(taken, logps.shape[1])
        return ppo_losses(logps, values, old, clip=self._config.clip, value_clip=self._config.value_clip)

    def _tokens(self, rows: Sequence[Experience]) -> tuple[Tensor, Tensor, Tensor]:
        """The rows' ids [B, T + 1], the tokens to predict [B, T], and which of those are actions [B, T]."""
        batch = lay([[row] for row in rows], "padded")
        ids, learned = (batch[name].to(self.accelerator.device) for name in ("input_ids", "learned"))
        return ids, ids[:, 1:], learned


def run_ppo(
    world: World,
    *,
    start: Path,
    config: PpoConfig,
    lora: LoraConfig | None,
    seed: int,
    out: Path,
    work: Path,
    context: int | None = None,
) -> TrainReport:
    """Train the policy in `start` by PPO on the episodes that it plays in `world`; write the policy directory `out`.

    `context` None is the model's own. `work` keeps the last iteration's end and the episodes since: a killed training
    that is started again ends in the same bytes. An episode whose environment failed is no experience; an iteration
    without any is passed over. Raises `UserError` as `run_sft` does, and under more than one process.
    """
    began = time.monotonic()
    online.require_one_device("PPO")
    before = policy_dir.describe(start)
    explorer = Explorer(world, start, context=context, seed=seed, work=work)
    reference = None if lora else policy_io.load(start)  # without its adapters the policy is the one it started from
    trainer = PpoTrainer(online.load(start, lora, seed), reference, config, seed)
    plan = online.visits(world.tasks, config.rollouts, config.epochs, seed)
    for iteration in range(trainer.resume(work), len(plan)):
        episodes = explorer.play(trainer.model, iteration, plan[iteration])
        rows = [row for row in map(explorer.experience, episodes) if row is not None]
        if rows:
            trainer.learn(rows, iteration)
        trainer.save(work, iteration + 1)
        logger.info("iteration %d of %d, reward %.3f", iteration + 1, len(plan), fmean(e.reward for e in episodes))
    policy_io.write(trainer, start, before, out, "ppo")
    seconds = time.monotonic() - began
    return explorer.report(trainer.history, out, steps=len(plan), passes=config.passes, seconds=seconds)


def _predict(model: Any, ids: Tensor, targets: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Of each action token in order: the hidden state before it, [N, hidden], and its log-prob in nats, [N].

    The head sees no other position, which spares most of the logits.
    """
    model = online.causal(model)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][actions]
    logits = model.get_output_embeddings()(hidden)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return hidden, -cross_entropy(wide, targets[actions], reduction="none")
