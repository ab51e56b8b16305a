"""What the declarations of several stages share: patterns, sections, and the inputs of episodes."""

import functools

from coevolve.config.derived.protocol import engine
from coevolve.dag.branch import AgentName, Branch, agent_of
from coevolve.dag.layout import Layout
from coevolve.dag.stage import Inputs, Stage, Wildcards

#: Patterns of the branches of base policies, and of those on which agents explore.
SEED = r"base/seed\d+"
EXPLORING = rf"{SEED}|(?!base/)\w+/seed\d+/iter[1-9]\d*"
TREE = "{model}/{env}/{branch}/"
#: Config sections that jobs in an environment, jobs that play, and jobs that only sample read.
ENVIRONMENT = ("envs", "protocol", "protocols")
EPISODES = ("models", *ENVIRONMENT, "rollout")
SAMPLED = (*EPISODES, "sampler")
#: Stages that make an agent's policy, those that play meanwhile, and those in which a policy plays.
training = functools.partial(Stage, files=("policy.json",), folder=TREE + "policy/{agent}", image="train")
online = functools.partial(training, files=("policy.json", "episodes.jsonl"), environment=("domain",), launchable=True)
playing = functools.partial(Stage, environment=("domain",), plays=engine, image="sample")


def subject(wildcards: Wildcards) -> tuple[str, str, Branch, AgentName]:
    """Model, environment, branch and agent of a job."""
    return wildcards["model"], wildcards["env"], Branch.parse(wildcards["branch"]), agent_of(wildcards)


def episodes(layout: Layout, wildcards: Wildcards, whole: str, jobs: int | None = None) -> Inputs:
    """Inputs of a job that plays episodes; with `jobs`, the parts that so many other jobs play."""
    model, env, branch, _ = subject(wildcards)
    evaluated = whole == "eval"
    tasks = layout.data(env, "evaluate.jsonl") if evaluated else layout.explored(model, env, branch, "explore.jsonl")
    if jobs:
        parts = [f"parts/{whole}/{part}of{jobs}/episodes.jsonl" for part in range(1, jobs + 1)]
        return {"tasks": tasks, "parts": [layout.result(model, env, branch, part) for part in parts]}
    return {
        "instruction": layout.data(env, "instruction.txt"),
        **layout.suite.envs[env].play_files,
        **layout.prepared(env),
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
