"""Rejection sampling fine-tuning: which of an agent's own episodes join the experts (Yuan et al. 2023).

The RFT row of the paper and of ETO (Song et al. 2024): the fine-tuned policy plays every training task K times, its
successes join the expert data, and the base model is fine-tuned on both. An episode with the actions of one that is
there already would only weigh it double: it is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coevolve.config.baselines import SelectionConfig
from coevolve.errors import UserError
from coevolve.types import Drop, DropReason, StopReason, Trajectory

Way = tuple[str, tuple[str | None, ...]]


@dataclass(frozen=True)
class Count:
    """What became of the trajectories of one side."""

    came_in: int
    selected: int
    drops: Mapping[DropReason, int]

    def __post_init__(self) -> None:
        assert self.came_in == self.selected + sum(self.drops.values()), f"trajectories are lost: {self}"


@dataclass(frozen=True)
class Selection:
    """What is fine-tuned on, experts first, and all that is not; `solved` of the `explored` tasks have a success."""

    selected: tuple[Trajectory, ...]
    drops: tuple[Drop, ...]
    experts: Count
    own: Count
    explored: int
    solved: int


def select(rules: SelectionConfig, experts: Sequence[Trajectory], rollouts: Sequence[Trajectory]) -> Selection:
    """The experts and the agent's own successes, each in the order they came in.

    Of the successes of a task those with the highest rewards are taken, of equal ones the first samples. Raises
    `UserError` where an expert lies among the rollouts or a rollout among the experts.
    """
    _check(experts, rollouts)
    everything = (*experts, *rollouts)
    reasons = _reasons(rules, everything)
    kept = [trajectory for trajectory, reason in zip(everything, reasons, strict=True) if reason is None]
    return Selection(
        selected=tuple(kept),
        drops=tuple(_drop(t, reason) for t, reason in zip(everything, reasons, strict=True) if reason is not None),
        experts=_count(reasons[: len(experts)]),
        own=_count(reasons[len(experts) :]),
        explored=len({rollout.task.task_id for rollout in rollouts}),
        solved=len({rollout.task.task_id for rollout in rollouts if rollout.reward >= rules.min_reward}),
    )


def summary(result: Selection) -> dict[str, Any]:
    """Counts of both sides as plain JSON data, reasons by name."""
    sides = {"experts": result.experts, "own": result.own}
    counts = {
        name: vars(side) | {"drops": {reason.value: n for reason, n in sorted(side.drops.items())}}
        for name, side in sides.items()
    }
    return {**counts, "tasks": {"explored": result.explored, "solved": result.solved}}


def _check(experts: Sequence[Trajectory], rollouts: Sequence[Trajectory]) -> None:
    for name, side, expert in (("experts", experts, True), ("rollouts", rollouts, False)):
        for trajectory in side:
            if (trajectory.agent == "expert") != expert:
                raise UserError(
                    f"task {trajectory.task.task_id}: a trajectory of the {trajectory.agent} agent lies among the "
                    f"{name}; give the data's experts and the agent's own episodes."
                )


def _reasons(rules: SelectionConfig, everything: Sequence[Trajectory]) -> list[DropReason | None]:
    """Why each trajectory is left out, None if it is not; experts are looked at first, then the best episodes."""
    reasons: list[DropReason | None] = [None] * len(everything)
    ways, own = set[Way](), Counter[str]()
    for index in sorted(range(len(everything)), key=lambda index: _rank(everything[index])):
        trajectory = everything[index]
        task_id = trajectory.task.task_id
        reasons[index] = _refusal(rules, trajectory, ways, own[task_id])
        if reasons[index] is None:
            ways.add(_way(trajectory))
            own[task_id] += trajectory.agent != "expert"
    return reasons


def _rank(trajectory: Trajectory) -> tuple[bool, float, int]:
    own = trajectory.agent != "expert"
    return own, -trajectory.reward * own, trajectory.sample


def _refusal(rules: SelectionConfig, trajectory: Trajectory, ways: set[Way], taken: int) -> DropReason | None:
    """The first reason that holds; `ways` and `taken` are those taken before, `taken` of the task's own episodes."""
    own = trajectory.agent != "expert"
    reasons = {
        DropReason.UNASKED: not own and not rules.with_experts,
        DropReason.ENV_ERROR: trajectory.stop is StopReason.ENV_ERROR,
        DropReason.EMPTY: not trajectory.turns,
        DropReason.LOW_REWARD: own and trajectory.reward < rules.min_reward,
        DropReason.DUPLICATE: _way(trajectory) in ways,
        DropReason.SURPLUS: own and rules.per_task is not None and taken >= rules.per_task,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _way(trajectory: Trajectory) -> Way:
    return trajectory.task.task_id, tuple(turn.action for turn in trajectory.turns)


def _drop(trajectory: Trajectory, reason: DropReason) -> Drop:
    return Drop(task_id=trajectory.task.task_id, reason=reason, ids=(trajectory.digest(),))


def _count(reasons: Sequence[DropReason | None]) -> Count:
    drops = Counter(reason for reason in reasons if reason is not None)
    return Count(came_in=len(reasons), selected=reasons.count(None), drops=drops)
