"""Step-level process refinement (IPR, Xiong et al. 2024): pairs of an expert's step and the agent's at the same point.

The agent starts from the first turns of an expert trajectory and plays to the end. If its next action differs from the
expert's, a *scorer* (the fine-tuned base policy) continues several times after either step; the mean reward of these
continuations is the Monte Carlo estimate of the *step value*. If the side with the better outcome also has the greater
step value, by more than a margin, what the two did from there on is a pair, and the turns before are its prompt. Whole
trajectories are paired as well, as in any method (`coevolve.methods.pairing`).

HPL (Gao et al. 2026, arXiv 2510.03253) also divides an expert trajectory into groups of turns. The agent plays from the
beginning of a group; its turns of the same number are the other side, and values are estimated after both.

Re-implemented without upstream's code (`construct_preference_monte_carlo_*.py`); docs/read/decisions.md has the
differences from it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from pydantic import Field

from coevolve.methods.pairing import BuiltPair, PairSide, first_reason, kind_count, preference_pair
from coevolve.methods.settings import PairingConfig, PairWeights, StepsConfig
from coevolve.records.base import Record
from coevolve.records.episodes import Reward, StopReason, Task, Trajectory, Turn, turn_messages
from coevolve.records.pairs import Drop, DropReason, KindCount, PairKind, PreferencePair

#: Plays tasks from prefixes of turns: one episode each to explore, `StepsConfig.samples` consecutive ones to continue.
Player = Callable[[Sequence[Task], Sequence[Sequence[Turn]]], Sequence[Trajectory]]


@dataclass(frozen=True)
class BranchPoint:
    """The state of an expert trajectory after its first `turn` turns; the next `length` turns are compared."""

    expert: Trajectory
    turn: int
    kind: PairKind = PairKind.EXPERT_STEP
    length: int = 1

    @property
    def prefix(self) -> tuple[Turn, ...]:
        """The turns before the branch point."""
        return self.expert.turns[: self.turn]

    @property
    def end(self) -> int:
        """The number of turns up to the end of those compared."""
        return self.turn + self.length

    @property
    def is_group(self) -> bool:
        """Whether a group of turns is compared, and what follows it is in no pair."""
        return self.kind is PairKind.EXPERT_GROUP


@dataclass(frozen=True)
class Divergence:
    """An episode from a branch point whose next action and outcome differ from the expert's."""

    point: BranchPoint
    explored: Trajectory


class StepValues(Record):
    """Mean rewards of continuations after the step at turn `turn`; None if the environment failed in all of them.

    `length`: the number of turns in a group, left out of a step's.
    """

    task_id: str
    turn: int
    length: int = Field(default=1, exclude_if=lambda length: length == 1)
    expert_id: str
    explored_id: str
    expert: Reward | None
    explored: Reward | None


@dataclass(frozen=True)
class StepPairing:
    """The pairs of steps, the drops and their counts, the explored episodes and the step values."""

    pairs: tuple[PreferencePair, ...]
    drops: tuple[Drop, ...]
    count: KindCount
    explored: tuple[Trajectory, ...]
    step_values: tuple[StepValues, ...]


def pair_steps(
    settings: StepsConfig,
    rules: PairingConfig,
    weights: PairWeights,
    tasks: Sequence[Task],
    experts: Sequence[Trajectory],
    explore: Player,
    resume: Player,
    kind: PairKind = PairKind.EXPERT_STEP,
) -> StepPairing:
    """Pairs of steps (or of groups) along the first expert trajectory of each task, ordered by task and turn.

    `explore` plays with the agent, `resume` with the scorer. Every branch point, and every task without an expert,
    becomes a pair or a drop (asserted by `KindCount`).
    """
    expert_of = {expert.task.task_id: expert for expert in reversed(experts)}  # the first of a task wins
    task_ids = list(dict.fromkeys(task.task_id for task in tasks))
    without_expert = [
        _drop(kind, task_id, DropReason.MISSING_EXPERT) for task_id in task_ids if task_id not in expert_of
    ]
    followed = [expert_of[task_id] for task_id in task_ids if task_id in expert_of]
    points = [point for expert in followed for point in branch_points(expert, settings, kind)]
    explored = explore([point.expert.task for point in points], [point.prefix for point in points])
    compared = [compare(point, episode, rules) for point, episode in zip(points, explored, strict=True)]
    divergences = [outcome for outcome in compared if isinstance(outcome, Divergence)]
    values = _estimate(divergences, settings.samples, resume)
    outcomes = [build(*both, settings.margin, rules, weights) for both in zip(divergences, values, strict=True)]
    built = [outcome for outcome in outcomes if isinstance(outcome, BuiltPair)]
    drops = [*without_expert, *(outcome for outcome in (*compared, *outcomes) if isinstance(outcome, Drop))]
    pairs = [outcome.pair for outcome in built]
    return StepPairing(
        pairs=tuple(with_phases(pairs) if settings.curriculum and kind is PairKind.EXPERT_GROUP else pairs),
        drops=tuple(drops),
        count=kind_count(kind, len(without_expert) + len(points), built, drops),
        explored=tuple(explored),
        step_values=tuple(values),
    )


def branch_points(expert: Trajectory, settings: StepsConfig, kind: PairKind) -> list[BranchPoint]:
    """The branch points of an expert trajectory: at its steps, or at the beginnings of its groups."""
    turns = len(expert.turns)
    if kind is PairKind.EXPERT_STEP:
        # Not from turn 0: episodes from there are whole trajectories.
        return [BranchPoint(expert, turn) for turn in range(settings.every, turns, settings.every)]
    bounds = [turns * number // settings.groups for number in range(settings.groups + 1)]
    return [BranchPoint(expert, begin, kind, end - begin) for begin, end in pairwise(bounds) if begin < end]


def with_phases(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
    """Pairs of groups with their phase of HPL's curriculum, 1 to 3.

    Thirds of the pairs, by turns and by difference of values, divide them into nine classes: the first phase has the
    shortest with the largest difference, the second also the two classes beside it, the third all.
    """
    lengths = _thirds([len(pair.chosen_token_ids) for pair in pairs])
    difficulties = _thirds([pair.rejected_reward - pair.chosen_reward for pair in pairs])
    return [
        pair.model_copy(update={"phase": min(3, 1 + length + difficulty)})
        for pair, length, difficulty in zip(pairs, lengths, difficulties, strict=True)
    ]


def _thirds(values: Sequence[float]) -> list[int]:
    """For each value 0, 1 or 2: in which third of the values it is."""
    return np.searchsorted(np.quantile(values, [1 / 3, 2 / 3]), values).tolist() if values else []


def compare(point: BranchPoint, explored: Trajectory, rules: PairingConfig) -> Divergence | Drop:
    """The divergence of the episode `explored` from `point`, or the first reason against a pair."""
    expert, turn, end = point.expert, point.turn, point.end
    observations = [[t.observation for t in trajectory.turns[:turn]] for trajectory in (explored, expert)]
    acted = len(explored.turns) > turn
    reasons = {
        DropReason.ENV_ERROR: explored.stop is StopReason.ENV_ERROR,
        DropReason.REPLAY_DIFFERS: explored.prompt != expert.prompt or observations[0] != observations[1],
        DropReason.EMPTY: not acted,
        DropReason.IDENTICAL: acted and _actions(explored, turn, end) == _actions(expert, turn, end),
        DropReason.TIE: not point.is_group and explored.reward == expert.reward,
        DropReason.EXPERT_BEATEN: not point.is_group
        and explored.reward > expert.reward
        and rules.expert_beaten == "drop",
    }
    if reason := first_reason(reasons):
        return _drop(point.kind, expert.task.task_id, reason, (expert.digest(), explored.digest()), f"turn {turn}")
    return Divergence(point, explored)


def build(
    divergence: Divergence, values: StepValues, margin: float, rules: PairingConfig, weights: PairWeights
) -> BuiltPair | Drop:
    """The pair of a divergence; a drop if the better outcome's step is not better by more than `margin`."""
    point = divergence.point
    swapped = not point.is_group and divergence.explored.reward > point.expert.reward
    ids, turn = (values.expert_id, values.explored_id), f"turn {values.turn}"
    if values.expert is None or values.explored is None:
        return _drop(point.kind, values.task_id, DropReason.ENV_ERROR, ids, turn)
    better, worse = (values.explored, values.expert) if swapped else (values.expert, values.explored)
    if better - worse <= margin:
        detail = f"{turn}: step value {values.expert:.3f} of the expert, {values.explored:.3f} of the agent"
        return _drop(point.kind, values.task_id, DropReason.MARGIN, ids, detail)
    return (
        _group_pair(divergence, values, weights) if point.is_group else _step_pair(divergence, swapped, rules, weights)
    )


def _estimate(divergences: Sequence[Divergence], samples: int, resume: Player) -> list[StepValues]:
    """The step values of each divergence; a step that ended its episode has the episode's reward as its value."""
    sides = [
        (side, divergence.point.end)
        for divergence in divergences
        for side in (divergence.point.expert, divergence.explored)
    ]
    unfinished = [(side, turns) for side, turns in sides if turns < len(side.turns)]
    played = resume([side.task for side, _ in unfinished], [side.turns[:turns] for side, turns in unfinished])
    continuations = iter([played[first : first + samples] for first in range(0, len(played), samples)])
    means = [_mean_reward(next(continuations) if turns < len(side.turns) else [side]) for side, turns in sides]
    return [
        StepValues(
            task_id=divergence.explored.task.task_id,
            turn=divergence.point.turn,
            length=divergence.point.length,
            expert_id=divergence.point.expert.digest(),
            explored_id=divergence.explored.digest(),
            expert=expert,
            explored=explored,
        )
        for divergence, expert, explored in zip(divergences, means[0::2], means[1::2], strict=True)
    ]


def _mean_reward(episodes: Sequence[Trajectory]) -> float | None:
    rewards = [episode.reward for episode in episodes if episode.stop is not StopReason.ENV_ERROR]
    return sum(rewards) / len(rewards) if rewards else None


def _step_pair(divergence: Divergence, swapped: bool, rules: PairingConfig, weights: PairWeights) -> BuiltPair:
    """Both sides from the branch point on, the better outcome chosen; rewards and ids are those of whole episodes."""
    expert, turn = divergence.point.expert, divergence.point.turn
    chosen, rejected = (divergence.explored, expert) if swapped else (expert, divergence.explored)
    limit = len(expert.turns) + (rules.max_extra_turns or 0)
    cut = rules.max_extra_turns is not None and len(rejected.turns) > limit
    prompt = (*expert.prompt, *turn_messages(divergence.point.prefix))
    better, worse = (
        PairSide(side.digest(), side.model_copy(update={"prompt": prompt, "turns": side.turns[turn:end]}))
        for side, end in ((chosen, None), (rejected, limit if cut else None))
    )
    return BuiltPair(preference_pair(PairKind.EXPERT_STEP, better, worse, weights), swapped, cut)


def _group_pair(divergence: Divergence, values: StepValues, weights: PairWeights) -> BuiltPair:
    """The turns of both groups, with their values as rewards; ids are those of whole episodes."""
    point = divergence.point
    prompt = (*point.expert.prompt, *turn_messages(point.prefix))
    chosen, rejected = (
        PairSide(
            side.digest(),
            side.model_copy(update={"prompt": prompt, "turns": side.turns[point.turn : point.end], "reward": value}),
        )
        for side, value in ((point.expert, values.expert), (divergence.explored, values.explored))
    )
    return BuiltPair(preference_pair(point.kind, chosen, rejected, weights), swapped=False, cut=False)


def _actions(episode: Trajectory, begin: int, end: int) -> list[str | None]:
    return [turn.action for turn in episode.turns[begin:end]]


def _drop(kind: PairKind, task_id: str, reason: DropReason, ids: tuple[str, ...] = (), detail: str = "") -> Drop:
    return Drop(task_id=task_id, kind=kind, reason=reason, ids=ids, detail=detail)
