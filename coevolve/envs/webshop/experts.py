"""WebShop's expert trajectories: episodes of the kit's scripted expert, or ETO's published file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from coevolve.config.sections import SourceFile
from coevolve.envs.base import Setup
from coevolve.envs.experts import Experts, match_experts, play_expert, read_eto
from coevolve.envs.webshop import tasks
from coevolve.envs.webshop.scripted_expert import scripted_expert
from coevolve.envs.webshop.task_env import observation_text, parse_action, pool
from coevolve.storage import files
from coevolve.types import Task, Trajectory

INSTRUCTION = "Buy what is asked for. Write `Thought: ...` and then `Action: search[words]` or `Action: click[text]`."


def experts(setup: Setup, prepared: Path, wanted: Sequence[Task]) -> Experts:
    """At most one expert trajectory per wanted task, with at least the configured reward.

    Raises `UserError` for a malformed file.
    """
    source = setup.config.experts
    if source.file is not None:
        return match_experts(
            _published_trajectories(source.file, f"{setup.key}.experts.file"), wanted, source.min_reward
        )
    with pool(setup.config, setup.quirks, prepared, setup.chance, 1) as (env,):
        trajectories = [play_expert(env, task, scripted_expert, INSTRUCTION, setup.protocol) for task in wanted]
    return match_experts(trajectories, wanted, source.min_reward)


def _published_trajectories(file: SourceFile, key: str) -> Iterator[Trajectory]:
    """ETO's trajectories, with all observations in the format of `WebShopTaskEnv`; the file mixes two formats."""
    path = files.verified(Path(file.path), file.sha256, key)
    for trajectory in read_eto(path, _training_task, parse_action):
        turns = (
            turn.model_copy(update={"observation": _normalised_observation(turn.observation)})
            for turn in trajectory.turns
        )
        yield trajectory.model_copy(update={"turns": tuple(turns)})


def _training_task(number: str) -> Task | None:
    """The training task with this id in ETO's file, None if the id is not a number."""
    return Task(env="webshop", task_id=tasks.task_id(int(number)), split="train") if number.isdecimal() else None


def _normalised_observation(observation: str) -> str:
    return observation_text(observation.removeprefix(observation_text(""))) if observation else ""
