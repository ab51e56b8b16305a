"""Estimated work of each stage's jobs, from `envs.*.expected` and the recipes: tokens and seconds of turns."""

from __future__ import annotations

from dataclasses import replace

from coevolve.config.environments import Expected, ExpectedEpisodes
from coevolve.config.suite import Suite
from coevolve.errors import UserError
from coevolve.report.costs import FORWARD, TRAIN
from coevolve.types import PairKind, Workload
from coevolve.workflow.branch import Branch, agent_of
from coevolve.workflow.layout import Layout
from coevolve.workflow.stage import Wildcards


def snapshot(layout: Layout, wildcards: Wildcards) -> Workload:
    """A model's weights on disk."""
    return Workload(keeps_weights=True)


def untrained(layout: Layout, wildcards: Wildcards) -> Workload:
    """A process that loads the libraries; it writes a tiny model's weights and links those of a checkpoint."""
    return Workload(starts=True, keeps_weights=layout.suite.models[wildcards["model"]].tiny is not None)


def pretrain(layout: Layout, wildcards: Wildcards) -> Workload:
    """All epochs over the experts and the sequences that repeat themselves."""
    _, _, expected = _setting(layout, wildcards)
    config = layout.suite.models[wildcards["model"]].pretrain
    if config is None:
        return _training(0)
    return _training(expected.experts * expected.tokens * config.epochs)


def sft(layout: Layout, wildcards: Wildcards) -> Workload:
    """All epochs over the experts."""
    suite, _, expected = _setting(layout, wildcards)
    return _training(expected.experts * expected.tokens * suite.sft.epochs)


def rft_train(layout: Layout, wildcards: Wildcards) -> Workload:
    """All epochs over the experts and the expected successes, as far as the method selects them."""
    suite, branch, expected = _setting(layout, wildcards)
    explores = layout.recipe(branch.method).agents["target"].explores
    successes = expected.explore * suite.rollout.k * (1 - expected.failures) if explores else 0.0
    experts = expected.experts + (expected.explore if suite.selection.experts == "all" else 0)
    experts *= suite.selection.with_experts
    return _training((experts + successes) * expected.tokens * suite.sft.epochs)


def pairs(layout: Layout, wildcards: Wildcards) -> Workload:
    """Pairs on disk."""
    suite, branch, expected = _setting(layout, wildcards)
    return Workload(kept=_pair_tokens(suite, branch, wildcards, expected))


def reference(layout: Layout, wildcards: Wildcards) -> Workload:
    """One forward pass over what is scored."""
    suite, branch, expected = _setting(layout, wildcards)
    tokens = _scored_tokens(suite, branch, wildcards, expected)
    return Workload(train=tokens * FORWARD / TRAIN, kept=tokens, starts=tokens > 0)


def train(layout: Layout, wildcards: Wildcards) -> Workload:
    """All epochs over the pairs, with the reference policy's forward passes where none were computed before.

    A compute-matched control takes as many steps, and so about as many pairs, as the agents that it is matched to.
    """
    suite, *_ = _setting(layout, wildcards)
    on_the_fly = not (suite.dpo.objective.reference_free or suite.dpo.precompute_reference)
    passes = suite.dpo.epochs * (1 + (FORWARD / TRAIN if on_the_fly else 0))
    return _training(_trained_tokens(layout, wildcards) * passes)


def gradients(layout: Layout, wildcards: Wildcards) -> Workload:
    """A forward and two backward passes (one for each part of eq. 9) over the measured pairs, at two policies."""
    suite, branch, expected = _setting(layout, wildcards)
    on_the_fly = not (suite.dpo.objective.reference_free or suite.dpo.precompute_reference)
    forward, backward = 1 + on_the_fly, 2
    passes = (forward * FORWARD + backward * (TRAIN - FORWARD)) / TRAIN
    limit, of_kinds = suite.gradients.pairs or 0, _pairs(suite, branch, wildcards, expected)
    tokens = sum(min(limit, pairs) for pairs in of_kinds.values()) * 2 * expected.tokens
    return Workload(train=2 * passes * tokens, starts=tokens > 0)


def ppo(layout: Layout, wildcards: Wildcards) -> Workload:
    """Episodes, and several passes of training over each."""
    suite, _, expected = _setting(layout, wildcards)
    return _episodes(expected, expected.explore * suite.ppo.epochs, suite.ppo.passes)


def grpo(layout: Layout, wildcards: Wildcards) -> Workload:
    """Groups of episodes, and one pass of training over each."""
    suite, _, expected = _setting(layout, wildcards)
    return _episodes(expected, expected.explore * suite.grpo.epochs * suite.grpo.group, 1)


def explore_tasks(layout: Layout, wildcards: Wildcards) -> Workload:
    """The fragments of a round, which are shorter than episodes; a scripted explorer loads no model."""
    suite, branch, expected = _setting(layout, wildcards)
    config = suite.task_evolution
    fragments = config.initial_fragments if branch.iteration == 1 else config.fragments
    episodes = _episodes(expected, fragments * min(1.0, config.turns / expected.turns))
    if config.explorer == "policy":
        return episodes
    return Workload(turn_seconds=episodes.turn_seconds)


def grpo_round(layout: Layout, wildcards: Wildcards) -> Workload:
    """The episodes of a round's steps, and one pass of training over each."""
    suite, _, expected = _setting(layout, wildcards)
    return _episodes(expected, suite.task_evolution.steps * suite.grpo.batch_size, 1)


def steps(layout: Layout, wildcards: Wildcards) -> Workload:
    """Continuations from steps of the experts' trajectories; on average half a trajectory is left."""
    suite, _, expected = _setting(layout, wildcards)
    starts = expected.experts * expected.turns / suite.steps.every
    return _episodes(expected, starts * (1 + 2 * suite.steps.samples) / 2)


def rollout(layout: Layout, wildcards: Wildcards, parts: int = 1) -> Workload:
    """The episodes of an exploration, divided into equal parts."""
    suite, branch, expected = _setting(layout, wildcards)
    return _episodes(expected, _explored_tasks(suite, branch, expected) * suite.rollout.k / parts)


def evaluate(layout: Layout, wildcards: Wildcards, parts: int = 1) -> Workload:
    """The episodes of an evaluation, divided into equal parts."""
    suite, branch, expected = _setting(layout, wildcards)
    recipe = suite.recipes.get(branch.method.removeprefix("base/"))
    means = expected.untrained if recipe and recipe.prompting_only else None
    episodes = expected.evaluate * suite.evaluation.samples
    return _episodes(expected, episodes / parts, means=means)


def shard(layout: Layout, wildcards: Wildcards) -> Workload:
    """A part of the episodes of a rollout or an evaluation."""
    whole = evaluate if wildcards["whole"] == "eval" else rollout
    return whole(layout, wildcards, int(wildcards["part"].partition("of")[2]))


def _setting(layout: Layout, wildcards: Wildcards) -> tuple[Suite, Branch, Expected]:
    """The suite with the settings of the job's method, its branch, and what is expected of its environment."""
    branch = Branch.parse(wildcards["branch"])
    suite = layout.suite.for_method(branch.method) if branch.method in layout.suite.recipes else layout.suite
    expected = suite.envs[wildcards["env"]].expected
    if expected is None:
        raise UserError(
            f"envs.{wildcards['env']}: `expected` is missing; add the numbers that costs are estimated with."
        )
    return suite, branch, expected


def _training(tokens: float) -> Workload:
    return Workload(train=tokens, starts=tokens > 0, keeps_weights=True)


def _episodes(
    expected: Expected, episodes: float, passes: float = 0, means: ExpectedEpisodes | None = None
) -> Workload:
    """Prompts and observations are read once, actions written token by token; then `passes` of training.

    `means`: of an episode, where they are not those expected of a trained policy.
    """
    means = means or expected
    turns, tokens = episodes * means.turns, episodes * means.tokens
    written, turn_seconds = turns * means.action_tokens, turns * expected.turn_seconds
    return Workload(
        train=tokens * passes,
        read=tokens - written,
        write=written,
        turn_seconds=turn_seconds,
        kept=tokens,
        starts=episodes > 0,
        keeps_weights=passes > 0,
    )


def _pairs(suite: Suite, branch: Branch, wildcards: Wildcards, expected: Expected) -> dict[PairKind, float]:
    """The number of an agent's pairs of one iteration, by kind."""
    tasks, k = _explored_tasks(suite, branch, expected), suite.rollout.k
    share = expected.failures if expected.expert_pair_share is None else expected.expert_pair_share
    pairs = {PairKind.FAILURE_FAILURE: k**2 * expected.failures**2 / 2}  # choice: half of two failures earn the same
    kinds = suite.recipes[branch.method].agents[agent_of(wildcards)].trains_on
    return {kind: tasks * pairs.get(kind, k * share) for kind in kinds}


def _pair_tokens(suite: Suite, branch: Branch, wildcards: Wildcards, expected: Expected) -> float:
    """Tokens on both sides of an agent's pairs of one iteration."""
    return sum(_pairs(suite, branch, wildcards, expected).values()) * 2 * expected.tokens


def _trained_tokens(layout: Layout, wildcards: Wildcards) -> float:
    """Tokens on both sides of the pairs of one epoch; of a compute-matched control, those of the other method."""
    suite, branch, expected = _setting(layout, wildcards)
    other = layout.recipe(branch.method).steps_like
    if other is None or agent_of(wildcards) == "failure":
        return _pair_tokens(suite, branch, wildcards, expected)
    suite, matched = layout.suite.for_method(other), replace(branch, method=other)
    agents = layout.trained_agents(wildcards["env"], matched)
    return sum(_pair_tokens(suite, matched, {**wildcards, "agent": name}, expected) for name in agents)


def _scored_tokens(suite: Suite, branch: Branch, wildcards: Wildcards, expected: Expected) -> float:
    """Tokens that a reference policy reads once: of both sides of pairs, or of all on a task with a failure."""
    if wildcards["of"] == "pairs":
        return _pair_tokens(suite, branch, wildcards, expected)
    sources = wildcards["of"].split("_")
    experts = sources.count("experts")
    rollouts = (len(sources) - experts) * suite.rollout.k
    failed = 1 - (1 - expected.failures) ** rollouts
    return _explored_tasks(suite, branch, expected) * failed * (experts + rollouts) * expected.tokens


def _explored_tasks(suite: Suite, branch: Branch, expected: Expected) -> float:
    """The tasks that an iteration explores: the environment's, or those of a pool that grows."""
    if branch.method not in suite.recipes or suite.recipes[branch.method].learns != "pool_preference":
        return expected.explore
    config = suite.task_evolution
    return config.initial_tasks + (branch.iteration - 1) * config.new_tasks
