"""PPO over multi-turn episodes. TRL removed its PPO trainer, which did not mask observations.

Schulman et al. 2017 (eq. 7, the clipped ratio; eq. 11 and 12, GAE; section 5, pass after pass over the same episodes)
on action tokens. Observation tokens are neither states nor actions: the state after an action token is the one before
the next action token. The reward of the episode is given at the last action token, a KL penalty against the start
policy at each (Ouyang et al. 2022, eq. 2). A linear head on the policy's last hidden state estimates the value of the
state before a token.

Shapes: B episodes, T predicted tokens; `action_mask` [B, T] is True at action tokens. Values at other tokens do not
affect any result.

Of several processes each plays a part of an iteration's episodes, and all hold all of them as token ids. Each makes the
passes over its share of a batch. The losses are means over the action tokens of the batch, so the number of processes
changes them by rounding only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import (  # type: ignore[import-untyped]
    FullyShardedDataParallelPlugin,
    InitProcessGroupKwargs,
    gather_object,
)
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from coevolve import seeds
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.records.training import TrainReport
from coevolve.storage import files
from coevolve.train import online, policy_io
from coevolve.train import trainer as training
from coevolve.train.collate import collate
from coevolve.train.online import Experience, Explorer, OnlineSetup, seeded
from coevolve.train.policy_io import TrainingRun
from coevolve.train.settings import PpoConfig

logger = logging.getLogger(__name__)

#: TRL's name of the mean distance between log-probs of sampling and of the training's passes, in nats per token.
SAMPLING_DISTANCE = "sampling/sampling_logp_difference/mean"


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


class ActorCritic(torch.nn.Module):
    """A policy and its value head, 0 at first, as one module, which a launch wraps or divides over the ranks."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy, self.config = policy, policy.config
        self._no_split_modules = policy._no_split_modules  # FSDP divides each of these layers
        self.head = torch.nn.Linear(policy.config.hidden_size, 1, dtype=policy.dtype)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, ids: Tensor, action_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs in nats of the action tokens, and values of the states before them, both [N]."""
        hidden, logps = _predict(self.policy, ids, action_mask)
        return logps, self.head(hidden).squeeze(-1)


class PpoTrainer:
    """A policy, its value head and their optimiser; `reference` None: the policy without adapters."""

    def __init__(
        self, model: Any, reference: Any | None, config: PpoConfig, seed: int, dtype: str | None = None
    ) -> None:
        self.accelerator = accelerator(config, mixed=loading.compute_dtype(dtype) == torch.bfloat16)
        both = ActorCritic(model).to(self.accelerator.device).train()
        optimizer = torch.optim.AdamW(
            [weight for weight in both.parameters() if weight.requires_grad],
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
        )
        self.model_wrapped, self._optimizer = self.accelerator.prepare(both, optimizer)
        both = self.accelerator.unwrap_model(self.model_wrapped)
        self.model, self.head = both.policy, both.head
        self.history: list[dict[str, float]] = []
        self._reference = reference
        if reference is not None:
            reference.to(self.accelerator.device).requires_grad_(requires_grad=False)
        self._config, self._seed = config, seed

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
        assigned, each = self._share(range(len(episodes)))
        rows: list[Tensor] = []
        self.model_wrapped.eval()  # no dropout
        with torch.no_grad():
            for first in range(0, each, config.micro_batch):
                micro = [episodes[index] for index in assigned[first : first + config.micro_batch]] or episodes[:1]
                logps, values, _ = self.forward(micro)
                tensors = torch.stack((logps, values, self.reference(micro)), dim=1)
                rows.append(pad(tensors, (0, width - tensors.shape[-1])))
        self.model_wrapped.train()
        estimated = self._gathered(torch.cat(rows)[: len(assigned)], each)[: len(episodes)]
        logps, values, reference = estimated.unbind(1)
        _, action_mask = self._tensors(episodes)
        kl = (logps - reference).masked_fill(~action_mask, 0.0)
        outcomes = values.new_tensor([episode.reward for episode in episodes])
        rewards = token_rewards(outcomes, kl, action_mask, config.kl)
        advantages = gae(rewards, values, action_mask, discount=config.discount, gae_lambda=config.gae_lambda)
        batch = PpoBatch(logps, values, whiten(advantages, action_mask), advantages + values, action_mask)
        metrics = {"reward": outcomes.mean().item(), "kl": kl.sum(dim=1).mean().item()}
        if sampled := [logp for episode in episodes for logp in episode.logps]:
            distance = logps[action_mask] - logps.new_tensor(sampled)
            metrics[SAMPLING_DISTANCE] = distance.abs().mean().item()
        return batch, metrics

    def step(self, episodes: Sequence[Experience], batch: PpoBatch, selected: Sequence[int]) -> dict[str, float]:
        """One optimiser step on the mean loss over the action tokens of the selected episodes; returns its metrics."""
        config, tokens = self._config, int(batch.action_mask[list(selected)].sum())
        sums = torch.zeros(3, dtype=torch.float64, device=self.accelerator.device)
        assigned, each = self._share(selected)
        self._optimizer.zero_grad()
        for first in range(0, each, config.micro_batch):
            micro = assigned[first : first + config.micro_batch]
            with self._accumulating(last=first + config.micro_batch >= each):
                # All ranks make equally many passes; those of a rank without an episode have weight 0.
                logps, values, _ = self.forward([episodes[index] for index in micro or selected[:1]])
                old = batch.select(micro or selected[:1], logps.shape[1])
                shares = ppo_losses(logps, values, old, clip=config.clip, value_clip=config.value_clip) / tokens
                shares = shares if micro else shares * 0
                # Gradients are averaged over ranks.
                loss = (shares[0] + config.value_weight * shares[1]) * self.accelerator.num_processes
                self.accelerator.backward(loss)
            sums += shares.detach().double()
        norm = float(self.accelerator.clip_grad_norm_(self.model_wrapped.parameters(), config.max_grad_norm))
        policy, value, clipped = self.accelerator.reduce(sums, "sum").tolist()
        total = policy + config.value_weight * value
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise UserError(f"PPO: loss {total}, gradient norm {norm}; lower `ppo.learning_rate`.")
        self._optimizer.step()
        return {
            "loss": total,
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
            logps, values = self.model_wrapped(ids, action_mask)
        empty = logps.new_zeros(action_mask.shape)
        values = values.to(logps.dtype)
        return empty.masked_scatter(action_mask, logps), empty.masked_scatter(action_mask, values), action_mask

    def reference(self, episodes: Sequence[Experience]) -> Tensor:
        """Log-probs of the action tokens under the start policy, 0 elsewhere, [B, T]."""
        ids, action_mask = self._tensors(episodes)
        with torch.no_grad(), self.accelerator.autocast():
            if self._reference is not None:
                _, logps = _predict(self._reference, ids, action_mask)
            else:
                with self.model.disable_adapter():
                    logps, _ = self.model_wrapped(ids, action_mask)
        return logps.new_zeros(action_mask.shape).masked_scatter(action_mask, logps)

    def save(self, work: Path, iteration: int) -> None:
        """Write the state after `iteration`; all ranks call this together, and the last file says that it is whole."""
        folder = work / f"checkpoint-{iteration}"
        self.accelerator.save_state(str(folder))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            state = {"global_step": iteration, "history": self.history}
            files.write_bytes(folder / training.STATE, json.dumps(state).encode())
            for older in work.glob("checkpoint-*"):
                if older != folder:
                    shutil.rmtree(older)

    def resume(self, work: Path) -> int:
        """Load the last state that `save` wrote, if there is one; returns the number of completed iterations."""
        with self.accelerator.main_process_first():
            folder = training.last_checkpoint(work)
        if folder is None:
            return 0
        logger.info("resuming from %s", folder.name)
        self.accelerator.load_state(str(folder))
        state = json.loads((folder / training.STATE).read_text())
        self.history = state["history"]
        return int(state["global_step"])

    def _share(self, selected: Sequence[int]) -> tuple[list[int], int]:
        """The rank's share of the selected episodes, and how many a rank has at most."""
        each = -(-len(selected) // self.accelerator.num_processes)
        first = self.accelerator.process_index * each
        return list(selected[first : first + each]), each

    def _gathered(self, rows: Tensor, each: int) -> Tensor:
        """The rows of all ranks, of which each adds empty rows up to `each`."""
        rows = torch.cat([rows, rows.new_zeros((each - len(rows), *rows.shape[1:]))])
        gathered: Tensor = self.accelerator.gather(rows)
        return gathered

    def _accumulating(self, *, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Within it, gradients are added up on each rank; the ranks exchange them in a step's `last` pass."""
        self.accelerator.gradient_state._set_sync_gradients(last)
        return contextlib.nullcontext() if last else self.accelerator.no_sync(self.model_wrapped)

    def _tensors(self, episodes: Sequence[Experience]) -> tuple[Tensor, Tensor]:
        """Token ids [B, T + 1], and the action mask [B, T] of all but the first."""
        batch = collate([[episode] for episode in episodes], "padded")
        ids, action_mask = (batch[name].to(self.accelerator.device) for name in ("input_ids", "action_mask"))
        return ids, action_mask


def accelerator(config: PpoConfig, *, mixed: bool) -> Accelerator:
    """The launch's accelerator; `mixed`: autocast to bfloat16 over float32 weights, as in the other trainings."""
    sharded, divided = (os.environ.get(f"ACCELERATE_USE_{kind}") == "true" for kind in ("DEEPSPEED", "FSDP"))
    policy = {"mixed_precision_policy": training.FSDP_PRECISION}
    plugin = FullyShardedDataParallelPlugin(**policy) if divided else None
    on_cpus = online.world_size() > 1 and not torch.cuda.is_available()
    logging.getLogger("accelerate").setLevel(logging.WARNING)  # it reports every file of a checkpoint
    made = Accelerator(
        mixed_precision="bf16" if mixed and not sharded else "no",
        fsdp_plugin=plugin,
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")] if on_cpus else None,
    )
    if sharded:
        made.state.deepspeed_plugin.deepspeed_config |= training.deepspeed_precision(mixed) | {
            "train_micro_batch_size_per_gpu": config.micro_batch,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": config.max_grad_norm,
        }
    return made


def run_ppo(setup: OnlineSetup, config: PpoConfig, run: TrainingRun) -> TrainReport:
    """Train by PPO on the policy's own episodes in `setup`.

    A killed training that is started again ends in the same bytes. Episodes whose environment failed are left out; an
    iteration without any other is skipped. Raises `UserError` as `run_sft` does, and for more processes than episodes.
    """
    started, each = time.monotonic(), episodes_per_rank(config)
    explorer = Explorer(setup, run)
    model = policy_io.load(run.start)
    reference = None if run.lora else loading.load_model(run.start, loading.compute_dtype(run.dtype))
    if run.lora:
        with seeded(run.seed, "adapters"):
            model = policy_io.add_adapters(model, run.lora)
    trainer = PpoTrainer(model, reference, config, run.seed, run.dtype)
    schedule = online.task_schedule(setup.tasks, config.rollouts, config.epochs, run.seed)
    part = slice(online.rank() * each, (online.rank() + 1) * each)
    for iteration in range(trainer.resume(run.work), len(schedule)):
        episodes = explorer.play(trainer.model, iteration, schedule[iteration], part)
        played = gather_object([(explorer.experience(episode), episode.reward) for episode in episodes])
        experiences = [experience for experience, _ in played if experience is not None]
        if experiences:
            trainer.learn(experiences, iteration)
        trainer.save(run.work, iteration + 1)
        logger.info(
            "iteration %d of %d, reward %.3f", iteration + 1, len(schedule), fmean(reward for _, reward in played)
        )
    policy_io.write(trainer, run, explorer.start, "ppo", prefix="policy.")
    seconds = time.monotonic() - started
    return explorer.report(trainer.history, steps=len(schedule), passes=config.passes, seconds=seconds)


def episodes_per_rank(config: PpoConfig) -> int:
    """The episodes of an iteration that a rank plays; raises `UserError` for more processes than episodes."""
    return online.per_rank(config.rollouts, "episodes (`ppo.rollouts`)")


def _predict(model: Any, ids: Tensor, action_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden state before each action token, [N, hidden], and the token's log-prob in nats, [N]."""
    # Not accelerate's `is_peft_model`, which reads the metadata of installed packages: 20 ms in each pass.
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][action_mask]
    logits = model.get_output_embeddings()(hidden)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return hidden, -cross_entropy(wide, ids[:, 1:][action_mask], reduction="none")
