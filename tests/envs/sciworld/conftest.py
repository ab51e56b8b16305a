"""Real simulators, shared by tests that do not break them."""

import contextlib

import pytest

from coevolve.envs.sciworld.env import SciWorld
from coevolve.envs.sciworld.installation import GOLD, MEMORY_MB, READ_TIMEOUT_S
from coevolve.envs.sciworld.jvm import Simulator
from coevolve.records.episodes import Trajectory
from coevolve.storage import jsonl


@pytest.fixture(scope="session")
def simulator():
    """A simulator for tests that leave it alive."""
    with contextlib.closing(Simulator(MEMORY_MB, READ_TIMEOUT_S)) as simulator:
        yield simulator


@pytest.fixture
def env(simulator):
    """An environment of the `fixed` protocol."""
    with contextlib.closing(SciWorld(simulator, "easy")) as env:
        yield env


@pytest.fixture
def own_simulator():
    """Makes simulators that a test may break; they are closed at its end."""
    with contextlib.ExitStack() as stack:

        def make(memory_mb=MEMORY_MB):
            return stack.enter_context(contextlib.closing(Simulator(memory_mb, READ_TIMEOUT_S)))

        yield make


@pytest.fixture(scope="module")
def committed():
    """The kit's own trajectories."""
    return jsonl.read(GOLD, Trajectory)
