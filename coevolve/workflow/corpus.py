"""Trajectories as rows and texts for training."""

from __future__ import annotations

from collections.abc import Sequence

from coevolve.chat.chat_template import Rendered, Renderer
from coevolve.types import Trajectory


def texts(trajectories: Sequence[Trajectory]) -> list[str]:
    """Every message of the trajectories, in order."""
    return [message.content for trajectory in trajectories for message in (*trajectory.prompt, *trajectory.completion)]


def rows(trajectories: Sequence[Trajectory], renderer: Renderer) -> list[Rendered]:
    """The trajectories as token ids with their action masks."""
    return [
        renderer.render(trajectory.prompt, trajectory.completion, [turn.token_ids for turn in trajectory.turns])
        for trajectory in trajectories
    ]
