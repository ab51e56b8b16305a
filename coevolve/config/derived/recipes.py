"""What follows from a recipe: how its agents learn, and on which tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from coevolve.config.names import Learns
    from coevolve.config.sections import Recipe

#: The values of `Learns` with a pool of tasks, and those with preference pairs of whole trajectories.
POOL_LEARNING: tuple[Learns, ...] = ("task_pool", "pool_preference")
PAIR_LEARNING: tuple[Learns, ...] = ("preference", "failure_agent_first", "pool_preference")


def has_pool(recipe: Recipe) -> bool:
    """Whether the method trains on a growing pool of synthetic tasks, instead of the suite's."""
    return recipe.learns in POOL_LEARNING


def learns_from_pairs(recipe: Recipe) -> bool:
    """Whether agents learn from preference pairs, of trajectories or of steps."""
    return recipe.learns in (*PAIR_LEARNING, "steps")


def trains(recipe: Recipe, agent: Literal["target", "failure"]) -> bool:
    """Whether a method trains an agent; methods that learn without pairs train the target only."""
    return bool(recipe.agents[agent].trains_on) if learns_from_pairs(recipe) else agent == "target"


def has_rollouts(recipe: Recipe) -> bool:
    """Whether an agent explores in the stage `rollout`; PPO, GRPO and task pools play inside their training."""
    explores = any(agent.explores for agent in recipe.agents.values())
    return explores and recipe.learns not in ("ppo", "grpo", "task_pool")


def trained_on_pairs(recipe: Recipe) -> bool:
    """Whether an agent is trained on preference pairs; one without pair kinds is frozen."""
    return learns_from_pairs(recipe) and any(agent.trains_on for agent in recipe.agents.values())


def prompting_only(recipe: Recipe) -> bool:
    """Whether the method evaluates the base model without training."""
    return recipe.iterations == 0 and all(agent.base == "untrained" for agent in recipe.agents.values())
