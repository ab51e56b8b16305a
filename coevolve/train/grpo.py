"""GRPO (Shao et al. 2024) on TRL's GRPOTrainer, over the kit's environments.

A step plays a group of episodes of each of its tasks with the policy as it is. TRL's `rollout_func` hook hands the
episodes over: the ids the policy sampled, as they were sampled, and in `env_mask` which of the ids that follow the
prompt are its own, so that the environment's are read and not learned. TRL scores each episode by its reward less the
group's mean, divided by the group's deviation. An episode whose environment failed, or without an action, has no
reward: TRL leaves it out of its group's mean and learns nothing from it.

Of TRL 1.16's defaults these are kept, and decide what is learned: `loss_type` "dapo" (the mean over all action tokens
of the step, not first over each episode, which shorter episodes would dominate), `scale_rewards` "group",
`num_iterations` 1 (one gradient step per step of play, so the ratio of eq. 3 is 1 and clipping idle), importance
sampling per token, no entropy bonus, `use_bias_correction_kl`. Not kept: sampling and order of tasks are the kit's,
`beta` and clipping the config's, and the batch settings those of all the kit's trainings.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig as TrlConfig
from trl import GRPOTrainer

from coevolve.config.baselines import GrpoConfig
from coevolve.config.sections import LoraConfig
from coevolve.policies import loading
from coevolve.storage import policy_dir
from coevolve.train import loop, online, policy_io
from coevolve.train.online import Experience, Explorer, World
from coevolve.train.train_report import TrainReport
from coevolve.types import Task


class GroupTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer whose episodes an `Explorer` plays; `plan` holds the tasks of each step."""

    def __init__(self, *, explorer: Explorer, plan: Sequence[Sequence[Task]], **trl: Any) -> None:
        self._explorer, self._plan = explorer, plan
        super().__init__(rollout_func=self._play, reward_funcs=[episode_reward], **trl)

    def _play(self, prompts: Sequence[str], _: Any) -> dict[str, Any]:
        """The step's episodes as TRL wants them; `prompts` only says how many."""
        step = self.state.global_step
        tasks = [task for task in self._plan[step] for _ in range(self.num_generations)]
        if len(tasks) != len(prompts):
            raise RuntimeError(f"step {step}: {len(tasks)} episodes are planned, TRL asks for {len(prompts)}")
        episodes = self._explorer.play(self.accelerator.unwrap_model(self.model), step, tasks)
        return completions([self._explorer.experience(episode) for episode in episodes], self._explorer.end_of_turn)

    def _send_telemetry(self) -> None:
        pass


def completions(rows: Sequence[Experience | None], end_of_turn: int) -> dict[str, Any]:
    """Rows as what a `rollout_func` returns; where there is none, a completion without an action or a reward.

    There are no `logprobs`: with one gradient step per step of play the policy's own are those of the play.
    """
    nothing = Experience((end_of_turn,) * 2, (0, 0), prompt=1, reward=0.0, truncated=False)
    given = [row or nothing for row in rows]
    return {
        "prompt_ids": [list(row.input_ids[: row.prompt]) for row in given],
        "completion_ids": [list(row.input_ids[row.prompt :]) for row in given],
        "env_mask": [list(row.action_mask[row.prompt :]) for row in given],
        "logprobs": None,
        "reward": [row.reward if row else None for row in rows],
    }


def episode_reward(reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """What the environment gave: the extra field `reward` of `completions`."""
    return list(reward)


def run_grpo(
    world: World,
    *,
    start: Path,
    config: GrpoConfig,
    lora: LoraConfig | None,
    seed: int,
    out: Path,
    work: Path,
    context: int | None = None,
) -> TrainReport:
    """Train the policy in `start` by GRPO on the episodes that it plays in `world`; write the policy directory `out`.

    `context` None is the model's own. `work` keeps checkpoints and episodes: a killed training that is started again
    ends in the same bytes. Raises `UserError` as `run_sft` does, and under more than one process.
    """
    began = time.monotonic()
    online.require_one_device("GRPO")
    before = policy_dir.describe(start)
    explorer = Explorer(world, start, context=context, seed=seed, work=work)
    plan = online.visits(world.tasks, config.batch_size // config.group, config.epochs, seed)
    trainer = group_trainer(explorer, plan, start=start, config=config, lora=lora, seed=seed, work=work)
    history = loop.run(trainer, work)
    policy_io.write(trainer, start, before, out, "grpo")
    return explorer.report(history, out, steps=len(plan), passes=1, seconds=time.monotonic() - began)


def group_trainer(
    explorer: Explorer,
    plan: Sequence[Sequence[Task]],
    *,
    start: Path,
    config: GrpoConfig,
    lora: LoraConfig | None,
    seed: int,
    work: Path,
) -> GroupTrainer:
    """A trainer that is about to play the steps of `plan` and to learn from each."""
    model = policy_io.load(start)
    slots = len(plan) * config.batch_size
    settings = loop.settings(config, config.learning_rate, slots=slots, model=model, seed=seed, work=work)
    del settings["max_length"]  # the explorer keeps to the context
    own = {
        "num_generations": config.group,
        "beta": config.beta,
        "epsilon": config.clip,
        "max_completion_length": explorer.context,
        "shuffle_dataset": False,
    }
    return GroupTrainer(
        explorer=explorer,
        plan=plan,
        model=model,
        args=TrlConfig(**settings, **own),
        train_dataset=Dataset.from_dict({"prompt": [task.task_id for step in plan for task in step]}),
        processing_class=loading.load_tokenizer(start),
        callbacks=[loop.Progress()],
        peft_config=loop.peft_config(lora),
    )
