"""WebShop's experts: the kit's own shopper, played here, or ETO's published file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from coevolve.config.sections import SourceFile
from coevolve.envs.base import Setup
from coevolve.envs.experts import Experts, matched, played, read_eto
from coevolve.envs.webshop import shopper, tasks
from coevolve.envs.webshop.episodes import action_in, pool, shown
from coevolve.storage import files
from coevolve.types import Task, Trajectory

INSTRUCTION = "Buy what is asked for. Write `Thought: ...` and then `Action: search[words]` or `Action: click[text]`."


def experts(setup: Setup, prepared: Path, wanted: Sequence[Task]) -> Experts:
    """One expert of at least the configured reward per wanted task at most; raises `UserError` for a malformed file."""
    source = setup.config.experts
    if source.file is not None:
        return matched(_published(source.file, f"{setup.key}.experts.file"), wanted, source.min_reward)
    with pool(setup.config, setup.quirks, prepared, setup.chance, 1) as (env,):
        found = [played(env, task, shopper.shop, INSTRUCTION, setup.protocol) for task in wanted]
    return matched(found, wanted, source.min_reward)


def _published(file: SourceFile, key: str) -> Iterator[Trajectory]:
    """ETO's trajectories, with all observations in the form that episodes show them in; the file mixes two."""
    path = files.verified(Path(file.path), file.sha256, key)
    for trajectory in read_eto(path, _task_of_number, action_in):
        turns = (turn.model_copy(update={"observation": _reshown(turn.observation)}) for turn in trajectory.turns)
        yield trajectory.model_copy(update={"turns": tuple(turns)})


def _task_of_number(number: str) -> Task | None:
    """The training task of the goal that ETO's file numbers so."""
    return Task(env="webshop", task_id=tasks.task_id(int(number)), split="train") if number.isdecimal() else None


def _reshown(observation: str) -> str:
    return shown(observation.removeprefix(shown(""))) if observation else ""
