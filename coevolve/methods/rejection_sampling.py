"""Rejection sampling fine-tuning: select the agent's successes to fine-tune on, with the experts (Yuan et al. 2023).

The RFT row of the paper and of ETO (Song et al. 2024): the fine-tuned policy plays every training task K times, its
successes are added to the expert data, and the base model is fine-tuned on both. An episode with the same actions as a
selected one is dropped as a duplicate.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coevolve.errors import UserError
from coevolve.methods.settings import SelectionConfig
from coevolve.records.episodes import StopReason, Trajectory
from coevolve.records.pairs import Drop, DropReason

#: A task and the actions taken in it.
Actions = tuple[str, tuple[str | None, ...]]


@dataclass(frozen=True)
class RftSelection:
    """The selected trajectories, experts first, the drops, and counts as JSON data, reasons by name."""

    selected: tuple[Trajectory, ...]
    drops: tuple[Drop, ...]
    summary: dict[str, dict[str, Any]]


def select(rules: SelectionConfig, experts: Sequence[Trajectory], rollouts: Sequence[Trajectory]) -> RftSelection:
    """The experts and the successful rollouts, each in input order.

    With a limit per task, rollouts with the highest rewards are selected, and among equal ones the first samples.
    Raises `UserError` if an expert is among the rollouts or a rollout among the experts.
    """
    _check_agents(experts, rollouts)
    everything = (*experts, *rollouts)
    reasons = _drop_reasons(rules, everything)
    outcomes = list(zip(everything, reasons, strict=True))
    return RftSelection(
        selected=tuple(trajectory for trajectory, reason in outcomes if reason is None),
        drops=tuple(
            Drop(task_id=trajectory.task.task_id, reason=reason, ids=(trajectory.digest(),))
            for trajectory, reason in outcomes
            if reason is not None
        ),
        summary={
            "experts": _count(reasons[: len(experts)]),
            "rollouts": _count(reasons[len(experts) :]),
            "tasks": {
                "explored": len({rollout.task.task_id for rollout in rollouts}),
                "solved": len({rollout.task.task_id for rollout in rollouts if rollout.reward >= rules.min_reward}),
            },
        },
    )


def _check_agents(experts: Sequence[Trajectory], rollouts: Sequence[Trajectory]) -> None:
    for name, side, expert in (("experts", experts, True), ("rollouts", rollouts, False)):
        for trajectory in side:
            if (trajectory.agent == "expert") != expert:
                raise UserError(
                    f"task {trajectory.task.task_id}: a trajectory of the {trajectory.agent} agent lies among the "
                    f"{name}; give the expert data and the agent's rollouts."
                )


def _drop_reasons(rules: SelectionConfig, everything: Sequence[Trajectory]) -> list[DropReason | None]:
    """The drop reason of each trajectory, None if selected; experts are considered first, then the best rollouts."""
    reasons: list[DropReason | None] = [None] * len(everything)
    seen, selected_rollouts = set[Actions](), Counter[str]()
    for index in sorted(range(len(everything)), key=lambda index: _order(everything[index])):
        trajectory = everything[index]
        task_id = trajectory.task.task_id
        reasons[index] = _drop_reason(rules, trajectory, seen, selected_rollouts[task_id])
        if reasons[index] is None:
            seen.add(_actions(trajectory))
            selected_rollouts[task_id] += trajectory.agent != "expert"
    return reasons


def _order(trajectory: Trajectory) -> tuple[bool, float, int]:
    is_rollout = trajectory.agent != "expert"
    return is_rollout, -trajectory.reward * is_rollout, trajectory.sample


def _drop_reason(
    rules: SelectionConfig, trajectory: Trajectory, seen: set[Actions], selected_rollouts: int
) -> DropReason | None:
    """The first reason that applies, given the `seen` actions and the number of rollouts selected in this task."""
    is_rollout = trajectory.agent != "expert"
    reasons = {
        DropReason.NOT_USED: not is_rollout and not rules.with_experts,
        DropReason.ENV_ERROR: trajectory.stop is StopReason.ENV_ERROR,
        DropReason.EMPTY: not trajectory.turns,
        DropReason.LOW_REWARD: is_rollout and trajectory.reward < rules.min_reward,
        DropReason.DUPLICATE: _actions(trajectory) in seen,
        DropReason.SURPLUS: is_rollout and rules.per_task is not None and selected_rollouts >= rules.per_task,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _actions(trajectory: Trajectory) -> Actions:
    return trajectory.task.task_id, tuple(turn.action for turn in trajectory.turns)


def _count(reasons: Sequence[DropReason | None]) -> dict[str, Any]:
    drops = Counter(reason.value for reason in reasons if reason is not None)
    return {"total": len(reasons), "selected": reasons.count(None), "drops": dict(sorted(drops.items()))}
