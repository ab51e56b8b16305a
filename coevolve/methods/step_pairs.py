"""Step-level process refinement (IPR, Xiong et al. 2024): an expert's step against the agent's in the same place.

The first turns of an expert are done again and the agent goes on from there, to the end. Where it acts otherwise than
the expert, a *scorer* (the fine-tuned base) goes on after either step, several times: the mean reward of these
continuations is what a step is worth. If one side has the better outcome and began with the step that is worth more by
over a margin, what the two did from there on is a pair; what the expert did before is its prompt. Whole trajectories
are paired beside it, as in any method (`coevolve.methods.pairing`).

Re-implemented; no code of upstream's (`construct_preference_monte_carlo_*.py`) is used. What differs from it:

* A step is scored only where a pair can come of it: not where both act alike (upstream pairs these too, if the samples
  happen to differ), nor where the outcomes are equal or the rule `expert_beaten` drops the pair.
* The agent's episode from the start is the method's rollout, at the protocol's temperature; upstream explores greedily.
* All play with the prompt that is trained on; upstream plays with an in-context example that training lacks.
* Outcomes differ if they differ at all; upstream asks for more than 0.01, as of steps. `expert_beaten` and
  `max_extra_turns` hold here as in pairing; upstream swaps and does not cut.
* An expert's steps are scored anew in each iteration; upstream's once. An environment's failure is no reward of 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coevolve.config.baselines import StepsConfig
from coevolve.config.sections import PairingConfig
from coevolve.methods.pairing import KindCount, Match
from coevolve.types import (
    Drop,
    DropReason,
    Message,
    PairKind,
    PairWeights,
    PreferencePair,
    Record,
    Reward,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

#: Plays tasks from prefixes on: one episode each to explore; `StepsConfig.samples` each, side by side, to continue.
Player = Callable[[Sequence[Task], Sequence[Sequence[Turn]]], Sequence[Trajectory]]


@dataclass(frozen=True)
class Place:
    """A place on an expert's way: after its first `turn` turns, before its next one."""

    expert: Trajectory
    turn: int

    @property
    def prefix(self) -> tuple[Turn, ...]:
        """The turns that lead there."""
        return self.expert.turns[: self.turn]


@dataclass(frozen=True)
class Fork:
    """A place from which the agent went another way than the expert, to another outcome."""

    place: Place
    explored: Trajectory


class Worth(Record):
    """What the steps of a fork are worth, in mean reward; None where the environment broke every continuation."""

    task_id: str
    turn: int
    expert_id: str
    explored_id: str
    expert: Reward | None
    explored: Reward | None


@dataclass(frozen=True)
class Refinement:
    """The pairs of steps, all that became none, and what was played and reckoned for them."""

    pairs: tuple[PreferencePair, ...]
    drops: tuple[Drop, ...]
    count: KindCount
    explored: tuple[Trajectory, ...]
    worths: tuple[Worth, ...]


def refine(
    settings: StepsConfig,
    rules: PairingConfig,
    weights: PairWeights,
    tasks: Sequence[Task],
    experts: Sequence[Trajectory],
    explore: Player,
    resume: Player,
) -> Refinement:
    """Pairs of steps along the first expert of each task, ordered by task and turn.

    Every place that is looked at, and every task without an expert, becomes a pair or a drop (asserted by
    `KindCount`). `explore` is the agent, `resume` the scorer.
    """
    guides = {expert.task.task_id: expert for expert in reversed(experts)}  # of two the first stays
    task_ids = list(dict.fromkeys(task.task_id for task in tasks))
    unguided = [_drop(task_id, DropReason.MISSING_EXPERT) for task_id in task_ids if task_id not in guides]
    places = [place for task_id in task_ids if task_id in guides for place in _places(guides[task_id], settings.every)]
    explored = explore([place.expert.task for place in places], [place.prefix for place in places])
    looked = [look(place, episode, rules) for place, episode in zip(places, explored, strict=True)]
    forks = [fork for fork in looked if isinstance(fork, Fork)]
    worths = _worths(forks, settings.samples, resume)
    judged = [judge(*both, settings.margin, rules, weights) for both in zip(forks, worths, strict=True)]
    matches = [outcome for outcome in judged if isinstance(outcome, Match)]
    drops = [*unguided, *(outcome for outcome in (*looked, *judged) if isinstance(outcome, Drop))]
    return Refinement(
        pairs=tuple(match.pair for match in matches),
        drops=tuple(drops),
        count=KindCount(
            candidates=len(unguided) + len(places),
            pairs=len(matches),
            swapped=sum(match.swapped for match in matches),
            cut=sum(match.cut for match in matches),
            drops=Counter(drop.reason for drop in drops),
        ),
        explored=tuple(explored),
        worths=tuple(worths),
    )


def look(place: Place, explored: Trajectory, rules: PairingConfig) -> Fork | Drop:
    """A fork, or the first reason why no pair can come of what the agent did from `place` on."""
    expert, here = place.expert, place.turn
    arrived = explored.prompt == expert.prompt and _seen(explored.turns[:here]) == _seen(place.prefix)
    acted = len(explored.turns) > here
    reasons = {
        DropReason.ENV_ERROR: explored.stop is StopReason.ENV_ERROR,
        DropReason.REPLAY_DIFFERS: not arrived,
        DropReason.EMPTY: not acted,
        DropReason.IDENTICAL: acted and explored.turns[here].action == expert.turns[here].action,
        DropReason.TIE: explored.reward == expert.reward,
        DropReason.EXPERT_BEATEN: explored.reward > expert.reward and rules.expert_beaten == "drop",
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if reason is not None:
        return _drop(expert.task.task_id, reason, (expert.digest(), explored.digest()), f"turn {here}")
    return Fork(place, explored)


def judge(fork: Fork, worth: Worth, margin: float, rules: PairingConfig, weights: PairWeights) -> Match | Drop:
    """The fork as a pair, or a drop where the side with the better outcome did not begin with the better step."""
    swapped = fork.explored.reward > fork.place.expert.reward
    ids, here = (worth.expert_id, worth.explored_id), f"turn {worth.turn}"
    if worth.expert is None or worth.explored is None:
        return _drop(worth.task_id, DropReason.ENV_ERROR, ids, here)
    better, other = (worth.explored, worth.expert) if swapped else (worth.expert, worth.explored)
    if better - other <= margin:
        detail = f"{here}: the expert's step is worth {worth.expert:.3f}, the agent's {worth.explored:.3f}"
        return _drop(worth.task_id, DropReason.MARGIN, ids, detail)
    return _match(fork, swapped, rules, weights)


def _places(expert: Trajectory, every: int) -> list[Place]:
    """Each `every`-th step but the first: from the start on, whole trajectories are compared."""
    return [Place(expert, turn) for turn in range(every, len(expert.turns), every)]


def _seen(turns: Sequence[Turn]) -> list[str]:
    return [turn.observation for turn in turns]


def _worths(forks: Sequence[Fork], samples: int, resume: Player) -> list[Worth]:
    """What both steps of each fork are worth; a step that ended its episode is worth what the episode earned."""
    sides = [(side, fork.place.turn + 1) for fork in forks for side in (fork.place.expert, fork.explored)]
    going_on = [(side, steps) for side, steps in sides if steps < len(side.turns)]
    played = resume([side.task for side, _ in going_on], [side.turns[:steps] for side, steps in going_on])
    parts = iter([played[first : first + samples] for first in range(0, len(played), samples)])
    means = [_mean(next(parts) if steps < len(side.turns) else [side]) for side, steps in sides]
    return [
        Worth(
            task_id=fork.explored.task.task_id,
            turn=fork.place.turn,
            expert_id=fork.place.expert.digest(),
            explored_id=fork.explored.digest(),
            expert=expert,
            explored=explored,
        )
        for fork, expert, explored in zip(forks, means[0::2], means[1::2], strict=True)
    ]


def _mean(episodes: Sequence[Trajectory]) -> float | None:
    rewards = [episode.reward for episode in episodes if episode.stop is not StopReason.ENV_ERROR]
    return sum(rewards) / len(rewards) if rewards else None


def _match(fork: Fork, swapped: bool, rules: PairingConfig, weights: PairWeights) -> Match:
    """What the two did from the fork on, the better outcome chosen; rewards and ids are those of whole episodes."""
    expert, here = fork.place.expert, fork.place.turn
    chosen, rejected = (fork.explored, expert) if swapped else (expert, fork.explored)
    end = len(expert.turns) + (rules.max_extra_turns or 0)
    cut = rules.max_extra_turns is not None and len(rejected.turns) > end
    preferred, refused = _rest(chosen, here), _rest(rejected, here, end if cut else None)
    pair = PreferencePair(
        task_id=expert.task.task_id,
        kind=PairKind.EXPERT_STEP,
        prompt=(*expert.prompt, *_messages(fork.place.prefix)),
        chosen=preferred.completion,
        rejected=refused.completion,
        chosen_token_ids=tuple(turn.token_ids for turn in preferred.turns),
        rejected_token_ids=tuple(turn.token_ids for turn in refused.turns),
        chosen_id=chosen.digest(),
        rejected_id=rejected.digest(),
        chosen_reward=chosen.reward,
        rejected_reward=rejected.reward,
        lambda_dpo=weights.dpo,
        lambda_sft=weights.sft,
    )
    return Match(pair, swapped, cut)


def _rest(trajectory: Trajectory, begin: int, end: int | None = None) -> Trajectory:
    return trajectory.model_copy(update={"turns": trajectory.turns[begin:end]})


def _messages(turns: Sequence[Turn]) -> list[Message]:
    """Actions and what they met, as the context of the next action."""
    messages: list[Message] = []
    for turn in turns:
        messages += [Message(role="assistant", content=turn.text), Message(role="user", content=turn.observation)]
    return messages


def _drop(task_id: str, reason: DropReason, ids: tuple[str, ...] = (), detail: str = "") -> Drop:
    return Drop(task_id=task_id, kind=PairKind.EXPERT_STEP, reason=reason, ids=ids, detail=detail)
