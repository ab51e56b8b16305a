"""Branches: which method, seed and iteration a result belongs to, and whose it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
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

    @classmethod
    def parse(cls, text: str) -> Branch:
        """The branch that a path component such as `coevolve/seed0/iter2` names."""
        numbered = re.fullmatch(r"(\w+)/seed(\d+)(?:/iter(\d+))?", text)
        if numbered:
            return cls(numbered[1], int(numbered[2]), int(numbered[3] or 0))
        return cls(text, 0, 0)

    def __str__(self) -> str:
        if "/" in self.method:
            return self.method
        return f"{self.method}/seed{self.seed}" + (f"/iter{self.iteration}" if self.iteration else "")


def agent_name(text: str) -> AgentName:
    """The agent that a wildcard names; its constraint lets only these two pass."""
    return "failure" if text == "failure" else "target"
