"""Trajectories as token ids and as texts for training."""

from __future__ import annotations

from collections.abc import Sequence

from coevolve.chat.chat_template import Renderer, TokenizedTrajectory
from coevolve.types import Trajectory


def texts(trajectories: Sequence[Trajectory]) -> list[str]:
    """Every message of the trajectories, in order."""
    return [message.content for trajectory in trajectories for message in (*trajectory.prompt, *trajectory.completion)]


def tokenize(trajectories: Sequence[Trajectory], renderer: Renderer) -> list[TokenizedTrajectory]:
    """The trajectories as token ids with their action masks; sampled token ids are kept."""
    return [
        renderer.render(trajectory.prompt, trajectory.completion, [turn.token_ids for turn in trajectory.turns])
        for trajectory in trajectories
    ]
