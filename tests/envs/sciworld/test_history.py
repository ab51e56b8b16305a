"""The same task gives the same text after any other episode, in any JVM, among any neighbours."""

import pytest

from coevolve.envs.sciworld.env import SciWorld
from coevolve.envs.sciworld.tasks import kinds, listed, task_of
from coevolve.seeds import generator

#: Actions that move things, open things, ask for help, pass time, fail, and stir what is random in a world.
ACTIONS = (
    "look around", "inventory", "teleport to greenhouse", "teleport to kitchen", "teleport to outside", "wait1",
    "teleport to workshop", "open cupboard", "pick up thermometer", "examine bee hive", "activate stove", "objects",
    "connect battery anode to black wire terminal 1", "0", "pick up tree", "move soil to flower pot 1", "go to hallway",
    "use thermometer on agent", "dig", "task", None, "look at table", "teleport to art studio", "mix bowl", "eat apple",
)  # fmt: skip
STEPS = 12


def script(task):
    """Actions that belong to the task, whoever plays it and when."""
    rng = generator(7, task.task_id)
    return [ACTIONS[i] for i in rng.integers(len(ACTIONS), size=STEPS)]


def outside(simulator, env):
    """What the simulator keeps outside worlds, as `env` meets it: next id, next random number, simplifications."""
    with simulator._entered(env._world) as interface:
        return (
            simulator._jvm._ids.count(),
            simulator._jvm._generator.nextInt(),
            interface.getSimplificationsUsed(),
        )


def interleaved(simulator, tasks, n):
    """Transcripts of episodes played `n` at a time, step by step in turn, each world reused."""
    envs = [SciWorld(simulator, "easy") for _ in range(n)]
    found = {}
    for batch in (tasks[i : i + n] for i in range(0, len(tasks), n)):
        playing = list(zip(envs, batch, strict=False))
        for env, task in playing:
            found[task.task_id] = [env.start(task)]
        for number in range(STEPS):
            for env, task in reversed(playing):
                found[task.task_id].append(env.step(script(task)[number]))
        for env, task in playing:
            found[task.task_id].append(outside(simulator, env))
    for env in envs:
        env.close()
    return found


def check(simulator, other, tasks, n):
    expected = interleaved(simulator, tasks, n=1)  # one after another in one world
    found = interleaved(other, tasks[::-1], n)
    assert [task_id for task_id in expected if expected[task_id] != found[task_id]] == []
    assert len({str(transcript) for transcript in expected.values()}) == len(tasks), "the scripts tell tasks apart"


def test_episodes_do_not_depend_on_history_or_neighbours(simulator, own_simulator):
    check(simulator, own_simulator(), [task_of(kind, 1, "train") for kind in kinds()[::3]], n=4)


@pytest.mark.slow
def test_hundred_episodes_do_not_depend_on_history_or_neighbours(own_simulator):
    tasks = [task for kind in kinds() for task in listed("official", "train") if task.kind == kind]
    check(own_simulator(), own_simulator(), tasks[:: len(tasks) // 120][:120], n=16)
