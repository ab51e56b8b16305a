"""Episodes to preference pairs (eq. 6 and 8): each pair kind of a recipe is a named pure function over one task.

A *candidate* is a pair that could have been. Per task there are

* expert_target, expert_failure: one per rollout of that agent; without a rollout one, counted as missing;
* failure_failure: one per (target rollout, failure rollout); without one of the sides one, counted as missing; with
  `within` also one per two rollouts of the same agent.

Every candidate becomes a pair or a drop with its reason; every trajectory that came in is found again in the counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from coevolve.chat.prompts import without_example
from coevolve.config.sections import AgentRecipe, PairingConfig
from coevolve.errors import UserError
from coevolve.types import (
    Agent,
    Drop,
    DropReason,
    Message,
    PairKind,
    PairWeights,
    PreferencePair,
    StopReason,
    Task,
    Trajectory,
)

USES: Mapping[PairKind, frozenset[Agent]] = {
    PairKind.EXPERT_TARGET: frozenset({"expert", "target"}),
    PairKind.EXPERT_FAILURE: frozenset({"expert", "failure"}),
    PairKind.FAILURE_FAILURE: frozenset({"target", "failure"}),
}


@dataclass(frozen=True)
class Side:
    """A trajectory, perhaps cut, with the digest it had when it came in."""

    id: str
    trajectory: Trajectory


@dataclass(frozen=True)
class Material:
    """What is there to pair for one task; rollouts are in the order of their sample numbers."""

    task_id: str
    expert: Side | None
    target: tuple[Side, ...]
    failure: tuple[Side, ...]


@dataclass(frozen=True)
class Candidate:
    """A pair that could be: two sides, or what there is of them and what is `missing`."""

    task_id: str
    kind: PairKind
    sides: tuple[Side, ...]
    missing: DropReason | None = None


@dataclass(frozen=True)
class Match:
    """A pair, and what the rules did to it: expert on the rejected side, rejected side cut."""

    pair: PreferencePair
    swapped: bool
    cut: bool


@dataclass(frozen=True)
class KindCount:
    """What became of the candidates of one pair kind; `swapped` and `cut` are among `pairs`."""

    candidates: int
    pairs: int
    swapped: int
    cut: int
    drops: Mapping[DropReason, int]

    def __post_init__(self) -> None:
        assert self.candidates == self.pairs + sum(self.drops.values()), f"candidates are lost: {self}"


@dataclass(frozen=True)
class TrajectoryCount:
    """What became of the trajectories: in a pair; else named by a drop; else of an agent that no asked kind uses."""

    came_in: int
    paired: int
    dropped: int
    unasked: int

    def __post_init__(self) -> None:
        assert self.came_in == self.paired + self.dropped + self.unasked, f"trajectories are lost: {self}"


@dataclass(frozen=True)
class Pairing:
    """The pairs for one agent, and all that became none; a drop without a kind concerns a trajectory alone."""

    pairs: tuple[PreferencePair, ...]
    drops: tuple[Drop, ...]
    kinds: Mapping[PairKind, KindCount]
    trajectories: TrajectoryCount


def pair(
    recipe: AgentRecipe,
    rules: PairingConfig,
    tasks: Sequence[Task],
    experts: Sequence[Trajectory],
    rollouts: Mapping[Agent, Sequence[Trajectory]],
    unlearned: Sequence[Message] = (),
) -> Pairing:
    """The pairs one agent is trained on, ordered by task, then kind, then samples, whatever the rollouts' order.

    `unlearned` is an example in the rollouts' prompts that pairs are to lack, as the experts do. The first expert of a
    task counts. Raises `UserError` where a kind needs an agent that did not explore, where a trajectory lies under
    another agent's name, and where the two sides of a pair had different prompts.
    """
    _check_agents(recipe, experts, rollouts)
    expert, target, failure = (
        _sides(found, unlearned) for found in (experts, rollouts.get("target", ()), rollouts.get("failure", ()))
    )
    materials = _materials(list(dict.fromkeys(task.task_id for task in tasks)), expert, target, failure)
    limits = {material.task_id: _turn_limit(material, rules) for material in materials}
    candidates = [c for material in materials for c in _candidates(material, recipe.trains_on, rules.within)]
    outcomes = [_judge(c, limits[c.task_id], recipe.trains_on[c.kind], rules) for c in candidates]
    matches = [outcome for outcome in outcomes if isinstance(outcome, Match)]
    drops = [outcome for outcome in outcomes if isinstance(outcome, Drop)]
    strays = _strays(limits.keys(), [*expert, *target, *failure])
    return Pairing(
        pairs=tuple(match.pair for match in matches),
        drops=(*drops, *strays),
        kinds={kind: _kind_count(kind, candidates, matches, drops) for kind in PairKind if kind in recipe.trains_on},
        trajectories=_trajectory_count([*expert, *target, *failure], matches, [*drops, *strays], recipe),
    )


def expert_target(material: Material) -> list[Candidate]:
    """(i) of eq. 8: the expert against each of the target's rollouts."""
    return _against_expert(PairKind.EXPERT_TARGET, material, material.target)


def expert_failure(material: Material) -> list[Candidate]:
    """(ii) of eq. 8: the expert against each of the failure agent's rollouts."""
    return _against_expert(PairKind.EXPERT_FAILURE, material, material.failure)


def failure_failure(material: Material) -> list[Candidate]:
    """Eq. 6 and (iii) of eq. 8: each of the target's rollouts against each of the failure agent's."""
    kind, present = PairKind.FAILURE_FAILURE, material.target + material.failure
    if not (material.target and material.failure):
        return [Candidate(material.task_id, kind, present, DropReason.MISSING_ROLLOUT)]
    return [Candidate(material.task_id, kind, couple) for couple in product(material.target, material.failure)]


def within_agents(material: Material) -> list[Candidate]:
    """Section 4.2's prose beyond eq. 6: each two rollouts of the same agent."""
    couples = [*combinations(material.target, 2), *combinations(material.failure, 2)]
    return [Candidate(material.task_id, PairKind.FAILURE_FAILURE, couple) for couple in couples]


KINDS: Mapping[PairKind, Callable[[Material], list[Candidate]]] = {
    PairKind.EXPERT_TARGET: expert_target,
    PairKind.EXPERT_FAILURE: expert_failure,
    PairKind.FAILURE_FAILURE: failure_failure,
}


def summary(result: Pairing) -> dict[str, Any]:
    """Counts per kind and reason as plain JSON data, and under `empty` a sentence for each kind without a pair."""
    return {
        "kinds": {kind.value: vars(n) | {"drops": _by_reason(n.drops)} for kind, n in result.kinds.items()},
        "strays": _by_reason(Counter(drop.reason for drop in result.drops if drop.kind is None)),
        "trajectories": vars(result.trajectories).copy(),
        "empty": [_empty_sentence(kind, count) for kind, count in result.kinds.items() if count.pairs == 0],
    }


def _check_agents(
    recipe: AgentRecipe, experts: Sequence[Trajectory], rollouts: Mapping[Agent, Sequence[Trajectory]]
) -> None:
    for kind in recipe.trains_on:
        if kind not in KINDS:
            raise UserError(f"recipe: `trains_on.{kind.value}` is no pair of whole trajectories; set `learns: steps`.")
        for agent in sorted(USES[kind] - {"expert"} - set(rollouts)):
            raise UserError(
                f"recipe: `trains_on.{kind.value}` needs rollouts of the {agent} agent and there are none; "
                f"set `agents.{agent}.explores: true` or take the kind out."
            )
    for agent, trajectories in {**rollouts, "expert": experts}.items():
        for trajectory in trajectories:
            if trajectory.agent != agent:
                raise UserError(
                    f"task {trajectory.task.task_id}: a trajectory of the {trajectory.agent} agent was given as one "
                    f"of the {agent} agent; give each agent's own rollout file."
                )


def _sides(trajectories: Sequence[Trajectory], unlearned: Sequence[Message]) -> list[Side]:
    """Each trajectory with the name it came with, and with a prompt that lacks the example."""
    return [
        Side(found.digest(), found.model_copy(update={"prompt": without_example(found.prompt, unlearned)}))
        for found in trajectories
    ]


def _materials(
    task_ids: Sequence[str], experts: Sequence[Side], target: Sequence[Side], failure: Sequence[Side]
) -> list[Material]:
    by_task = [_by_task(sides) for sides in (experts, target, failure)]
    return [
        Material(
            task_id,
            expert=next(iter(by_task[0][task_id]), None),
            target=_by_sample(by_task[1][task_id]),
            failure=_by_sample(by_task[2][task_id]),
        )
        for task_id in task_ids
    ]


def _by_task(sides: Sequence[Side]) -> Mapping[str, list[Side]]:
    groups: defaultdict[str, list[Side]] = defaultdict(list)
    for side in sides:
        groups[side.trajectory.task.task_id].append(side)
    return groups


def _by_sample(sides: Sequence[Side]) -> tuple[Side, ...]:
    return tuple(sorted(sides, key=lambda side: (side.trajectory.sample, side.id)))


def _strays(explored: Collection[str], sides: Sequence[Side]) -> list[Drop]:
    """Drops of trajectories of tasks that were not explored, and of all experts of a task but the first."""
    drops: list[Drop] = []
    with_expert = set[str]()
    for side in sides:
        task_id = side.trajectory.task.task_id
        if task_id not in explored:
            drops.append(Drop(task_id=task_id, reason=DropReason.NOT_IN_SPLIT, ids=(side.id,)))
        elif side.trajectory.agent == "expert":
            if task_id in with_expert:
                drops.append(Drop(task_id=task_id, reason=DropReason.DUPLICATE, ids=(side.id,)))
            with_expert.add(task_id)
    return drops


def _candidates(material: Material, kinds: Collection[PairKind], within: bool) -> list[Candidate]:
    functions = [KINDS[kind] for kind in PairKind if kind in kinds]
    if within and PairKind.FAILURE_FAILURE in kinds:
        functions.append(within_agents)
    return [candidate for function in functions for candidate in function(material)]


def _against_expert(kind: PairKind, material: Material, rollouts: tuple[Side, ...]) -> list[Candidate]:
    expert = () if material.expert is None else (material.expert,)
    if not rollouts:
        return [Candidate(material.task_id, kind, expert, DropReason.MISSING_ROLLOUT)]
    missing = None if expert else DropReason.MISSING_EXPERT
    return [Candidate(material.task_id, kind, (*expert, rollout), missing) for rollout in rollouts]


def _turn_limit(material: Material, rules: PairingConfig) -> int | None:
    """Most turns a rejected side may keep; None, no cut, also where there is no expert to measure by."""
    if rules.max_extra_turns is None or material.expert is None:
        return None
    return len(material.expert.trajectory.turns) + rules.max_extra_turns


def _judge(candidate: Candidate, limit: int | None, weights: PairWeights, rules: PairingConfig) -> Match | Drop:
    """The candidate as a pair, or the reason why it is none."""
    ids = tuple(side.id for side in candidate.sides)
    if candidate.missing is not None:
        return Drop(task_id=candidate.task_id, kind=candidate.kind, reason=candidate.missing, ids=ids)
    chosen, whole = sorted(candidate.sides, key=lambda side: side.trajectory.reward, reverse=True)
    # Of a tie neither side is the rejected one: cutting the second would make the reason depend on the order.
    rejected = _cut(whole, limit) if whole.trajectory.reward < chosen.trajectory.reward else whole
    reason = _refusal(candidate.kind, chosen.trajectory, rejected.trajectory, rules)
    if reason is not None:
        return Drop(task_id=candidate.task_id, kind=candidate.kind, reason=reason, ids=ids)
    return Match(
        _preference(candidate, chosen, rejected, weights),
        swapped=rejected.trajectory.agent == "expert",
        cut=rejected is not whole,
    )


def _cut(side: Side, limit: int | None) -> Side:
    """The side with its first `limit` turns; its reward stays that of the whole episode, as in ETO's script."""
    if limit is None or len(side.trajectory.turns) <= limit:
        return side
    return replace(side, trajectory=side.trajectory.model_copy(update={"turns": side.trajectory.turns[:limit]}))


def _refusal(kind: PairKind, chosen: Trajectory, rejected: Trajectory, rules: PairingConfig) -> DropReason | None:
    """Why two sides, the higher reward first, make no pair; the first reason that holds."""
    reasons = {
        DropReason.ENV_ERROR: StopReason.ENV_ERROR in (chosen.stop, rejected.stop),
        DropReason.EMPTY: not (chosen.turns and rejected.turns),
        DropReason.NOT_A_FAILURE: kind is PairKind.FAILURE_FAILURE and not chosen.is_failure,
        DropReason.NOT_HARD: kind is PairKind.FAILURE_FAILURE and chosen.reward < (rules.hard_negative or -1.0),
        DropReason.IDENTICAL: _texts(chosen) == _texts(rejected),
        DropReason.TIE: chosen.reward == rejected.reward,
        DropReason.EXPERT_BEATEN: rejected.agent == "expert" and rules.expert_beaten == "drop",
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _texts(trajectory: Trajectory) -> tuple[str, ...]:
    return tuple(turn.text for turn in trajectory.turns)


def _preference(candidate: Candidate, chosen: Side, rejected: Side, weights: PairWeights) -> PreferencePair:
    if chosen.trajectory.prompt != rejected.trajectory.prompt:
        raise UserError(
            f"task {candidate.task_id}: the prompts of the {chosen.trajectory.agent} trajectory {chosen.id} and the "
            f"{rejected.trajectory.agent} trajectory {rejected.id} differ; make both with the same prompt settings."
        )
    return PreferencePair(
        task_id=candidate.task_id,
        kind=candidate.kind,
        prompt=chosen.trajectory.prompt,
        chosen=chosen.trajectory.completion,
        rejected=rejected.trajectory.completion,
        chosen_token_ids=tuple(turn.token_ids for turn in chosen.trajectory.turns),
        rejected_token_ids=tuple(turn.token_ids for turn in rejected.trajectory.turns),
        chosen_id=chosen.id,
        rejected_id=rejected.id,
        chosen_reward=chosen.trajectory.reward,
        rejected_reward=rejected.trajectory.reward,
        lambda_dpo=weights.dpo,
        lambda_sft=weights.sft,
    )


def _kind_count(
    kind: PairKind, candidates: Sequence[Candidate], matches: Sequence[Match], drops: Sequence[Drop]
) -> KindCount:
    mine = [match for match in matches if match.pair.kind is kind]
    return KindCount(
        candidates=sum(candidate.kind is kind for candidate in candidates),
        pairs=len(mine),
        swapped=sum(match.swapped for match in mine),
        cut=sum(match.cut for match in mine),
        drops=Counter(drop.reason for drop in drops if drop.kind is kind),
    )


def _trajectory_count(
    sides: Sequence[Side], matches: Sequence[Match], drops: Sequence[Drop], recipe: AgentRecipe
) -> TrajectoryCount:
    paired = {name for match in matches for name in (match.pair.chosen_id, match.pair.rejected_id)}
    dropped = {name for drop in drops for name in drop.ids} - paired
    asked = frozenset[Agent]().union(*(USES[kind] for kind in recipe.trains_on))
    others = [side for side in sides if side.id not in paired | dropped]
    return TrajectoryCount(
        came_in=len(sides),
        paired=sum(side.id in paired for side in sides),
        dropped=sum(side.id in dropped for side in sides),
        unasked=sum(side.trajectory.agent not in asked for side in others),
    )


def _by_reason(reasons: Mapping[DropReason, int]) -> dict[str, int]:
    """Counts by reason, most frequent first."""
    return {reason.value: n for reason, n in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))}


def _empty_sentence(kind: PairKind, count: KindCount) -> str:
    reasons = ", ".join(f"{n} {reason}" for reason, n in _by_reason(count.drops).items()) or "no task was explored"
    return f"No {kind.value} pair came of {count.candidates} candidates: {reasons}."
