"""GRPO (Shao et al. 2024) on TRL's GRPOTrainer, over the kit's environments.

A step samples a group of episodes for each of its tasks with the current policy. TRL's `rollout_func` hook returns the
episodes: the token ids as they were sampled, and in `env_mask` 1 for the sampled ids and 0 for those of observations,
which have no loss. The advantage of an episode is its reward minus the mean of its group, divided by the standard
deviation of the group. An episode whose environment failed, or without an action, has no reward: TRL excludes it from
the mean of its group and from the loss.

Sampling and the order of tasks are the kit's; `beta` and clipping come from the config; batch settings are those of the
other trainings. docs/read/decisions.md has the defaults of TRL that affect the result.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from coevolve.config.baselines import GrpoConfig
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.policies.checkpoint import require_whole
from coevolve.records.episodes import Task
from coevolve.records.training import TrainReport
from coevolve.storage import policy_dir
from coevolve.train import online, policy_io, trainer
from coevolve.train.online import Experience, Explorer, OnlineSetup
from coevolve.train.policy_io import TrainingRun


class GroupTrainer(trainer.ScheduledTrainer, GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer with the episodes of an `Explorer`; `schedule` holds the tasks of each step."""

    def __init__(self, *, explorer: Explorer, schedule: Sequence[Sequence[Task]], **trl: Any) -> None:
        self._explorer, self._schedule = explorer, schedule
        super().__init__(rollout_func=self._rollout, reward_funcs=[episode_reward], **trl)

    def _rollout(self, prompts: Sequence[str], _: Any) -> dict[str, Any]:
        """The step's episodes in TRL's format; only the number of `prompts` is used."""
        step = self.state.global_step
        tasks = [task for task in self._schedule[step] for _ in range(self.num_generations)]
        if len(tasks) != len(prompts):
            raise RuntimeError(f"step {step}: {len(tasks)} episodes are scheduled, TRL expects {len(prompts)}")
        episodes = self._explorer.play(self.accelerator.unwrap_model(self.model), step, tasks)
        return completions([self._explorer.experience(episode) for episode in episodes], self._explorer.end_of_turn)

    def _send_telemetry(self) -> None:
        pass


def completions(experiences: Sequence[Experience | None], end_of_turn: int) -> dict[str, Any]:
    """The return value of a `rollout_func`; None becomes a completion without an action or a reward."""
    dummy = Experience((end_of_turn,) * 2, (0, 0), prompt=1, reward=0.0, truncated=False)
    sequences = [experience or dummy for experience in experiences]
    return {
        "prompt_ids": [list(sequence.input_ids[: sequence.prompt]) for sequence in sequences],
        "completion_ids": [list(sequence.input_ids[sequence.prompt :]) for sequence in sequences],
        "env_mask": [list(sequence.action_mask[sequence.prompt :]) for sequence in sequences],
        # With one gradient step per rollout those of sampling are the policy's, up to the rounding of bfloat16 passes.
        "logprobs": None,
        "reward": [experience.reward if experience else None for experience in experiences],
    }


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
    A killed training that is started again ends in the same bytes. Raises `UserError` as `run_sft` does, and under more
    than one process.
    """
    started = time.monotonic()
    online.require_single_process("GRPO")
    before = policy_dir.describe(run.start)
    if reference:
        policy_dir.describe(reference)
        require_whole(reference)
    explorer = Explorer(setup, run)
    per_step = config.batch_size // config.group
    schedule = schedule or online.task_schedule(setup.tasks, per_step, config.epochs, run.seed)
    group = group_trainer(explorer, schedule, config, run, reference)
    history = trainer.train(group, run.work)
    policy_io.write(group, run, before, "grpo")
    return explorer.report(history, steps=len(schedule), passes=1, seconds=time.monotonic() - started)


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
    model.config._name_or_path = str(reference or run.start)  # TRL loads its reference policy from this folder
    slots = len(schedule) * config.batch_size
    settings = trainer.training_settings(config, config.learning_rate, run, slots=slots, model=model) | {
        "num_generations": config.group,
        "beta": config.beta,
        "epsilon": config.clip,
        "max_completion_length": explorer.context,  # the explorer truncates
        "shuffle_dataset": False,
    }
    return GroupTrainer(
        explorer=explorer,
        schedule=schedule,
        model=model,
        args=trainer.single_device(GRPOConfig(**settings)),
        train_dataset=Dataset.from_dict({"prompt": [task.task_id for step in schedule for task in step]}),
        processing_class=loading.load_tokenizer(run.start),
        callbacks=[trainer.TrainingProgress()],
        peft_config=policy_io.adapter_config(run.lora, model) if run.lora else None,
    )
