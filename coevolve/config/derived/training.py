"""What follows from the settings of a training: an iteration's values, and what its objective needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coevolve.config.sections import ObjectiveConfig


def per_iteration(values: Sequence[float], iteration: int) -> float:
    """Entry `iteration` (from 1) of a schedule whose last entry holds for all later iterations."""
    return values[min(iteration, len(values)) - 1]


def objective_parameters(objective: ObjectiveConfig) -> dict[str, float]:
    """The objective's parameters except beta."""
    return objective.model_dump(exclude={"name"}, exclude_none=True)


def is_reference_free(objective: ObjectiveConfig) -> bool:
    """Whether the objective is computed without a reference policy."""
    return objective.name == "simpo"
