"""PPO over multi-turn episodes. TRL removed its PPO trainer, which did not mask observations.

Schulman et al. 2017 (eq. 7, the clipped ratio; eq. 11 and 12, GAE; section 5, pass after pass over the same episodes)
on action tokens. Observation tokens are neither states nor actions: the state after an action token is the one before
the next action token. The reward of the episode is given at the last action token, a KL penalty against the start
policy at each (Ouyang et al. 2022, eq. 2). A linear head on the policy's last hidden state estimates the value of the
state before a token.

Shapes: B episodes, T predicted tokens; `action_mask` [B, T] is True at action tokens. Values at other tokens do not
affect any result.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Sequence
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
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.records.training import TrainReport
from coevolve.storage import policy_dir
from coevolve.train import online, policy_io
from coevolve.train.collate import collate
from coevolve.train.online import Experience, Explorer, OnlineSetup
from coevolve.train.policy_io import TrainingRun

logger = logging.getLogger(__name__)

_CHECKPOINT = "ppo.pt"


@dataclass(frozen=True)
class PpoBatch:
    """The data of an iteration, all [B, T]: log-probs in nats and values before its first step, the (whitened)
    advantages and the returns computed from them, and the action mask.
    """

    logps: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    action_mask: Tensor

    def select(self, episodes: Sequence[int], width: int) -> PpoBatch:
        """Some of the episodes, `width` predicted tokens of each."""
        return PpoBatch(*(tensor[list(episodes), :width] for tensor in vars(self).values()))


def token_rewards(rewards: Tensor, kl: Tensor, action_mask: Tensor, weight: float) -> Tensor:
    """Rewards of the action tokens, [B, T]: -`weight` times `kl` [B, T], and at the last of them the episode's, [B]."""
    left = action_mask.flip(1).cumsum(dim=1).flip(1)  # action tokens from this one on
    last = action_mask & (left == 1)
    return (-weight * kl).masked_fill(~action_mask, 0.0) + last * rewards[:, None]


def gae(rewards: Tensor, values: Tensor, action_mask: Tensor, *, discount: float, gae_lambda: float) -> Tensor:
    """Advantages of the action tokens, [B, T], 0 elsewhere (Schulman et al. 2017, eq. 11 and 12).

    delta_k = r_k + gamma V_k' - V_k and A_k = delta_k + gamma lambda A_k', where k' is the next action token; after the
    last one both are 0, for every stop reason.
    """
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    for k in reversed(range(values.shape[1])):
        delta = rewards[:, k] + discount * next_value - values[:, k]
        is_action, advantage = action_mask[:, k], delta + discount * gae_lambda * next_advantage
        next_value = torch.where(is_action, values[:, k], next_value)
        next_advantage = torch.where(is_action, advantage, next_advantage)
        advantages[:, k] = advantage.masked_fill(~is_action, 0.0)
    return advantages


def whiten(values: Tensor, action_mask: Tensor) -> Tensor:
    """`values` [B, T] with mean 0 and deviation 1 over all action tokens, 0 elsewhere (choice: as is usual)."""
    unmasked = values[action_mask]
    return ((values - unmasked.mean()) / (unmasked.std(correction=0) + 1e-8)).masked_fill(~action_mask, 0.0)


def ppo_losses(logps: Tensor, values: Tensor, old: PpoBatch, *, clip: float, value_clip: float) -> Tensor:
    """Sums over action tokens, [3]: of the policy term, of the value term, and of tokens whose ratio was clipped.

    Schulman et al. 2017, eq. 7, as a loss: max(-A rho, -A clip(rho, 1 - `clip`, 1 + `clip`)), rho = pi / pi_old. The
    value term is 1/2 max((V - R)^2, (V_old + clip(V - V_old, +- `value_clip`) - R)^2) (choice: clipped, as OpenAI's
    code does and the paper does not).
    """
    ratio = torch.exp((logps - old.logps).masked_fill(~old.action_mask, 0.0))
    plain, bounded = -old.advantages * ratio, -old.advantages * ratio.clamp(1 - clip, 1 + clip)
    near = old.values + (values - old.values).clamp(-value_clip, value_clip)
    value = torch.maximum((values - old.returns) ** 2, (near - old.returns) ** 2) / 2
    terms = (torch.maximum(plain, bounded), value, (bounded > plain).float())
    return torch.stack([term.masked_fill(~old.action_mask, 0.0).sum() for term in terms])


class PpoTrainer:
    """A policy, its value head, 0 at first, and their optimiser; `reference` None: the policy without adapters."""

    def __init__(
        self, model: Any, reference: Any | None, config: PpoConfig, seed: int, dtype: str | None = None
    ) -> None:
        mixed = loading.compute_dtype(dtype) == torch.bfloat16
        self.accelerator = Accelerator(mixed_precision="bf16" if mixed else "no")
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

    def learn(self, episodes: Sequence[Experience], iteration: int) -> None:
        """Train for `passes` passes over the episodes; adds one entry per step to the history."""
        batch, metrics = self.estimate(episodes)
        with seeded(self._seed, "dropout", iteration):
            for number in range(self._config.passes):
                order = seeds.generator(self._seed, "pass", iteration, number).permutation(len(episodes)).tolist()
                for first in range(0, len(episodes), self._config.batch_size):
                    selected = order[first : first + self._config.batch_size]
                    self.history.append(
                        {"step": len(self.history) + 1, **metrics, **self.step(episodes, batch, selected)}
                    )

    def estimate(self, episodes: Sequence[Experience]) -> tuple[PpoBatch, dict[str, float]]:
        """Advantages and returns of the episodes, and their mean reward and KL (nats per episode)."""
        config, width = self._config, max(map(len, episodes)) - 1
        parts: list[list[Tensor]] = []
        with torch.no_grad(), online.evaluating(self.model):
            for first in range(0, len(episodes), config.micro_batch):
                micro = episodes[first : first + config.micro_batch]
                tensors = (*self.forward(micro), self.reference(micro))
                parts.append([pad(tensor, (0, width - tensor.shape[1])) for tensor in tensors])
        logps, values, action_mask, reference = (torch.cat(part) for part in zip(*parts, strict=True))
        kl = (logps - reference).masked_fill(~action_mask, 0.0)
        outcomes = torch.tensor([episode.reward for episode in episodes], device=values.device, dtype=values.dtype)
        rewards = token_rewards(outcomes, kl, action_mask, config.kl)
        advantages = gae(rewards, values, action_mask, discount=config.discount, gae_lambda=config.gae_lambda)
        batch = PpoBatch(logps, values, whiten(advantages, action_mask), advantages + values, action_mask)
        return batch, {"reward": outcomes.mean().item(), "kl": kl.sum(dim=1).mean().item()}

    def step(self, episodes: Sequence[Experience], batch: PpoBatch, selected: Sequence[int]) -> dict[str, float]:
        """One optimiser step on the mean loss over the action tokens of the selected episodes; returns its metrics."""
        config, tokens = self._config, int(batch.action_mask[list(selected)].sum())
        sums = torch.zeros(3, dtype=torch.float64)
        self._optimizer.zero_grad()
        for first in range(0, len(selected), config.micro_batch):
            micro = selected[first : first + config.micro_batch]
            logps, values, _ = self.forward([episodes[index] for index in micro])
            old = batch.select(micro, logps.shape[1])
            shares = ppo_losses(logps, values, old, clip=config.clip, value_clip=config.value_clip) / tokens
            self.accelerator.backward(shares[0] + config.value_weight * shares[1])
            sums += shares.detach().double().cpu()
        norm = torch.nn.utils.clip_grad_norm_([*self._trained, *self.head.parameters()], config.max_grad_norm).item()
        policy, value, clipped = sums.tolist()
        loss = policy + config.value_weight * value
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise UserError(f"PPO: loss {loss}, gradient norm {norm}; lower `ppo.learning_rate`.")
        self._optimizer.step()
        return {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": config.learning_rate,
            "policy_loss": policy,
            "value_loss": value,
            "clipped": clipped,
        }

    def forward(self, episodes: Sequence[Experience]) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs and values of the action tokens, 0 elsewhere, and the action mask; all [B, T]."""
        ids, action_mask = self._tensors(episodes)
        with self.accelerator.autocast():
            hidden, logps = _predict(self.model, ids, action_mask)
            values = self.head(hidden).squeeze(-1).to(logps.dtype)
        empty = logps.new_zeros(action_mask.shape)
        return empty.masked_scatter(action_mask, logps), empty.masked_scatter(action_mask, values), action_mask

    def reference(self, episodes: Sequence[Experience]) -> Tensor:
        """Log-probs of the action tokens under the start policy, 0 elsewhere, [B, T]."""
        ids, action_mask = self._tensors(episodes)
        model = self._reference or self.model
        without = contextlib.nullcontext() if self._reference else self.model.disable_adapter()
        with torch.no_grad(), self.accelerator.autocast(), without:
            _, logps = _predict(model, ids, action_mask)
        return logps.new_zeros(action_mask.shape).masked_scatter(action_mask, logps)

    def save(self, work: Path, iteration: int) -> None:
        """Write the state after `iteration`, atomically."""
        state = {
            "iteration": iteration,
            "model": {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad},
            "head": self.head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "history": self.history,
        }
        temporary = work / f".{_CHECKPOINT}.tmp"
        torch.save(state, temporary)
        temporary.replace(work / _CHECKPOINT)

    def resume(self, work: Path) -> int:
        """Load the state that `save` wrote, if there is one; returns the number of completed iterations."""
        if not (work / _CHECKPOINT).exists():
            return 0
        state = torch.load(work / _CHECKPOINT, map_location=self.accelerator.device, weights_only=True)
        self.model.load_state_dict(state["model"], strict=False)
        self.head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.history = state["history"]
        return int(state["iteration"])

    def _tensors(self, episodes: Sequence[Experience]) -> tuple[Tensor, Tensor]:
        """Token ids [B, T + 1], and the action mask [B, T] of all but the first."""
        batch = collate([[episode] for episode in episodes], "padded")
        ids, action_mask = (batch[name].to(self.accelerator.device) for name in ("input_ids", "action_mask"))
        return ids, action_mask


def run_ppo(setup: OnlineSetup, config: PpoConfig, run: TrainingRun) -> TrainReport:
    """Train by PPO on the policy's own episodes in `setup`.

    A killed training that is started again ends in the same bytes. Episodes whose environment failed are left out; an
    iteration without any other is skipped. Raises `UserError` as `run_sft` does, and under more than one process.
    """
    started = time.monotonic()
    online.require_single_process("PPO")
    before = policy_dir.describe(run.start)
    explorer = Explorer(setup, run)
    model, reference = policy_io.load(run.start), None if run.lora else policy_io.load(run.start)
    if run.lora:
        with seeded(run.seed, "adapters"):
            model = policy_io.add_adapters(model, run.lora)
    trainer = PpoTrainer(model, reference, config, run.seed, run.dtype)
    schedule = online.task_schedule(setup.tasks, config.rollouts, config.epochs, run.seed)
    for iteration in range(trainer.resume(run.work), len(schedule)):
        episodes = explorer.play(trainer.model, iteration, schedule[iteration])
        experiences = [experience for experience in map(explorer.experience, episodes) if experience is not None]
        if experiences:
            trainer.learn(experiences, iteration)
        trainer.save(run.work, iteration + 1)
        logger.info("iteration %d of %d, reward %.3f", iteration + 1, len(schedule), fmean(e.reward for e in episodes))
    policy_io.write(trainer, run, before, "ppo")
    seconds = time.monotonic() - started
    return explorer.report(trainer.history, steps=len(schedule), passes=config.passes, seconds=seconds)


@contextlib.contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Derive torch's random numbers (dropout, new adapters) from `seed` inside the block; restore its state after."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seeds.derive(seed, *names))
        yield


def _predict(model: Any, ids: Tensor, action_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden state before each action token, [N, hidden], and the token's log-prob in nats, [N]."""
    model = online.causal_lm(model)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][action_mask]
    logits = model.get_output_embeddings()(hidden)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return hidden, -cross_entropy(wide, ids[:, 1:][action_mask], reduction="none")
