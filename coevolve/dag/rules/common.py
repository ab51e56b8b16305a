"""What the declarations of several stages share: patterns, sections, and the inputs and work of episodes."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from coevolve.config.derived.methods import for_method
from coevolve.config.derived.playing import engine
from coevolve.config.environments import Expected, ExpectedEpisodes
from coevolve.config.names import PairKind
from coevolve.config.suite import Suite
from coevolve.dag.branch import AgentName, Branch, agent_of
from coevolve.dag.layout import Layout
from coevolve.dag.stage import Inputs, Stage, Wildcards
from coevolve.dag.task_pools import explored
from coevolve.errors import UserError
from coevolve.records.provenance import Workload

#: Patterns of the branches of base policies, and of those on which agents explore.
SEED = r"base/seed\d+"
EXPLORING = rf"{SEED}|(?!base/)\w+/seed\d+/iter[1-9]\d*"
POLICY = ("policy.json",)
TREE = "{model}/{env}/{branch}/"
#: Config sections that jobs in an environment, jobs that play, and jobs that only sample read.
ENVIRONMENT = ("envs", "protocol", "protocols")
EPISODES = ("models", *ENVIRONMENT, "rollout")
SAMPLED = (*EPISODES, "sampler")
#: Stages that make an agent's policy, and those in which a policy plays.
training = functools.partial(Stage, files=POLICY, folder=TREE + "policy/{agent}", image="train")
playing = functools.partial(Stage, environment=("domain",), plays=engine, image="sample")


def subject(wildcards: Wildcards) -> tuple[str, str, Branch, AgentName]:
    """Model, environment, branch and agent of a job."""
    return wildcards["model"], wildcards["env"], Branch.parse(wildcards["branch"]), agent_of(wildcards)


def unique(paths: Iterable[str]) -> list[str]:
    """The paths in order, each once."""
    return sorted(set(paths))


def prepared(layout: Layout, env: str) -> dict[str, str]:
    """The files that all jobs of an environment share, if it has any."""
    return {"prepared": f"{layout.home}/prepared/{env}/meta.json"} if layout.suite.envs[env].prepared else {}


def episodes(layout: Layout, wildcards: Wildcards, whole: str, jobs: int = 1) -> Inputs:
    """Inputs of a job that plays episodes; the parts of a rollout or evaluation that is divided over several `jobs`."""
    model, env, branch, _ = subject(wildcards)
    evaluated = whole == "eval"
    tasks = layout.data(env, "evaluate.jsonl") if evaluated else explored(layout, model, env, branch, "explore.jsonl")
    if jobs > 1:
        parts = [f"parts/{whole}/{part}of{jobs}/episodes.jsonl" for part in range(1, jobs + 1)]
        return {"tasks": tasks, "parts": [layout.result(model, env, branch, part) for part in parts]}
    return {
        "instruction": layout.data(env, "instruction.txt"),
        **layout.suite.envs[env].play_files,
        **prepared(layout, env),
        **({"example": layout.data(env, "example.json")} if layout.examples(branch) else {}),
        "tasks": tasks,
        "policy": _player(layout, model, env, branch, whole),
    }


def _player(layout: Layout, model: str, env: str, branch: Branch, whole: str) -> str:
    """The policy that is evaluated on a branch, or that explores there after the previous iteration's training."""
    if whole == "eval" and branch.method in layout.suite.recipes:
        return layout.policy(model, env, branch, "target")
    agent = agent_of({"whole": whole})
    if whole == "eval" or not branch.iteration:
        return layout.result(model, env, branch, f"policy/{agent}/policy.json")
    return layout.policy(model, env, branch.previous, agent)


def excluded_example(layout: Layout, env: str, branch: Branch) -> dict[str, str]:
    """The few-shot example that pairs leave out: episodes begin with it and experts do not."""
    trained = layout.suite.prompt.examples and layout.suite.prompt.trained
    return {"excluded_example": layout.data(env, "example.json")} if layout.examples(branch) and not trained else {}


def setting(layout: Layout, wildcards: Wildcards) -> tuple[Suite, Branch, Expected]:
    """The suite with the settings of the job's method and agent, its branch, and what is expected of its environment.

    Raises `UserError` for an environment without `expected`.
    """
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
    k = {name: for_method(suite, branch.method, name).rollout.k for name in ("target", "failure")}
    share = expected.failures if expected.expert_pair_share is None else expected.expert_pair_share
    of_failures = k["target"] * k["failure"] * expected.failures**2 / 2  # choice: half of two failures earn the same
    per_task = {PairKind.FAILURE_FAILURE: of_failures, PairKind.EXPERT_FAILURE: k["failure"] * share}
    return {kind: tasks * per_task.get(kind, k["target"] * share) for kind in recipe.agents[agent].trains_on}


def pair_tokens(suite: Suite, branch: Branch, agent: AgentName, expected: Expected) -> float:
    """Tokens on both sides of an agent's pairs of one iteration."""
    return sum(expected_pairs(suite, branch, agent, expected).values()) * 2 * expected.tokens
