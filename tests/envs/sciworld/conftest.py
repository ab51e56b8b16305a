"""Real simulators, shared by tests that do not break them."""

import pytest

from coevolve.envs.sciworld.env import SciWorld
from coevolve.envs.sciworld.jvm import Simulator

MEMORY_MB = 256
READ_TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def simulator():
    """A simulator for tests that leave it alive."""
    simulator = Simulator(MEMORY_MB, READ_TIMEOUT_S)
    yield simulator
    simulator.close()


@pytest.fixture
def env(simulator):
    """An environment of the `fixed` protocol."""
    env = SciWorld(simulator, "easy")
    yield env
    env.close()


@pytest.fixture
def own_simulator():
    """Makes simulators that a test may break; they are closed at its end."""
    made: list[Simulator] = []

    def make(memory_mb: int = MEMORY_MB, read_timeout: float = READ_TIMEOUT_S) -> Simulator:
        made.append(Simulator(memory_mb, read_timeout))
        return made[-1]

    yield make
    for simulator in made:
        simulator.close()
