"""WebShop's experts: the kit's own shopper, played here, or ETO's published file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from coevolve import store
from coevolve.config import Quirks, SourceFile, WebShopConfig
from coevolve.envs.experts import Experts, matched, read_eto
from coevolve.envs.webshop import shopper, tasks
from coevolve.envs.webshop.episodes import WebShopEpisodes, action_in, pool, shown
from coevolve.prompts import prompt_messages
from coevolve.types import StopReason, Task, Trajectory, Turn

INSTRUCTION = "Buy what is asked for. Write `Thought: ...` and then `Action: search[words]` or `Action: click[text]`."


def experts(config: WebShopConfig, quirks: Quirks, prepared: Path, wanted: Sequence[Task], key: str) -> Experts:
    """One expert of at least the configured reward per wanted task at most; raises `UserError` for a malformed file."""
    source = config.experts
    if source.file is not None:
        return matched(_published(source.file, f"{key}.experts.file"), wanted, source.min_reward)
    with pool(config, quirks, prepared, 1) as (env,):
        return matched((_play(env, quirks, task) for task in wanted), wanted, source.min_reward)


def _play(env: WebShopEpisodes, quirks: Quirks, task: Task) -> Trajectory:
    """The shopper's episode; one that finds nothing to buy in time earns nothing."""
    page = env.start(task)
    guide, turns = shopper.shop(page), list[Turn]()
    with contextlib.suppress(StopIteration):
        text = next(guide)
        while len(turns) < env.step_limit(task):
            action = env.parse(text)
            result = env.step(action)
            turns.append(Turn(text=text, action=action, observation=result.observation, score=result.score))
            text = guide.send(result.observation)
    return Trajectory(
        task=task,
        agent="expert",
        protocol="paper" if quirks.webshop_draws == "each_job" else "fixed",
        environment=env.identity,
        prompt=prompt_messages(page, instruction=INSTRUCTION),
        turns=tuple(turns),
        reward=result.reward,
        raw_score=result.score,
        stop=StopReason.DONE if result.done else StopReason.STEP_LIMIT,
    )


def _published(file: SourceFile, key: str) -> Iterator[Trajectory]:
    """ETO's trajectories, with all observations in the form that episodes show them in; the file mixes two."""
    path = store.verified(Path(file.path), file.sha256, key)
    for trajectory in read_eto(path, _task_of_number, action_in):
        turns = (turn.model_copy(update={"observation": _reshown(turn.observation)}) for turn in trajectory.turns)
        yield trajectory.model_copy(update={"turns": tuple(turns)})


def _task_of_number(number: str) -> Task | None:
    """The training task of the goal that ETO's file numbers so."""
    return Task(env="webshop", task_id=tasks.task_id(int(number)), split="train") if number.isdecimal() else None


def _reshown(observation: str) -> str:
    return shown(observation.removeprefix(shown(""))) if observation else ""
