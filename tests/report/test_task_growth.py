"""The growth of a pool: rewards by step, new tasks by signal, tasks that are solved later."""

from coevolve.methods.task_evolution.records import PoolTask
from coevolve.report import task_growth
from coevolve.types import StopReason, Task, Trajectory


def episode(name, step, reward):
    task = Task(env="world", task_id=name, split="train")
    return Trajectory(
        task=task, agent="target", protocol="fixed", prompt=(), turns=(), seed=step, reward=reward,
        stop=StopReason.DONE,
    )  # fmt: skip


def entry(name, number, signal=None):
    task = Task(env="world", task_id=name, split="train")
    return PoolTask(
        task=task, instruction=name, solution=("a",), round=number, fragment=name, signal=signal, explorer="e",
        written_by="rules",
    )  # fmt: skip


ROUNDS = [
    [episode("a", 0, 0.0), episode("a", 0, 1.0), episode("b", 1, 0.0), episode("b", 1, 0.0)],
    [episode("b", 0, 1.0), episode("c", 0, 0.0), episode("c", 1, 0.0), episode("d", 1, 1.0)],
    [episode("c", 0, 1.0), episode("d", 0, 1.0)],
]
POOL = [entry("a", 1), entry("b", 1), entry("c", 2, "boundary"), entry("d", 2, "rare"), entry("e", 2, "rare")]


def test_each_round_counts_its_own_steps_and_new_tasks():
    first, second, third = task_growth.growth("m", "world", 0, ROUNDS, POOL, 0.5)
    assert (first.rewards, second.rewards, third.rewards) == ((0.5, 0.0), (0.5, 0.5), (1.0,))
    assert (first.pool, second.pool, third.pool) == (2, 5, 5)
    assert (first.new, second.new, third.new) == ({"unguided": 2}, {"boundary": 1, "rare": 2}, {})


def test_a_task_counts_as_solved_in_its_round_or_later():
    first, second, third = task_growth.growth("m", "world", 0, ROUNDS, POOL, 0.5)
    assert (first.visited, first.solved) == (2, 2)  # `b` in the second round
    assert (second.visited, second.solved) == (2, 2)  # `c` in the third; `e` was never visited
    assert (third.visited, third.solved) == (0, 0)


def test_the_table_has_means_over_seeds():
    rounds = [*task_growth.growth("m", "world", 0, ROUNDS[:1], POOL, 0.5)]
    rounds += task_growth.growth("m", "world", 1, [[episode("a", 0, 1.0), episode("a", 1, 1.0)]], POOL, 0.5)
    line = task_growth.markdown(rounds, {"m": "A method"}).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["A method", "world", "1", "0.750", "0.500", "2", "unguided 2.0", "2 of 3 visited"]


def test_the_curve_is_the_mean_over_seeds_step_by_step():
    rounds = task_growth.growth("m", "world", 0, ROUNDS, POOL, 0.5)
    assert task_growth.reward_curve(rounds[::-1]) == [0.5, 0.0, 0.5, 0.5, 1.0]
    other = [each.model_copy(update={"seed": 1, "rewards": (1.0,) * len(each.rewards)}) for each in rounds]
    assert task_growth.reward_curve([*rounds, *other]) == [0.75, 0.5, 0.75, 0.75, 1.0]
    (axes,) = task_growth.draw([*rounds, *other], {"m": "A method"}).axes
    assert list(axes.lines[0].get_ydata()) == [0.75, 0.5, 0.75, 0.75, 1.0]
