"""Branches: the method, seed and iteration of a result, and its agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

AgentName = Literal["target", "failure"]
#: Input names of trajectories by the agent that acted.
SOURCES = {"expert": "experts", "target": "target", "failure": "failure"}


@dataclass(frozen=True)
class Branch:
    """A method's iteration for one seed. `iteration` 0 is the base."""

    method: str
    seed: int
    iteration: int

    def at(self, iteration: int) -> Branch:
        """The branch of another iteration of the same method and seed."""
        return replace(self, iteration=iteration)

    @property
    def previous(self) -> Branch:
        """The branch of the iteration before."""
        return self.at(self.iteration - 1)

    def __str__(self) -> str:
        if "/" in self.method:
            return self.method
        return f"{self.method}/seed{self.seed}" + (f"/iter{self.iteration}" if self.iteration else "")


def agent_of(wildcards: Mapping[str, str]) -> AgentName:
    """The agent of a job: that of the wildcard `agent`, or of the `whole` whose part it plays; else the target."""
    agents = (wildcards.get("agent"), wildcards.get("whole", "").removeprefix("rollout/"))
    return "failure" if "failure" in agents else "target"
