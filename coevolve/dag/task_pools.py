"""Files of the second paper's pools of synthetic tasks: the tasks of each round, and the episodes that it trains on."""

from __future__ import annotations

from dataclasses import replace

from coevolve.config.derived.methods import for_method
from coevolve.config.derived.recipes import has_pool
from coevolve.dag.branch import Branch
from coevolve.dag.layout import Layout


def task_pool(layout: Layout, model: str, env: str, branch: Branch) -> str:
    """The tasks that an iteration trains on; without exploration those of the first iteration."""
    grows = for_method(layout.suite, branch.method).task_evolution.exploration != "none"
    where = branch if grows else branch.at(1)
    if where.iteration == 1:
        where = replace(where, method=layout.recipe(branch.method).first_pool or branch.method)
    return layout.result(model, env, layout.owner(where), "tasks/pool.jsonl")


def explored(layout: Layout, model: str, env: str, branch: Branch, name: str) -> str:
    """`explore.jsonl` (tasks) or `experts.jsonl` of an iteration's explorations: of `data`, or of the pool."""
    recipe = layout.suite.recipes.get(branch.method)
    if recipe is None or recipe.learns != "pool_preference":
        return layout.data(env, name)
    return layout.result(model, env, layout.owner(branch), f"pool/{name}")


def training_episodes(layout: Layout, model: str, env: str, branch: Branch) -> dict[str, str]:
    """The episodes that an online training, or a round on a pool, trains on, by agent: its own, or the rollouts."""
    if layout.recipe(branch.method).learns == "pool_preference":
        return layout.rollouts(model, env, branch)
    return {"target": layout.policy(model, env, branch, "target").replace("policy.json", "episodes.jsonl")}


def training_rounds(layout: Layout) -> dict[tuple[str, str, int, int], tuple[str, str]]:
    """The target's training episodes and the pool by (method, env, seed, round), of methods with a pool."""
    return {
        (method, env, seed, number): (
            training_episodes(layout, model, env, branch)["target"],
            task_pool(layout, model, env, branch),
        )
        for method in layout.suite.methods
        if has_pool(layout.recipe(method))
        for model, env, seed, number in layout.evaluations(method)
        if number
        for branch in [Branch(method, seed, number)]
    }


def practice(layout: Layout) -> dict[tuple[str, int], str]:
    """The episodes that the row `regime.learnability` trains on, by (env, seed); of a suite with one model.

    Empty if the suite has no such row, or one that trains on no episodes of its own.
    """
    method = layout.suite.regime.learnability
    if method not in layout.suite.methods or layout.recipe(method).learns not in ("ppo", "grpo"):
        return {}
    return {
        (env, seed): training_episodes(layout, model, env, Branch(method, seed, number))["target"]
        for model, env, seed, number in layout.evaluations(method)
        if number == 1
    }
