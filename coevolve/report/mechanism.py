"""Mechanism of methods' differences: hard negatives, distance from the reference policy, weights and gradients.

Each value is measured on one file or training (one agent, iteration and seed).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from pydantic import AliasPath, BaseModel, Field

from coevolve.methods.recipes import Recipe
from coevolve.records.base import Record
from coevolve.records.gradients import GradientReport
from coevolve.records.pairs import PairKind, PreferencePair
from coevolve.records.provenance import Provenance
from coevolve.records.training import TrainReport
from coevolve.report.exploration import AgentRecord, Exploration, outcomes
from coevolve.train.settings import per_iteration

#: A table of `analysis.md`: the text above it, its records, and the fields that its rows are means over.
RecordTable = tuple[str, Sequence[Record], Sequence[str]]


class HardNegatives(AgentRecord):
    """One agent's episodes with `threshold` <= r < 1: shares of all episodes and of failures, None without one."""

    threshold: float
    episodes: int
    hard: int
    of_episodes: float
    of_failures: float | None


class PairRewards(AgentRecord):
    """The rewards of the two sides of a training's pairs of one kind; fields as `tables` describes them."""

    kind: str
    threshold: float
    pairs: int
    chosen: float
    rejected: float
    chosen_hard: float
    rejected_hard: float


class OffPolicy(AgentRecord):
    """The off-policy distance of one pair kind's sides in a training; fields as `tables` describes them."""

    kind: str
    pairs: int
    chosen: float
    rejected: float


class KindWeight(AgentRecord):
    """The weight of one pair kind in a training; it is no share of the gradient, which `GradientShare` has.

    sigma is taken of a step's mean margin over the kind's pairs. `visits`: pairs of all epochs. `per_pair`: mean over
    them. `total`: sum over them. `share`: of the sum over all kinds, None if that is 0.
    """

    kind: str
    visits: int
    per_pair: float
    total: float
    share: float | None


class GradientShare(AgentRecord):
    """The gradient of one pair kind at the `policy` before or after a training; fields as `tables` describes them.

    Of the kind's `pairs`, `measured_pairs` are measured. `dpo_sft_cosine`: between the gradients of these two parts.
    """

    policy: str
    kind: str
    pairs: int
    measured_pairs: int
    per_pair: float
    total: float
    share: float | None
    dpo_total: float
    dpo_share: float | None
    sft_total: float
    dpo_sft_cosine: float | None


class GradientAngle(AgentRecord):
    """The cosine between the gradients of eq. 9 over two pair kinds; `dpo_cosine`: of lambda_DPO times eq. 7 alone."""

    policy: str
    kind: str
    other_kind: str
    cosine: float | None
    dpo_cosine: float | None


class Mechanism(BaseModel):
    """The part of `analysis.json` about the mechanism; older files lack it."""

    hard_negatives: tuple[HardNegatives, ...] = ()
    pair_rewards: tuple[PairRewards, ...] = ()
    off_policy: tuple[OffPolicy, ...] = ()
    kind_weights: tuple[KindWeight, ...] = ()
    gradients: tuple[GradientShare, ...] = ()
    gradient_angles: tuple[GradientAngle, ...] = ()


class _Dpo(BaseModel):
    """The part of a training's section `dpo` that weights depend on; other keys may be those of another version."""

    beta: tuple[float, ...]
    objective: str = Field(validation_alias=AliasPath("objective", "name"))


def hard_negatives(exploration: Exploration, threshold: float) -> HardNegatives:
    """The hard negatives of one agent's episodes; raises ZeroDivisionError without episodes."""
    hard = sum("hard_negative" in outcomes(episode, threshold) for episode in exploration.episodes)
    failures = sum(episode.is_failure for episode in exploration.episodes)
    return HardNegatives(
        **exploration.names,
        threshold=threshold,
        episodes=len(exploration.episodes),
        hard=hard,
        of_episodes=hard / len(exploration.episodes),
        of_failures=hard / failures if failures else None,
    )


def pair_rewards(pairs: Iterable[PreferencePair], names: AgentRecord, threshold: float) -> Iterator[PairRewards]:
    """The rewards of one training's pairs, by kind; the pairs are not held."""
    rewards: dict[PairKind, list[tuple[float, float]]] = {}
    for pair in pairs:
        rewards.setdefault(pair.kind, []).append((pair.chosen_reward, pair.rejected_reward))
    for kind, of_kind in rewards.items():
        chosen, rejected = zip(*of_kind, strict=True)
        yield PairRewards(
            **names.model_dump(),
            kind=kind,
            threshold=threshold,
            pairs=len(chosen),
            chosen=fmean(chosen),
            rejected=fmean(rejected),
            chosen_hard=fmean(threshold <= reward < 1.0 for reward in chosen),
            rejected_hard=fmean(threshold <= reward < 1.0 for reward in rejected),
        )


def off_policy(training: Provenance, branch: Mapping[str, Any]) -> Iterator[OffPolicy]:
    """The off-policy distances in the notes of a finished training; empty for other jobs or without log-probs."""
    sides = training.notes.reference if isinstance(training.notes, TrainReport) else {}
    for kind, of_kind in sides.items():
        yield OffPolicy(**training_names(training, branch), kind=kind, **of_kind.model_dump())


def training_names(training: Provenance, branch: Mapping[str, Any]) -> dict[str, Any]:
    """Environment and agent of a training, with the names of its branch."""
    return {"env": training.wildcards["env"], "agent": training.wildcards["agent"], **branch}


def kind_weights(training: Provenance, branch: Mapping[str, Any], recipe: Recipe) -> list[KindWeight]:
    """The weights of the pair kinds in a finished training with eq. 7; other jobs and objectives have none."""
    notes = training.notes
    if "dpo" not in training.config or not isinstance(notes, TrainReport):
        return []
    dpo = _Dpo.model_validate(training.config["dpo"])
    with_margins = any(name.endswith("/rewards/margins") for step in notes.history for name in step)
    if not with_margins or dpo.objective != "dpo":
        return []
    names = AgentRecord(**training_names(training, branch))
    trains_on = next(spec.trains_on for agent, spec in recipe.agents.items() if agent == names.agent)
    beta = per_iteration(dpo.beta, names.iteration)
    sums = {kind: _weight_sum(notes.history, kind, weights.dpo * beta) for kind, weights in trains_on.items()}
    total = math.fsum(weight for _, weight in sums.values())
    return [
        KindWeight(
            **names.model_dump(),
            kind=kind,
            visits=visits,
            per_pair=weight / visits,
            total=weight,
            share=weight / total if total else None,
        )
        for kind, (visits, weight) in sums.items()
        if visits
    ]


def gradient_shares(report: GradientReport, names: AgentRecord) -> Iterator[GradientShare]:
    """The gradients of all pair kinds that were measured for one training."""
    for policy, point in (("start", report.start), ("end", report.end)):
        for of_kind in point.kinds:
            yield GradientShare(
                **names.model_dump(),
                policy=policy,
                kind=of_kind.kind,
                pairs=of_kind.pairs,
                measured_pairs=of_kind.measured_pairs,
                per_pair=of_kind.loss.mean_norm,
                total=of_kind.loss.total_norm,
                share=of_kind.loss.share,
                dpo_total=of_kind.dpo.total_norm,
                dpo_share=of_kind.dpo.share,
                sft_total=of_kind.sft.total_norm,
                dpo_sft_cosine=of_kind.dpo_sft_cosine,
            )


def gradient_angles(report: GradientReport, names: AgentRecord) -> Iterator[GradientAngle]:
    """The cosines between the gradients that were measured for one training."""
    for policy, point in (("start", report.start), ("end", report.end)):
        for pair in point.cosines:
            yield GradientAngle(
                **names.model_dump(),
                policy=policy,
                kind=pair.first,
                other_kind=pair.second,
                cosine=pair.loss,
                dpo_cosine=pair.dpo,
            )


def tables(mechanism: Mechanism) -> dict[str, RecordTable]:
    """The tables of `analysis.md` about the mechanism, by title."""
    agent = ("method", "env", "agent", "iteration")
    shown: dict[str, RecordTable] = {
        "Hard negatives": (
            "Explorations with a reward from the threshold up to 1: number, share of all episodes, share of failures.",
            mechanism.hard_negatives,
            (*agent, "threshold"),
        ),
        "Rewards of chosen and rejected sides": (
            "Means over the pairs of a training, by pair kind. `chosen hard`, `rejected hard`: the shares of these "
            "sides that are hard negatives. In pairs of failures the side with the higher reward is chosen.",
            mechanism.pair_rewards,
            (*agent, "kind", "threshold"),
        ),
        "Off-policy distance": (
            "Log-prob in nats of an action token under the reference policy of the training, mean over a pair kind's "
            "chosen and rejected sides; the lower, the further from what the policy samples.",
            mechanism.off_policy,
            (*agent, "kind"),
        ),
        "Weight of pair kinds": (
            "lambda_DPO * beta * sigma(-margin), the factor of a pair in eq. 7's gradient, over all visits of a kind's "
            "pairs, with the mean margin of each step. It is a weight and no share of the gradient"
            + ("." if mechanism.gradients else ", whose norms are not recorded."),
            mechanism.kind_weights,
            (*agent, "kind"),
        ),
    }
    if not mechanism.gradients:  # a suite may leave out the stage `gradients`
        return shown
    return shown | {
        "Gradient by pair kind": (
            "Eq. 9 at the policy before (`start`) and after (`end`) the training, without dropout. `per pair`: L2 norm "
            "of the mean gradient over the measured pairs. `total`: the same times all pairs of the kind. `share`: of "
            "the sum of the totals over kinds. `dpo`: of lambda_DPO times eq. 7, `sft`: of lambda_SFT times the NLL.",
            mechanism.gradients,
            (*agent, "policy", "kind"),
        ),
        "Cosine between the gradients of pair kinds": (
            "Of eq. 9, and of lambda_DPO times eq. 7 alone. Below 0: a small step that lowers one kind's loss raises "
            "that of the other.",
            mechanism.gradient_angles,
            (*agent, "policy", "kind", "other_kind"),
        ),
    }


def _weight_sum(history: Sequence[Mapping[str, float]], kind: PairKind, factor: float) -> tuple[int, float]:
    """Visits of a kind's pairs, and the sum of `factor` * sigma(-margin) over them."""
    steps = [step for step in history if f"{kind}/rewards/margins" in step]
    visits = sum(step[f"{kind}/pairs"] for step in steps)
    # sigma(x) = (1 + tanh(x / 2)) / 2
    shares = (0.5 * (1.0 - math.tanh(step[f"{kind}/rewards/margins"] / 2.0)) for step in steps)
    weights = (step[f"{kind}/pairs"] * share for step, share in zip(steps, shares, strict=True))
    return int(visits), factor * math.fsum(weights)
