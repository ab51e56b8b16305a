"""The example is one iteration of the paper: both agents play and learn from pairs, and the target is evaluated."""

import ast
import contextlib
import io
import re
import runpy
import sys

import pytest

from coevolve.records.episodes import Trajectory
from coevolve.storage import jsonl, policy_dir


@pytest.fixture(scope="module")
def ran(root, tmp_path_factory):
    """What the example prints, and the folder of its policies and journals."""
    folder = tmp_path_factory.mktemp("iteration") / "out"
    program = str(root / "examples/one_iteration.py")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.chdir(root)
        patch.setattr(sys, "argv", [program, str(folder)])
        runpy.run_path(program, run_name="__main__")
    return printed.getvalue().splitlines(), folder


def test_both_agents_learn_from_pairs(ran):
    printed, _ = ran
    pairs = {agent: int(count) for agent, count in re.findall(r"^(\w+): (\d+) pairs", "\n".join(printed), re.MULTILINE)}
    assert pairs["target"] > pairs["failure"] > 0, "the target also learns from pairs with experts"


def test_each_policy_is_trained_from_the_one_before(ran):
    _, folder = ran
    names = ("target_base", "target_1", "failure_base", "failure_1")
    weights = {name: policy_dir.describe(folder / name).sha256 for name in names}
    assert len(set(weights.values())) == len(names)


def test_the_rewards_are_the_means_of_greedy_episodes(ran):
    printed, folder = ran
    rewards = ast.literal_eval(printed[-1])
    for when, policy in (("before", "target_base"), ("after", "target_1")):
        episodes = jsonl.read(folder / f"{policy}_0.0.jsonl", Trajectory)
        assert {episode.sampling.temperature for episode in episodes} == {0.0}
        assert rewards[when] == pytest.approx(sum(episode.reward for episode in episodes) / len(episodes))
    assert rewards["before"] > 0.0
