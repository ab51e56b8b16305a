"""The estimated work of the jobs of several stages: what they train on and play."""

import math
from collections.abc import Callable

from coevolve.config.derived.methods import for_method
from coevolve.config.environments import Expected, ExpectedEpisodes
from coevolve.config.names import PairKind
from coevolve.config.suite import Suite
from coevolve.dag.branch import AgentName, Branch, agent_of
from coevolve.dag.layout import Layout
from coevolve.dag.stage import Wildcards
from coevolve.errors import UserError
from coevolve.records.provenance import Workload


def setting(layout: Layout, wildcards: Wildcards) -> tuple[Suite, Branch, Expected]:
    """The suite with the settings of the job's method and agent, the branch, and `expected` of the environment."""
    branch = Branch.parse(wildcards["branch"])
    suite = layout.suite
    if branch.method in suite.recipes:
        suite = for_method(suite, branch.method, agent_of(wildcards))
    expected = suite.envs[wildcards["env"]].expected
    if expected is None:
        raise UserError(
            f"envs.{wildcards['env']}: `expected` is missing; add the numbers that costs are estimated with."
        )
    return suite, branch, expected


def of_setting(work: Callable[[Suite, Expected], Workload]) -> Callable[[Layout, Wildcards], Workload]:
    """The `workload` of a stage whose work depends on the job's settings and on what is expected alone."""

    def workload(layout: Layout, wildcards: Wildcards) -> Workload:
        suite, _, expected = setting(layout, wildcards)
        return work(suite, expected)

    return workload


def training_work(tokens: float) -> Workload:
    """The work of a training on so many tokens, with its epochs."""
    return Workload(train=tokens, starts=tokens > 0, keeps_weights=True)


def playing_work(
    expected: Expected, count: float, passes: float = 0, means: ExpectedEpisodes | None = None
) -> Workload:
    """The work of `count` episodes, and of `passes` of training over each.

    Prompts and observations are read once, actions written token by token. `means`: of an episode, where they are not
    those expected of a trained policy.
    """
    means = means or expected
    turns, tokens = count * means.turns, count * means.tokens
    written, turn_seconds = turns * means.action_tokens, turns * expected.turn_seconds
    return Workload(
        train=tokens * passes,
        read=tokens - written,
        write=written,
        turn_seconds=turn_seconds,
        kept=tokens,
        starts=count > 0,
        keeps_weights=passes > 0,
    )


def explored_tasks(suite: Suite, branch: Branch, expected: Expected) -> float:
    """The tasks that an iteration explores: the environment's, or those of a pool that grows."""
    if branch.method not in suite.recipes or suite.recipes[branch.method].learns != "pool_preference":
        return expected.explore
    config = suite.task_evolution
    return config.initial_tasks + (branch.iteration - 1) * config.new_tasks


def expected_pairs(suite: Suite, branch: Branch, agent: AgentName, expected: Expected) -> dict[PairKind, float]:
    """The number of an agent's pairs of one iteration, by kind."""
    tasks, recipe = explored_tasks(suite, branch, expected), suite.recipes[branch.method]
    kept = suite.pairing.failures.per_task if suite.pairing.failures else math.inf
    k = {name: min(for_method(suite, branch.method, name).rollout.k, kept) for name in ("target", "failure")}
    share = expected.failures if expected.expert_pair_share is None else expected.expert_pair_share
    of_failures = k["target"] * k["failure"] * expected.failures**2 / 2  # choice: half of two failures earn the same
    per_task = {PairKind.FAILURE_FAILURE: of_failures, PairKind.EXPERT_FAILURE: k["failure"] * share}
    return {kind: tasks * per_task.get(kind, k["target"] * share) for kind in recipe.agents[agent].trains_on}


def pair_tokens(suite: Suite, branch: Branch, agent: AgentName, expected: Expected) -> float:
    """Tokens on both sides of an agent's pairs of one iteration."""
    return sum(expected_pairs(suite, branch, agent, expected).values()) * 2 * expected.tokens
