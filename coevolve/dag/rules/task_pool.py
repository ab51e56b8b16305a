"""Stages of the second paper: rounds of GRPO on a pool of synthetic tasks that grows (arXiv 2604.15840)."""

from coevolve.config.derived.methods import for_method
from coevolve.config.derived.protocol import explorer_engine, grpo_engine
from coevolve.config.derived.recipes import POOL_LEARNING, has_pool
from coevolve.dag.branch import Branch
from coevolve.dag.layout import Layout
from coevolve.dag.rules.common import ENVIRONMENT, SAMPLED, TREE, episodes, online, subject
from coevolve.dag.rules.products import TABLE, first, made_of
from coevolve.dag.rules.train import online_inputs
from coevolve.dag.rules.work import of_setting, playing_work, setting
from coevolve.dag.stage import Inputs, Stage, Wildcards
from coevolve.records.provenance import Workload


def _signals_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """All agents' training episodes of the earlier rounds (`round1`, ...), the last one's pool, and a prepared shop."""
    model, env, branch, _ = subject(wildcards)
    rounds = {
        f"round{number}": [*layout.training_episodes(model, env, branch.at(number)).values()]
        for number in range(1, branch.iteration)
    }
    pool = layout.task_pool(model, env, branch.previous)
    return {"pool": pool, **rounds, **layout.prepared(env)}


SIGNALS = Stage(
    name="signals",
    help="Compute the signals of a round's training episodes: forgetting, boundary, rare.",
    reads=(*ENVIRONMENT, "task_evolution"),
    files=("signals.jsonl", "summary.json"),
    folder=TREE + "signals",
    learns=POOL_LEARNING,
    inputs=_signals_inputs,
    environment=("synthesis",),
)


def _explore_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The inputs of a rollout of `data`'s tasks, with the signals that guide it; the policy only if it explores."""
    model, env, branch, agent = subject(wildcards)
    config = for_method(layout.suite, branch.method).task_evolution
    inputs = episodes(layout, wildcards, f"rollout/{agent}")
    inputs["tasks"] = layout.data(env, "explore.jsonl")
    if config.explorer != "policy":
        inputs.pop("policy")
    if branch.iteration > 1 and config.exploration == "signals":
        inputs["signals"] = layout.result(model, env, branch, "signals/signals.jsonl")
    return inputs


def _explore_work(layout: Layout, wildcards: Wildcards) -> Workload:
    """The fragments of a round, which are shorter than episodes; a scripted explorer loads no model."""
    suite, branch, expected = setting(layout, wildcards)
    config = suite.task_evolution
    fragments = config.initial_fragments if branch.iteration == 1 else config.fragments
    work = playing_work(expected, fragments * min(1.0, config.turns / expected.turns))
    return work if config.explorer == "policy" else Workload(turn_seconds=work.turn_seconds)


EXPLORE_TASKS = Stage(
    name="explore_tasks",
    help="Explore from the signals' tasks, and make candidate tasks of the explorations.",
    reads=(*SAMPLED, "task_evolution"),
    files=("fragments.jsonl", "candidates.jsonl", "drops.jsonl", "counts.json"),
    folder=TREE + "explored",
    learns=POOL_LEARNING,
    inputs=_explore_inputs,
    environment=("domain", "synthesis"),
    plays=explorer_engine,
    workload=_explore_work,
    image="sample",
)


def _validate_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The candidates of a round, the pool that they join, the tasks that none may equal, and what an episode reads."""
    model, env, branch, _ = subject(wildcards)
    return {
        "candidates": layout.result(model, env, branch, "explored/candidates.jsonl"),
        "evaluated": layout.data(env, "evaluate.jsonl"),
        **({"pool": layout.task_pool(model, env, branch.previous)} if branch.iteration > 1 else {}),
        **layout.suite.envs[env].play_files,
        **layout.prepared(env),
    }


VALIDATE_TASKS = Stage(
    name="validate_tasks",
    help="Execute the reference solutions of candidate tasks twice, and add those that succeed to the pool.",
    reads=(*ENVIRONMENT, "task_evolution", "rollout"),
    files=("pool.jsonl", "drops.jsonl", "counts.json"),
    folder=TREE + "tasks",
    learns=POOL_LEARNING,
    inputs=_validate_inputs,
    environment=("domain", "synthesis"),
)


def _pool_experts_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The pool whose reference solutions are played, and how agents are prompted."""
    model, env, branch, _ = subject(wildcards)
    inputs = episodes(layout, wildcards, "rollout/target")
    names = ["instruction", "prepared", *layout.suite.envs[env].play_files]
    if layout.suite.prompt.trained:
        names.append("example")
    pool = layout.task_pool(model, env, branch)
    return {"pool": pool} | {name: inputs[name] for name in names if name in inputs}


POOL_EXPERTS = Stage(
    name="pool_experts",
    help="Play the reference solutions of a pool, as experts for preference pairs on its tasks.",
    reads=(*ENVIRONMENT, "rollout"),
    files=("explore.jsonl", "experts.jsonl", "drops.jsonl"),
    folder=TREE + "pool",
    learns=("pool_preference",),
    inputs=_pool_experts_inputs,
    environment=("domain", "synthesis"),
)


def _round_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The inputs of GRPO, with the pool in place of the tasks; the method's start policy if a KL term refers to it.

    With adapters the KL term refers to the policy that the round starts from.
    """
    model, env, branch, agent = subject(wildcards)
    inputs = online_inputs(layout, wildcards)
    inputs.pop("tasks")
    if for_method(layout.suite, branch.method).grpo.beta and not layout.suite.models[model].lora:
        inputs["reference"] = layout.policy(model, env, branch.at(0), agent)
    return {**inputs, "pool": layout.task_pool(model, env, branch)}


GRPO_ROUND = online(
    name="grpo_round",
    help="Train the target with GRPO on the pool's tasks.",
    reads=(*SAMPLED, "grpo", "task_evolution"),
    plays=grpo_engine,
    learns=("task_pool",),
    inputs=_round_inputs,
    workload=of_setting(
        lambda suite, of: playing_work(of, suite.task_evolution.steps * suite.grpo.batch_size, passes=1)
    ),
)


def _growth_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The training episodes and the pools of the suite's methods with the first model, their records, the claims."""
    layout = first(layout)
    rounds = {
        (method, env, seed, number): (model, env, Branch(method, seed, number))
        for method in layout.suite.methods
        if has_pool(layout.recipe(method))
        for model, env, seed, number in layout.evaluations(method)
        if number
    }
    return made_of("records", "claims")(layout, wildcards) | {
        "episodes": {key: layout.training_episodes(*of_round)["target"] for key, of_round in rounds.items()},
        "pools": {key: layout.task_pool(*of_round) for key, of_round in rounds.items()},
    }


TASK_GROWTH = Stage(
    name="task_growth",
    help="Show how pools of synthetic tasks grow, and compare with the second paper's numbers.",
    reads=(*TABLE, "task_evolution"),
    files=("growth.md", "growth.svg", "new_tasks.svg", "growth.json", "comparison.md"),
    folder="task_growth",
    inputs=_growth_inputs,
)

STAGES = (SIGNALS, EXPLORE_TASKS, VALIDATE_TASKS, POOL_EXPERTS, GRPO_ROUND)
