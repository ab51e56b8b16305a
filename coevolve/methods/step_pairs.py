"""Step-level process refinement (IPR, Xiong et al. 2024): pairs of an expert's step and the agent's at the same point.

The agent starts from the first turns of an expert trajectory and plays to the end. If its next action differs from the
expert's, a *scorer* (the fine-tuned base policy) continues several times after either step; the mean reward of these
continuations is the Monte Carlo estimate of the *step value*. If the side with the better outcome also has the greater
step value, by more than a margin, what the two did from there on is a pair, and the turns before are its prompt. Whole
trajectories are paired as well, as in any method (`coevolve.methods.pairing`).

Re-implemented without upstream's code (`construct_preference_monte_carlo_*.py`); docs/read/decisions.md has the
differences from it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coevolve.config.baselines import StepsConfig
from coevolve.config.names import PairKind
from coevolve.config.sections import PairingConfig, PairWeights
from coevolve.methods.pairing import BuiltPair, PairSide, first_reason, kind_count, preference_pair
from coevolve.records.base import Record
from coevolve.records.drops import Drop, DropReason
from coevolve.records.episodes import Reward, StopReason, Task, Trajectory, Turn, turn_messages
from coevolve.records.pairs import KindCount, PreferencePair

#: Plays tasks from prefixes of turns: one episode each to explore, `StepsConfig.samples` consecutive ones to continue.
Player = Callable[[Sequence[Task], Sequence[Sequence[Turn]]], Sequence[Trajectory]]


@dataclass(frozen=True)
class BranchPoint:
    """The state of an expert trajectory after its first `turn` turns."""

    expert: Trajectory
    turn: int

    @property
    def prefix(self) -> tuple[Turn, ...]:
        """The turns before the branch point."""
        return self.expert.turns[: self.turn]


@dataclass(frozen=True)
class Divergence:
    """An episode from a branch point whose next action and outcome differ from the expert's."""

    point: BranchPoint
    explored: Trajectory


class StepValues(Record):
    """Mean rewards of continuations after the step at turn `turn`; None if the environment failed in all of them."""

    task_id: str
    turn: int
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
) -> StepPairing:
    """Pairs of steps along the first expert trajectory of each task, ordered by task and turn.

    `explore` plays with the agent, `resume` with the scorer. Every branch point, and every task without an expert,
    becomes a pair or a drop (asserted by `KindCount`).
    """
    expert_of = {expert.task.task_id: expert for expert in reversed(experts)}  # the first of a task wins
    task_ids = list(dict.fromkeys(task.task_id for task in tasks))
    without_expert = [_drop(task_id, DropReason.MISSING_EXPERT) for task_id in task_ids if task_id not in expert_of]
    points = [
        BranchPoint(expert_of[task_id], turn)
        for task_id in task_ids
        if task_id in expert_of
        # Not from turn 0: episodes from there are whole trajectories.
        for turn in range(settings.every, len(expert_of[task_id].turns), settings.every)
    ]
    explored = explore([point.expert.task for point in points], [point.prefix for point in points])
    compared = [compare(point, episode, rules) for point, episode in zip(points, explored, strict=True)]
    divergences = [outcome for outcome in compared if isinstance(outcome, Divergence)]
    values = _estimate(divergences, settings.samples, resume)
    outcomes = [build(*both, settings.margin, rules, weights) for both in zip(divergences, values, strict=True)]
    built = [outcome for outcome in outcomes if isinstance(outcome, BuiltPair)]
    drops = [*without_expert, *(outcome for outcome in (*compared, *outcomes) if isinstance(outcome, Drop))]
    return StepPairing(
        pairs=tuple(outcome.pair for outcome in built),
        drops=tuple(drops),
        count=kind_count(PairKind.EXPERT_STEP, len(without_expert) + len(points), built, drops),
        explored=tuple(explored),
        step_values=tuple(values),
    )


def compare(point: BranchPoint, explored: Trajectory, rules: PairingConfig) -> Divergence | Drop:
    """The divergence of the episode `explored` from `point`, or the first reason against a pair."""
    expert, turn = point.expert, point.turn
    observations = [[t.observation for t in trajectory.turns[:turn]] for trajectory in (explored, expert)]
    acted = len(explored.turns) > turn
    reasons = {
        DropReason.ENV_ERROR: explored.stop is StopReason.ENV_ERROR,
        DropReason.REPLAY_DIFFERS: explored.prompt != expert.prompt or observations[0] != observations[1],
        DropReason.EMPTY: not acted,
        DropReason.IDENTICAL: acted and explored.turns[turn].action == expert.turns[turn].action,
        DropReason.TIE: explored.reward == expert.reward,
        DropReason.EXPERT_BEATEN: explored.reward > expert.reward and rules.expert_beaten == "drop",
    }
    if reason := first_reason(reasons):
        return _drop(expert.task.task_id, reason, (expert.digest(), explored.digest()), f"turn {turn}")
    return Divergence(point, explored)


def build(
    divergence: Divergence, values: StepValues, margin: float, rules: PairingConfig, weights: PairWeights
) -> BuiltPair | Drop:
    """The pair of a divergence; a drop if the better outcome's step is not better by more than `margin`."""
    swapped = divergence.explored.reward > divergence.point.expert.reward
    ids, turn = (values.expert_id, values.explored_id), f"turn {values.turn}"
    if values.expert is None or values.explored is None:
        return _drop(values.task_id, DropReason.ENV_ERROR, ids, turn)
    better, worse = (values.explored, values.expert) if swapped else (values.expert, values.explored)
    if better - worse <= margin:
        detail = f"{turn}: step value {values.expert:.3f} of the expert, {values.explored:.3f} of the agent"
        return _drop(values.task_id, DropReason.MARGIN, ids, detail)
    return _step_pair(divergence, swapped, rules, weights)


def _estimate(divergences: Sequence[Divergence], samples: int, resume: Player) -> list[StepValues]:
    """The step values of each divergence; a step that ended its episode has the episode's reward as its value."""
    sides = [
        (side, divergence.point.turn + 1)
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


def _drop(task_id: str, reason: DropReason, ids: tuple[str, ...] = (), detail: str = "") -> Drop:
    return Drop(task_id=task_id, kind=PairKind.EXPERT_STEP, reason=reason, ids=ids, detail=detail)
