"""The estimated work of the jobs of several stages: what they train on and play. Only the plan reads it."""

import math
from collections.abc import Callable

from coevolve.config.models import FORWARD, TRAIN
from coevolve.config.suite import Suite, failure_trainings, for_method
from coevolve.envs.section import Expected, ExpectedEpisodes
from coevolve.errors import UserError
from coevolve.methods.recipes import prompting_only, trains
from coevolve.pipeline.branch import AgentName, Branch
from coevolve.pipeline.stage import PlannedJob
from coevolve.records.pairs import PairKind
from coevolve.records.provenance import Workload
from coevolve.train.settings import DpoConfig, is_reference_free


def setting(suite: Suite, job: PlannedJob) -> tuple[Suite, Expected]:
    """The suite with the settings of the job's method and agent, and `expected` of its environment."""
    subject = job.subject
    if subject.branch.method in suite.recipes:
        suite = for_method(suite, subject.branch.method, job.agent)
    expected = suite.envs[subject.env].expected
    if expected is None:
        raise UserError(f"envs.{subject.env}: `expected` is missing; add the numbers that costs are estimated with.")
    return suite, expected


def of_setting(work: Callable[[Suite, Expected], Workload]) -> Callable[[Suite, PlannedJob], Workload]:
    """The `cost` of a stage whose work depends on the job's settings and on what is expected alone."""
    return lambda suite, job: work(*setting(suite, job))


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


def explored_work(suite: Suite, job: PlannedJob, of: int = 1) -> Workload:
    """The episodes of an exploration, divided into equal parts."""
    suite, expected = setting(suite, job)
    return playing_work(expected, explored_tasks(suite, job.subject.branch, expected) * suite.rollout.k / of)


def evaluated_work(suite: Suite, job: PlannedJob, of: int = 1) -> Workload:
    """The episodes of an evaluation, divided into equal parts."""
    suite, expected = setting(suite, job)
    recipe = suite.recipes.get(job.subject.branch.method.removeprefix("base/"))
    means = expected.untrained if recipe and prompting_only(recipe) else None
    return playing_work(expected, expected.evaluate * suite.evaluation.samples / of, means=means)


def explored_tasks(suite: Suite, branch: Branch, expected: Expected) -> float:
    """The tasks that an iteration explores: the environment's, or those of a pool that grows."""
    if branch.method not in suite.recipes or suite.recipes[branch.method].learns != "pool_preference":
        return expected.explore
    config = suite.task_evolution
    return config.initial_tasks + (branch.iteration - 1) * config.new_tasks


def trained_agents(suite: Suite, env: str, branch: Branch) -> list[AgentName]:
    """The agents that are trained in an iteration.

    After the last iteration's rollout the failure agent is not trained, unless it is trained first.
    """
    recipe = suite.recipes[branch.method]
    explores_after = branch.iteration <= failure_trainings(suite, env, branch.method)
    return [agent for agent in recipe.agents if trains(recipe, agent) and (agent == "target" or explores_after)]


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


def reference_passes(config: DpoConfig) -> float:
    """The forward passes of the reference policy in a training, in training steps; none if they are computed before."""
    is_free = is_reference_free(config.objective) or config.precompute_reference
    return 0.0 if is_free else FORWARD / TRAIN
