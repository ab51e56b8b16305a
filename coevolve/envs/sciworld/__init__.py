"""ScienceWorld (scienceworld 1.2.3): the simulator, its tasks and its own solutions."""

from coevolve.envs.sciworld.env import SciWorld, pool
from coevolve.envs.sciworld.tasks import Selection, select

__all__ = ["SciWorld", "Selection", "pool", "select"]
