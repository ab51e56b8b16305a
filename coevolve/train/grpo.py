"""GRPO (Shao et al. 2024) on TRL's GRPOTrainer, over the kit's environments.

A step samples a group of episodes for each of its tasks with the current policy. TRL's `rollout_func` hook returns the
episodes: the token ids as they were sampled, and in `env_mask` 1 for the sampled ids and 0 for those of observations,
which have no loss. The advantage of an episode is its reward minus the mean of its group, divided by the standard
deviation of the group. An episode whose environment failed, or without an action, has no reward: TRL excludes it from
the mean of its group and from the loss.

Of several processes each plays whole groups. If the last ranks have fewer, completions without an action and without a
reward fill the batch. They have no part in the loss, which is a mean over the action tokens of all ranks.

Sampling and the order of tasks are the kit's; `beta` and clipping come from the config; batch settings are those of the
other trainings. docs/read/decisions.md has the defaults of TRL that affect the result.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.policies.checkpoint import require_whole
from coevolve.records.episodes import Task
from coevolve.records.training import TrainReport
from coevolve.storage import policy_dir
from coevolve.train import online, policy_io, trainer
from coevolve.train.online import Experience, Explorer, OnlineSetup
from coevolve.train.policy_io import TrainingRun
from coevolve.train.settings import GrpoConfig


class GroupTrainer(trainer.ScheduledTrainer, GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer with the episodes of an `Explorer`; `schedule` holds the tasks of each step, one for each group.

    `by_group`: the loss of a group is the mean over its action tokens, without the KL term, and groups weigh the same.
    """

    vllm_generation: Any

    def __init__(
        self, *, explorer: Explorer, schedule: Sequence[Sequence[Task]], by_group: bool = False, **trl: Any
    ) -> None:
        self._explorer, self._schedule, self._by_group = explorer, schedule, by_group
        super().__init__(rollout_func=self._rollout, reward_funcs=[episode_reward], **trl)
        if explorer.keeps_logps:
            # TRL reads log-probs of sampling of vLLM alone, whose weights it also refreshes; the explorer does that.
            self.use_vllm, self._last_loaded_step = True, -1
            self.vllm_generation = SimpleNamespace(sync_weights=lambda: None)

    def _rollout(self, prompts: Sequence[str], _: Any) -> dict[str, Any]:
        """The rank's episodes of the step in TRL's format; only the number of `prompts` is used."""
        step, count, ranks = self.state.global_step, len(prompts), self.accelerator.num_processes
        tasks = [task for task in self._schedule[step] for _ in range(self.num_generations)]
        if count != -(-len(self._schedule[step]) // ranks) * self.num_generations:
            raise RuntimeError(f"step {step}: {len(tasks)} episodes for {ranks} ranks, TRL expects {count} on each")
        first = self.accelerator.process_index * count
        model = self.accelerator.unwrap_model(self.model)
        episodes = self._explorer.play(model, step, tasks, slice(first, first + count))
        experiences = [self._explorer.experience(episode) for episode in episodes]
        filled = experiences + [None] * (count - len(episodes))
        return completions(filled, self._explorer.end_of_turn, logps=self._explorer.keeps_logps)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch; its loss divides by the tokens of the step, so a group's advantages undo that `by_group`."""
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self._by_group:
            tokens = (batch["completion_mask"] * batch["tool_mask"]).sum(1).view(-1, self.num_generations).sum(1)
            groups = self.accelerator.gather((tokens > 0).sum()).sum()
            shares = batch["num_items_in_batch"] / (groups * tokens.clamp(min=1))
            batch["advantages"] = batch["advantages"] * shares.repeat_interleave(self.num_generations)
        return batch

    def _send_telemetry(self) -> None:
        pass


def completions(experiences: Sequence[Experience | None], end_of_turn: int, *, logps: bool = False) -> dict[str, Any]:
    """The return value of a `rollout_func`; None becomes a completion without an action or a reward.

    `logps`: with the log-probs of sampling. Without them TRL takes those of its own passes, which are the same where
    both compute in float32, because there is one gradient step per rollout.
    """
    dummy = Experience((end_of_turn,) * 2, (0, 0), prompt=1, reward=0.0, truncated=False)
    sequences = [experience or dummy for experience in experiences]
    return {
        "prompt_ids": [list(sequence.input_ids[: sequence.prompt]) for sequence in sequences],
        "completion_ids": [list(sequence.input_ids[sequence.prompt :]) for sequence in sequences],
        "env_mask": [list(sequence.action_mask[sequence.prompt :]) for sequence in sequences],
        "logprobs": [_logps(sequence) for sequence in sequences] if logps else None,
        "reward": [experience.reward if experience else None for experience in experiences],
    }


def _logps(sequence: Experience) -> list[float]:
    """A log-prob for each token of the completion; 0 for those that were not sampled."""
    sampled = iter(sequence.logps)
    return [next(sampled) if acted else 0.0 for acted in sequence.action_mask[sequence.prompt :]]


def episode_reward(reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """The rewards of the environment: the extra field `reward` of `completions`."""
    return list(reward)


def run_grpo(
    setup: OnlineSetup,
    config: GrpoConfig,
    run: TrainingRun,
    schedule: Sequence[Sequence[Task]] | None = None,
    reference: Path | None = None,
) -> TrainReport:
    """Train by GRPO on the policy's own episodes in `setup`.

    `schedule` holds the tasks of each step (None: all tasks, `config.epochs` times). `reference`: see `group_trainer`.
    A killed training that is started again ends in the same bytes. Raises `UserError` as `run_sft` does, and for more
    processes than groups in a step.
    """
    started = time.monotonic()
    episodes_per_rank(config)
    if reference:
        policy_dir.describe(reference)
        require_whole(reference)
    explorer = Explorer(setup, run)
    per_step = config.batch_size // config.group
    schedule = schedule or online.task_schedule(setup.tasks, per_step, config.epochs, run.seed)
    group = group_trainer(explorer, schedule, config, run, reference)
    history = trainer.train(group, run.work)
    policy_io.write(group, run, explorer.start, "grpo")
    return explorer.report(history, steps=len(schedule), passes=1, seconds=time.monotonic() - started)


def episodes_per_rank(config: GrpoConfig) -> int:
    """The episodes of a rank's groups of a step; raises `UserError` for more processes than groups."""
    groups = config.batch_size // config.group
    return online.per_rank(groups, "groups of episodes (`grpo.batch_size` / `grpo.group`)") * config.group


def _over_ranks(config: GrpoConfig) -> GrpoConfig:
    """The batch filled up so that all ranks have as many groups, in the largest micro-batches that divide it."""
    episodes = episodes_per_rank(config)
    micro = max(size for size in range(1, min(config.micro_batch, episodes) + 1) if episodes % size == 0)
    return config.model_copy(update={"batch_size": episodes * online.world_size(), "micro_batch": micro})


def group_trainer(
    explorer: Explorer,
    schedule: Sequence[Sequence[Task]],
    config: GrpoConfig,
    run: TrainingRun,
    reference: Path | None = None,
) -> GroupTrainer:
    """A trainer for the steps of `schedule`; the KL divergence is from the policy in `reference` (None: `run.start`).

    Raises `UserError` for a reference beside adapters: TRL takes the model without them.
    """
    if reference and run.lora:
        raise UserError(
            f"{reference}: with `lora` the KL divergence is from the policy that training starts from; "
            "give no `reference`."
        )
    model = policy_io.load(run.start)
    model.config._name_or_path = str(reference or policy_dir.first_of(run.start))  # TRL loads its reference policy
    padded = _over_ranks(config)
    slots = len(schedule) * padded.batch_size
    settings = trainer.training_settings(padded, config.learning_rate, run, slots=slots, model=model) | {
        "num_generations": config.group,
        "beta": config.beta,
        "epsilon": config.clip,
        # A ratio of 1 is no correction, but TRL logs how far the log-probs of sampling are from the training's.
        "vllm_importance_sampling_mode": config.importance_sampling or "token_truncate",
        "vllm_importance_sampling_clip_min": None if config.importance_sampling else 1.0 - 1e-9,  # 1 in float32
        "vllm_importance_sampling_clip_max": 3.0 if config.importance_sampling else 1.0,
        "model_init_kwargs": {"dtype": "bfloat16"} if run.mixed else None,  # of the reference policy of the KL term
        "max_completion_length": explorer.context,  # the explorer truncates
        "shuffle_dataset": False,
    }
    return GroupTrainer(
        explorer=explorer,
        schedule=schedule,
        by_group=config.normalize == "group",
        model=model,
        args=trainer.single_device(trainer.full_precision(GRPOConfig(**settings), mixed=run.mixed)),
        train_dataset=Dataset.from_dict({"prompt": [""] * (slots // config.group)}),
        processing_class=loading.load_tokenizer(run.start),
        callbacks=[trainer.TrainingProgress()],
        peft_config=policy_io.adapter_config(run.lora, model) if run.lora else None,
    )
