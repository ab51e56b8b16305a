"""Expert trajectories from the simulator's own gold paths: shortened, renamed, and replayed to reward 1.

A gold path walks door by door and names things as the simulator's parser does ("egg turtle"). Here a walk becomes one
teleport, a thing is called what the simulator calls it when it is focused on, and the agent looks around in a room
before it focuses on something there.
"""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coevolve.chat.prompts import write_action
from coevolve.envs.base import Setup
from coevolve.envs.checked import MAX_STEPS
from coevolve.envs.experts import fixed_script, play_expert
from coevolve.envs.sciworld.config import SciWorldConfig
from coevolve.envs.sciworld.env import SciWorld
from coevolve.envs.sciworld.jvm import Simulator, simplifications_for
from coevolve.envs.sciworld.tasks import kinds, select
from coevolve.errors import UserError
from coevolve.records.episodes import StopReason, Task, Trajectory
from coevolve.storage import files, jsonl
from coevolve.storage.jsonl import Journal

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


def generate(setup: Setup, work: Path, out: Path) -> dict[str, Any]:
    """Writes `gold.jsonl` for the suite's training tasks to `out`; see `coevolve.envs.registry.Gold`.

    Raises `UserError` if the suite's experts are gold trajectories and `experts.sha256` is that of another file.
    """
    config: SciWorldConfig = setup.config
    tasks = select(config.tasks, config.splits, setup.quirks.overlap).training
    journal = Journal(work / "gold.jsonl", Trajectory)
    trajectories = trajectories_of(tasks, journal, config)
    jsonl.write(out / "gold.jsonl", trajectories)
    sha256 = files.sha256(out / "gold.jsonl")
    if config.experts.format == "gold" and sha256 != config.experts.sha256:
        raise UserError(f"the gold trajectories have sha256 {sha256}, not `{setup.key}.experts.sha256`.")
    return {"trajectories": len(trajectories), "drops": len(tasks) - len(trajectories), "sha256": sha256}


def trajectories_of(tasks: Sequence[Task], journal: Journal[Trajectory], config: SciWorldConfig) -> list[Trajectory]:
    """A trajectory of reward 1 for each task whose gold path reaches it.

    They are in the order of the official lists, so the same set of tasks gives the same bytes. Trajectories that the
    `journal` holds are not made again.
    """
    tasks = sorted(tasks, key=lambda task: (kinds().index(task.kind), task.data["variation"]))
    made = {trajectory.task.task_id: trajectory for trajectory in journal.records}
    solver, player = (Simulator(config.memory_mb, config.read_timeout) for _ in range(2))
    env = SciWorld(player, config.simplification, step_limit=MAX_STEPS)  # a gold path is played to its end
    with contextlib.closing(solver), contextlib.closing(player):
        for task in tasks:
            if task.task_id not in made and (trajectory := expert(solver, env, task, config.simplification)):
                journal.append(trajectory)
                made[task.task_id] = trajectory
    return [made[task.task_id] for task in tasks if task.task_id in made]


def expert(solver: Simulator, env: SciWorld, task: Task, simplification: str) -> Trajectory | None:
    """The trajectory of `task` that replays in `env` to reward 1, if there is one.

    Three wordings of the gold path are tried, plainest first: with canonical names, with teleports only, as it is.
    """
    path = gold_path(solver, task, simplification)
    short = with_looks(shortened(path))
    plain = canonical(short, [turn.observation for turn in played(env, task, short).turns])
    for actions in (plain, short, path):
        trajectory = played(env, task, actions)
        if trajectory.stop is StopReason.DONE and trajectory.reward == 1.0:
            return trajectory
    return None


def played(env: SciWorld, task: Task, actions: Sequence[str]) -> Trajectory:
    """The episode of `actions`, each after its thought, up to the end of the task."""
    texts = map(write_action, actions, thoughts(task.kind, actions))
    return play_expert(env, task, fixed_script([*texts]), "", "fixed")


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


def thoughts(kind: str, actions: Sequence[str]) -> list[str]:
    """A short sentence for each action, made by rule."""
    reasons = list(_REASONS.get(kind, ("The task is about the {}.",)))
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
