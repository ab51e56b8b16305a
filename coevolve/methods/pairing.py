"""Preference pairs from episodes, eq. 6 and eq. 8.

For a task u, let e be its expert trajectory, T the rollouts of the target agent, F those of the failure agent, and
x > y the pair in which x, the side with the higher reward r(u, x) > r(u, y), is chosen.

    eq. 6, the failure agent's pairs:  D_fail   = {t > f or f > t : t in T, f in F, r(u, t) < 1, r(u, f) < 1}
    eq. 8, the target agent's pairs:   D_target = {e > t : t in T}    (i)   expert_target
                                                | {e > f : f in F}    (ii)  expert_failure
                                                | D_fail              (iii) failure_failure

Each pair kind names the two agents whose trajectories are compared: each of the one with each of the other is a
*candidate*, a pair that could be built. It becomes a pair, or a drop with its reason. If a kind lacks the rollouts of
an agent, it has one candidate, dropped as MISSING_ROLLOUT. Each input trajectory is counted as paired, dropped or not
used.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

from coevolve.chat.prompts import without_example
from coevolve.errors import UserError
from coevolve.methods.recipes import AgentRecipe
from coevolve.methods.settings import FailureSelection, PairingConfig, PairWeights
from coevolve.records.episodes import Agent, Message, StopReason, Task, Trajectory
from coevolve.records.pairs import (
    Drop,
    DropReason,
    KindCount,
    PairingSummary,
    PairKind,
    PreferencePair,
    TrajectoryCount,
)

#: The agents whose trajectories each kind compares: eq. 8 (i), eq. 8 (ii), and eq. 6, which is eq. 8 (iii).
KIND_AGENTS: Mapping[PairKind, tuple[Agent, Agent]] = {
    PairKind.EXPERT_TARGET: ("expert", "target"),
    PairKind.EXPERT_FAILURE: ("expert", "failure"),
    PairKind.FAILURE_FAILURE: ("target", "failure"),
}


@dataclass(frozen=True)
class PairSide:
    """A trajectory, possibly truncated; `id` is the digest of the input trajectory."""

    id: str
    trajectory: Trajectory


@dataclass(frozen=True)
class TaskTrajectories:
    """The trajectories of one task by agent: its first expert, and rollouts in the order of their sample numbers."""

    task_id: str
    sides: Mapping[Agent, tuple[PairSide, ...]]


@dataclass(frozen=True)
class Candidate:
    """A possible pair: two sides, or a `drop` already: a side is missing, or is not selected."""

    task_id: str
    kind: PairKind
    sides: tuple[PairSide, ...]
    drop: DropReason | None = None


@dataclass(frozen=True)
class BuiltPair:
    """A pair; `swapped`: the expert is the rejected side. `cut`: the rejected side is truncated.

    `other_prompt`: the rejected side was played under another prompt than the pair's.
    """

    pair: PreferencePair
    swapped: bool
    cut: bool
    other_prompt: bool = False


@dataclass(frozen=True)
class Pairing:
    """The pairs of one agent, the drops and the counts; a drop without a kind is of a trajectory, not of a pair."""

    pairs: tuple[PreferencePair, ...]
    drops: tuple[Drop, ...]
    kinds: dict[PairKind, KindCount]
    trajectories: TrajectoryCount


def pair(
    recipe: AgentRecipe,
    rules: PairingConfig,
    tasks: Sequence[Task],
    experts: Sequence[Trajectory],
    rollouts: Mapping[Agent, Sequence[Trajectory]],
    excluded_example: Sequence[Message] = (),
) -> Pairing:
    """The pairs that one agent is trained on, ordered by task, kind and sample numbers.

    Only the first expert trajectory of a task is used. `excluded_example` is the in-context example to remove from the
    prompts. Raises `UserError` if a kind needs an agent that did not explore, if a trajectory is given under another
    agent's name, or if the prompts of two sides differ before the task.
    """
    _check_agents(recipe, experts, rollouts)
    everything = [*experts, *rollouts.get("target", ()), *rollouts.get("failure", ())]
    sides = [PairSide(each.digest(), without_example(each, excluded_example)) for each in everything]
    by_task = _by_task(dict.fromkeys(task.task_id for task in tasks), sides)
    candidates = [c for group in by_task for c in _candidates(group, recipe.trains_on, rules)]
    limits = {group.task_id: _turn_limit(group, rules) for group in by_task}
    outcomes = _drop_duplicates([_build(c, limits[c.task_id], recipe.trains_on[c.kind], rules) for c in candidates])
    if rules.drop_conflicts:
        outcomes = _drop_conflicts(outcomes)
    built = [outcome for outcome in outcomes if isinstance(outcome, BuiltPair)]
    drops = [outcome for outcome in outcomes if isinstance(outcome, Drop)]
    without_kind = _drops_without_kind(limits.keys(), sides)
    return Pairing(
        pairs=tuple(outcome.pair for outcome in built),
        drops=(*drops, *without_kind),
        kinds={
            kind: kind_count(kind, sum(c.kind is kind for c in candidates), built, drops)
            for kind in PairKind
            if kind in recipe.trains_on
        },
        trajectories=_trajectory_count(sides, built, [*drops, *without_kind], recipe),
    )


def kind_candidates(kind: PairKind, group: TaskTrajectories) -> list[Candidate]:
    """Each trajectory of the kind's first agent with each of its second one; drops where a task lacks those of one."""
    first, second = (group.sides[agent] for agent in KIND_AGENTS[kind])
    if first and second:
        return [Candidate(group.task_id, kind, sides) for sides in product(first, second)]
    if second and "expert" in KIND_AGENTS[kind]:
        return [Candidate(group.task_id, kind, (rollout,), DropReason.MISSING_EXPERT) for rollout in second]
    return [Candidate(group.task_id, kind, first + second, DropReason.MISSING_ROLLOUT)]


def within_agents(group: TaskTrajectories) -> list[Candidate]:
    """Section 4.2's prose beyond eq. 6: each two rollouts of the same agent."""
    couples = [*combinations(group.sides["target"], 2), *combinations(group.sides["failure"], 2)]
    return [Candidate(group.task_id, PairKind.FAILURE_FAILURE, sides) for sides in couples]


def summary(result: Pairing) -> PairingSummary:
    """Counts by kind and reason, the most frequent reason first."""
    return PairingSummary(
        kinds=result.kinds,
        without_kind=by_reason(drop.reason for drop in result.drops if drop.kind is None),
        trajectories=result.trajectories,
        empty=tuple(_empty_sentence(kind, count) for kind, count in result.kinds.items() if count.pairs == 0),
    )


def _check_agents(
    recipe: AgentRecipe, experts: Sequence[Trajectory], rollouts: Mapping[Agent, Sequence[Trajectory]]
) -> None:
    for kind in recipe.trains_on:
        if kind not in KIND_AGENTS:
            raise UserError(f"recipe: `trains_on.{kind.value}` does not pair whole trajectories; set `learns: steps`.")
        for agent in sorted({*KIND_AGENTS[kind]} - {"expert", *rollouts}):
            raise UserError(
                f"recipe: `trains_on.{kind.value}` needs rollouts of the {agent} agent, which does not explore; "
                f"set `agents.{agent}.explores: true` or remove the kind."
            )
    for agent, trajectories in {**rollouts, "expert": experts}.items():
        for trajectory in trajectories:
            if trajectory.agent != agent:
                raise UserError(
                    f"task {trajectory.task.task_id}: a trajectory of the {trajectory.agent} agent was given as one "
                    f"of the {agent} agent; give each agent's own rollout file."
                )


def _by_task(task_ids: Iterable[str], sides: Iterable[PairSide]) -> list[TaskTrajectories]:
    groups: defaultdict[tuple[str, Agent], list[PairSide]] = defaultdict(list)
    for side in sides:
        groups[side.trajectory.task.task_id, side.trajectory.agent].append(side)
    return [
        TaskTrajectories(
            task_id,
            {
                "expert": tuple(groups[task_id, "expert"][:1]),
                "target": _in_sample_order(groups[task_id, "target"]),
                "failure": _in_sample_order(groups[task_id, "failure"]),
            },
        )
        for task_id in task_ids
    ]


def _in_sample_order(sides: Iterable[PairSide]) -> tuple[PairSide, ...]:
    return tuple(sorted(sides, key=lambda side: (side.trajectory.sample, side.id)))


def _drops_without_kind(explored: Collection[str], sides: Sequence[PairSide]) -> list[Drop]:
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


def _candidates(group: TaskTrajectories, kinds: Collection[PairKind], rules: PairingConfig) -> list[Candidate]:
    """The candidates of a task; those with a failure that is not selected have that as their drop."""
    candidates = [candidate for kind in PairKind if kind in kinds for candidate in kind_candidates(kind, group)]
    if rules.within and PairKind.FAILURE_FAILURE in kinds:
        candidates += within_agents(group)
    if rules.failures is None:
        return candidates
    surplus = {side.id for agent in ("target", "failure") for side in _not_selected(group.sides[agent], rules.failures)}
    return [
        replace(candidate, drop=DropReason.NOT_SELECTED)
        if candidate.drop is None and surplus & {side.id for side in candidate.sides}
        else candidate
        for candidate in candidates
    ]


def _not_selected(sides: Sequence[PairSide], rule: FailureSelection) -> list[PairSide]:
    """The failures of one agent that the rule does not take, those with the text of another one included."""
    failures = [side for side in sides if side.trajectory.is_failure and _can_be_paired(side)]
    distinct = list({tuple(turn.text for turn in side.trajectory.turns): side for side in reversed(failures)}.values())
    taken = sorted(distinct, key=lambda side: (_rank(side.trajectory.reward, rule), side.id))[: rule.per_task]
    return [side for side in failures if side not in taken]


def _rank(reward: float, rule: FailureSelection) -> float:
    """The position of a failure with this reward in the rule's order, the least first."""
    if rule.reward is not None:
        return abs(reward - rule.reward)
    return {"hardest": -reward, "easiest": reward, "random": 0.0}[rule.keep]


def _can_be_paired(side: PairSide) -> bool:
    return side.trajectory.stop is not StopReason.ENV_ERROR and bool(side.trajectory.turns)


def _turn_limit(group: TaskTrajectories, rules: PairingConfig) -> int | None:
    """Maximum of turns on a rejected side; None without the rule `max_extra_turns` or without an expert."""
    if rules.max_extra_turns is None or not group.sides["expert"]:
        return None
    return len(group.sides["expert"][0].trajectory.turns) + rules.max_extra_turns


def _build(candidate: Candidate, limit: int | None, weights: PairWeights, rules: PairingConfig) -> BuiltPair | Drop:
    """The pair of a candidate, or its drop."""
    ids = tuple(side.id for side in candidate.sides)
    if candidate.drop is not None:
        return Drop(task_id=candidate.task_id, kind=candidate.kind, reason=candidate.drop, ids=ids)
    chosen, whole = candidate.sides
    if rules.order is None:
        chosen, whole = sorted(candidate.sides, key=lambda side: side.trajectory.reward, reverse=True)
    # In a tie neither side is truncated: otherwise the reason would depend on the order of the sides.
    tie = rules.order is None and whole.trajectory.reward == chosen.trajectory.reward
    rejected = whole if tie else _truncated(whole, limit)
    reason = _drop_reason(candidate.kind, chosen.trajectory, rejected.trajectory, rules)
    if reason is not None:
        return Drop(task_id=candidate.task_id, kind=candidate.kind, reason=reason, ids=ids)
    return BuiltPair(
        preference_pair(candidate.kind, chosen, rejected, weights),
        swapped=rejected.trajectory.agent == "expert",
        cut=rejected is not whole,
        other_prompt=chosen.trajectory.prompt != rejected.trajectory.prompt,
    )


def _drop_duplicates(outcomes: Sequence[BuiltPair | Drop]) -> list[BuiltPair | Drop]:
    """The outcomes with one pair for identical rollouts of a task: equal pairs of one kind become counted drops."""
    pairs = [outcome.pair for outcome in outcomes if isinstance(outcome, BuiltPair)]
    first = {(pair.task_id, pair.kind, pair.chosen, pair.rejected): pair for pair in reversed(pairs)}
    kept = set(map(id, first.values()))
    return _drop_pairs(outcomes, DropReason.DUPLICATE, lambda pair: id(pair) not in kept)


def _drop_conflicts(outcomes: Sequence[BuiltPair | Drop]) -> list[BuiltPair | Drop]:
    """The outcomes with drops for all pairs whose rejected side, or a side with its text, is chosen in another pair."""
    pairs = [outcome.pair for outcome in outcomes if isinstance(outcome, BuiltPair)]
    chosen = {pair.chosen_id for pair in pairs} | {(pair.task_id, pair.chosen) for pair in pairs}
    return _drop_pairs(
        outcomes,
        DropReason.CONFLICT,
        lambda pair: pair.rejected_id in chosen or (pair.task_id, pair.rejected) in chosen,
    )


def _drop_pairs(
    outcomes: Sequence[BuiltPair | Drop], reason: DropReason, applies: Callable[[PreferencePair], bool]
) -> list[BuiltPair | Drop]:
    kept: list[BuiltPair | Drop] = []
    for outcome in outcomes:
        if isinstance(outcome, BuiltPair) and applies(pair := outcome.pair):
            ids = (pair.chosen_id, pair.rejected_id)
            kept.append(Drop(task_id=pair.task_id, kind=pair.kind, reason=reason, ids=ids))
        else:
            kept.append(outcome)
    return kept


def _truncated(side: PairSide, limit: int | None) -> PairSide:
    """The side with its first `limit` turns; its reward remains that of the whole episode, as in ETO's script."""
    if limit is None or len(side.trajectory.turns) <= limit:
        return side
    return replace(side, trajectory=side.trajectory.model_copy(update={"turns": side.trajectory.turns[:limit]}))


def _drop_reason(kind: PairKind, chosen: Trajectory, rejected: Trajectory, rules: PairingConfig) -> DropReason | None:
    """The first reason that applies against a pair, or None."""
    failures, hard = kind is PairKind.FAILURE_FAILURE, rules.hard_negative
    reasons = {
        DropReason.ENV_ERROR: StopReason.ENV_ERROR in (chosen.stop, rejected.stop),
        DropReason.EMPTY: not (chosen.turns and rejected.turns),
        DropReason.NOT_A_FAILURE: failures and not (chosen.is_failure and rejected.is_failure),
        DropReason.NOT_HARD: failures and hard is not None and chosen.reward < hard,
        DropReason.IDENTICAL: [turn.text for turn in chosen.turns] == [turn.text for turn in rejected.turns],
        DropReason.TIE: rules.order is None and chosen.reward == rejected.reward,
        DropReason.EXPERT_BEATEN: rejected.agent == "expert" and rules.expert_beaten == "drop",
    }
    return first_reason(reasons)


def first_reason(reasons: Mapping[DropReason, bool]) -> DropReason | None:
    """The first reason that applies, or None."""
    return next((reason for reason, applies in reasons.items() if applies), None)


def preference_pair(kind: PairKind, chosen: PairSide, rejected: PairSide, weights: PairWeights) -> PreferencePair:
    """The pair of two sides of one task, with the chosen side's prompt, as in ETO's script.

    The last message may differ, the task: WebShop's has price limits, which upstream draws in each process. Raises
    `UserError` if a message before it does.
    """
    task_id = chosen.trajectory.task.task_id
    if chosen.trajectory.prompt[:-1] != rejected.trajectory.prompt[:-1]:
        raise UserError(
            f"task {task_id}: the prompts of the {chosen.trajectory.agent} trajectory {chosen.id} and the "
            f"{rejected.trajectory.agent} trajectory {rejected.id} differ; play both with the same prompt settings."
        )
    return PreferencePair(
        task_id=task_id,
        kind=kind,
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


def kind_count(kind: PairKind, candidates: int, built: Iterable[BuiltPair], drops: Iterable[Drop]) -> KindCount:
    """The counts of one pair kind; asserts that each of its `candidates` is a pair or a drop."""
    of_kind = [outcome for outcome in built if outcome.pair.kind is kind]
    return KindCount(
        candidates=candidates,
        pairs=len(of_kind),
        swapped=sum(outcome.swapped for outcome in of_kind),
        cut=sum(outcome.cut for outcome in of_kind),
        other_prompt=sum(outcome.other_prompt for outcome in of_kind),
        drops=by_reason(drop.reason for drop in drops if drop.kind is kind),
    )


def _trajectory_count(
    sides: Sequence[PairSide], built: Sequence[BuiltPair], drops: Sequence[Drop], recipe: AgentRecipe
) -> TrajectoryCount:
    paired = {digest for outcome in built for digest in (outcome.pair.chosen_id, outcome.pair.rejected_id)}
    dropped = {digest for drop in drops for digest in drop.ids} - paired
    agents = {agent for kind in recipe.trains_on for agent in KIND_AGENTS[kind]}
    others = [side for side in sides if side.id not in paired | dropped]
    return TrajectoryCount(
        total=len(sides),
        paired=sum(side.id in paired for side in sides),
        dropped=sum(side.id in dropped for side in sides),
        not_used=sum(side.trajectory.agent not in agents for side in others),
    )


def by_reason(reasons: Iterable[DropReason]) -> dict[DropReason, int]:
    """Counts by reason, most frequent first."""
    return dict(sorted(Counter(reasons).items(), key=lambda item: (-item[1], item[0])))


def _empty_sentence(kind: PairKind, count: KindCount) -> str:
    reasons = ", ".join(f"{n} {reason}" for reason, n in count.drops.items()) or "no task was explored"
    return f"No {kind.value} pair could be built from {count.candidates} candidates: {reasons}."
