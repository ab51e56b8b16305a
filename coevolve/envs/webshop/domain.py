"""WebShop's implementation of `coevolve.envs.registry.Domain` and `Preparing`.

Expert trajectories are episodes of the kit's scripted expert, or ETO's published ones.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coevolve.envs.base import Env, Setup
from coevolve.envs.experts import Experts, match_experts, play_expert, read_eto
from coevolve.envs.task_split import TaskSplit
from coevolve.envs.webshop import prepared_shop, tasks
from coevolve.envs.webshop.prepared_shop import PreparedShop
from coevolve.envs.webshop.scripted_expert import scripted_expert
from coevolve.envs.webshop.step_prompts import StepPromptEnv, read_templates
from coevolve.envs.webshop.task_env import WebShopTaskEnv, observation_text, parse_action
from coevolve.records.episodes import Task, Trajectory
from coevolve.settings.section import SourceFile
from coevolve.storage import files

INSTRUCTION = "Buy what is asked for. Write `Thought: ...` and then `Action: search[words]` or `Action: click[text]`."


def prepare(setup: Setup, out: Path) -> dict[str, Any]:
    """The shop, its frozen goals and the provenance of both."""
    return prepared_shop.prepare(setup.config, setup.key, out).model_dump(mode="json")


def select(setup: Setup) -> TaskSplit:
    """The tasks of a suite."""
    goals = prepared_shop.read_goals(prepared_shop.prepared_folder(setup))
    return tasks.select(setup.config.tasks, goals, setup.config.splits, setup.quirks.overlap)


def experts(setup: Setup, wanted: Sequence[Task]) -> Experts:
    """At most one trajectory per wanted task, with at least the configured reward.

    Raises `UserError` for a malformed file.
    """
    source = setup.config.experts
    if source.file is not None:
        published = _published_trajectories(source.file, f"{setup.key}.experts.file")
        return match_experts(published, wanted, source.min_reward)
    (env,) = _shops(setup, 1)
    played = [play_expert(env, task, scripted_expert, INSTRUCTION, setup.protocol) for task in wanted]
    return match_experts(played, wanted, source.min_reward)


@contextlib.contextmanager
def pool(setup: Setup, n: int) -> Iterator[Sequence[Env]]:
    """`n` environments in one shop, for up to `n` threads; with `prompt`, they show a message a step."""
    shops, prompt = _shops(setup, n), setup.config.prompt
    templates = read_templates(prompt, f"{setup.key}.prompt") if prompt else None
    yield [StepPromptEnv(shop, prompt, templates) for shop in shops] if templates else shops


def _shops(setup: Setup, n: int) -> list[WebShopTaskEnv]:
    """`n` environments in one shop, whose prices are drawn from `setup.chance` or frozen."""
    seed = setup.chance if setup.quirks.webshop_draws == "each_job" else None
    shop = PreparedShop.open(prepared_shop.prepared_folder(setup), setup.config, seed)
    return [WebShopTaskEnv(shop, setup.config, setup.quirks) for _ in range(n)]


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
