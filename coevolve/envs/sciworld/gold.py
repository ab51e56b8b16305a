"""Expert trajectories from the simulator's own gold paths: shortened, renamed, and replayed to reward 1.

A gold path walks door by door and names things as the simulator's parser does ("egg turtle"). Here a walk becomes one
teleport, a thing is called what the simulator calls it when it is focused on, and the agent looks around in a room
before it focuses on something there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coevolve.chat.prompts import prompt_messages, write_action
from coevolve.envs.base import Setup, StepResult
from coevolve.envs.sciworld.config import SciWorldConfig
from coevolve.envs.sciworld.env import IDENTITY, SciWorld, first_line
from coevolve.envs.sciworld.jvm import Simulator, simplifications_for
from coevolve.envs.sciworld.tasks import kinds, select
from coevolve.errors import UserError
from coevolve.storage import files, jsonl
from coevolve.storage.jsonl import Journal
from coevolve.types import Drop, DropReason, StopReason, Task, Trajectory, Turn

LOOK = "look around"
_FOCUSED = re.compile(r"You focus on the (.+)\.")
_WALK = re.compile(r"(?:open door|go) to (.+)")
_MOVE = re.compile(r"move .+ to (.+)")

#: What an expert thinks before each focus of a task type, in order; the last one serves all later ones.
_REASONS: dict[str, tuple[str, ...]] = {
    "find-animal": ("The {} is an animal.",),
    "find-plant": ("The {} is a plant.",),
    "find-living-thing": ("The {} is alive.",),
    "find-non-living-thing": ("The {} is not alive.",),
    "lifespan-longest-lived": ("The {} lives longest.",),
    "lifespan-shortest-lived": ("The {} lives shortest.",),
    "lifespan-longest-lived-then-shortest-lived": ("The {} lives longest.", "The {} lives shortest."),
}
_OTHER_REASON = ("The task is about the {}.",)


def generate(setup: Setup, work: Path, out: Path) -> dict[str, Any]:
    """Writes `gold.jsonl` for the suite's training tasks to `out`; see `coevolve.envs.registry.Gold`.

    Raises `UserError` if the suite's experts are gold trajectories and `experts.sha256` is that of another file.
    """
    config: SciWorldConfig = setup.config
    tasks = select(config.tasks, config.splits, setup.quirks.overlap).training
    journal = Journal(work / "gold.jsonl", Trajectory)
    trajectories, drops = trajectories_of(tasks, journal, config)
    jsonl.write(out / "gold.jsonl", trajectories)
    sha256 = files.sha256(out / "gold.jsonl")
    if config.experts.format == "gold" and sha256 != config.experts.sha256:
        raise UserError(f"the gold trajectories have sha256 {sha256}, not `{setup.key}.experts.sha256`.")
    return {"trajectories": len(trajectories), "drops": len(drops), "sha256": sha256}


def trajectories_of(
    tasks: Sequence[Task], journal: Journal[Trajectory], config: SciWorldConfig
) -> tuple[list[Trajectory], list[Drop]]:
    """One trajectory of reward 1 per task, and a drop for each task whose gold path does not reach it.

    Both are in the order of the official lists, so the same set of tasks gives the same bytes. Trajectories that the
    `journal` holds are not made again.
    """
    tasks = sorted(tasks, key=lambda task: (kinds().index(task.kind), task.data["variation"]))
    made = {trajectory.task.task_id: trajectory for trajectory in journal.records}
    solver, player = (Simulator(config.memory_mb, config.read_timeout) for _ in range(2))
    env = SciWorld(player, config.simplification)
    try:
        for task in tasks:
            if task.task_id not in made and (trajectory := expert(solver, env, task, config.simplification)):
                journal.append(trajectory)
                made[task.task_id] = trajectory
    finally:
        solver.close()
        player.close()
    drops = [
        Drop(task_id=task.task_id, reason=DropReason.MISSING_EXPERT, detail="no gold path reaches 1.0")
        for task in tasks
        if task.task_id not in made
    ]
    return [made[task.task_id] for task in tasks if task.task_id in made], drops


def expert(solver: Simulator, env: SciWorld, task: Task, simplification: str) -> Trajectory | None:
    """The trajectory of `task` that replays in `env` to reward 1, if there is one.

    Three wordings of the gold path are tried, plainest first: with canonical names, with teleports only, as it is.
    """
    path = gold_path(solver, task, simplification)
    short = with_looks(shortened(path))
    _, results = play(env, task, short)
    plain = canonical(short, [result.observation for result in results])
    for actions in (plain, short, path):
        text, results = play(env, task, actions)
        if results and results[-1].done and results[-1].reward == 1.0:
            return _trajectory(task, text, actions[: len(results)], results)
    return None


def gold_path(solver: Simulator, task: Task, simplification: str) -> list[str]:
    """The simulator's own solution, from a new world in `solver`.

    Making one leaves traces in the JVM, so `solver` must not be a simulator that episodes run in.
    """
    world = solver.new_world()
    kind, variation = str(task.data["task"]), int(task.data["variation"] or 0)
    solver.load(world, kind, variation, simplifications_for(kind, simplification), gold=True)
    path = solver.gold_path(world)
    solver.drop(world)
    return path


def shortened(path: Sequence[str]) -> list[str]:
    """`path` with every walk from door to door replaced by one teleport to where it ends."""
    actions: list[str] = []
    walking = False
    for action in path:
        step = _WALK.fullmatch(action)
        if step and walking:
            actions.pop()
        walking = step is not None
        actions.append(f"teleport to {step[1]}" if step else action)
    return actions


def with_looks(actions: Sequence[str]) -> list[str]:
    """`actions` with a look around before the first focus in each room."""
    seen: list[str] = []
    looked = False
    for action in actions:
        if action.startswith("focus on ") and not looked:
            seen.append(LOOK)
            looked = True
        looked = (looked or action == LOOK) and not action.startswith("teleport to ")
        seen.append(action)
    return seen


def canonical(actions: Sequence[str], replies: Sequence[str]) -> list[str]:
    """`actions`, as far as they were answered, with things called what the simulator calls them in its `replies`.

    After a focus, what is picked up and moved is the thing focused on.
    """
    named: list[str] = []
    thing = ""
    for action, reply in zip(actions, replies, strict=False):
        if focused := _FOCUSED.fullmatch(reply):
            thing = focused[1]
            named.append(f"focus on {thing}")
        elif thing and action.startswith("pick up "):
            named.append(f"pick up {thing}")
        elif thing and (target := _MOVE.fullmatch(action)):
            named.append(f"move {thing} to {target[1]}")
        else:
            named.append(action)
    return named


def play(env: SciWorld, task: Task, actions: Sequence[str]) -> tuple[str, list[StepResult]]:
    """The start text and the results of `actions` in a fresh world, up to the end of the episode."""
    text = env.start(task)
    results: list[StepResult] = []
    for action in actions:
        results.append(env.step(first_line(action)))
        if results[-1].done:
            break
    return text, results


def thoughts(kind: str, actions: Sequence[str]) -> list[str]:
    """A short sentence for each action, made by rule."""
    reasons = list(_REASONS.get(kind, _OTHER_REASON))
    lines: list[str] = []
    for action in actions:
        verb, _, thing = action.partition(" on ") if action.startswith("focus on ") else action.partition(" to ")
        if verb == "focus":
            lines.append((reasons.pop(0) if len(reasons) > 1 else reasons[0]).format(thing))
        elif verb == "teleport":
            lines.append(f"I go to the {thing}.")
        elif action == LOOK:
            lines.append("What is here?")
        elif action.startswith("pick up "):
            lines.append("I take it.")
        elif verb.startswith("move "):
            lines.append(f"It belongs in the {thing}.")
        else:
            lines.append("The next step.")
    return lines


def _trajectory(task: Task, text: str, actions: Sequence[str], results: Sequence[StepResult]) -> Trajectory:
    turns = tuple(
        Turn(text=write_action(action, thought), action=action, observation=result.observation, score=result.score)
        for action, thought, result in zip(actions, thoughts(task.kind, actions), results, strict=True)
    )
    return Trajectory(
        task=task,
        agent="expert",
        protocol="fixed",
        environment=IDENTITY,
        prompt=prompt_messages(text),
        turns=turns,
        reward=results[-1].reward,
        raw_score=results[-1].score,
        stop=StopReason.DONE,
    )
