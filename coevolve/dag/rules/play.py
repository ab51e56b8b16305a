"""Stages in which an agent plays tasks: exploration and evaluation, whole or in parts."""

from coevolve.config.derived.recipes import prompting_only
from coevolve.config.derived.sizes import parts
from coevolve.dag.branch import agent_of
from coevolve.dag.layout import Layout
from coevolve.dag.rules.common import EXPLORING, SAMPLED, TREE, episodes, playing
from coevolve.dag.rules.work import explored_tasks, playing_work, setting
from coevolve.dag.stage import Wildcards
from coevolve.records.provenance import Workload

_PLAYED = f"base/untrained|{EXPLORING}"


def _rollout_work(layout: Layout, wildcards: Wildcards, of: int = 1) -> Workload:
    """The episodes of an exploration, divided into equal parts."""
    suite, branch, expected = setting(layout, wildcards)
    return playing_work(expected, explored_tasks(suite, branch, expected) * suite.rollout.k / of)


ROLLOUT = playing(
    name="rollout",
    help="Explore the training tasks with one agent.",
    reads=SAMPLED,
    files=("episodes.jsonl",),
    folder=TREE + "rollout/{agent}",
    branches=EXPLORING,
    inputs=lambda layout, wildcards: episodes(
        layout, wildcards, f"rollout/{agent_of(wildcards)}", parts(layout.shards, "rollout", wildcards["env"])
    ),
    workload=_rollout_work,
)


def _evaluate_work(layout: Layout, wildcards: Wildcards, of: int = 1) -> Workload:
    """The episodes of an evaluation, divided into equal parts."""
    suite, branch, expected = setting(layout, wildcards)
    recipe = suite.recipes.get(branch.method.removeprefix("base/"))
    means = expected.untrained if recipe and prompting_only(recipe) else None
    count = expected.evaluate * suite.evaluation.samples / of
    return playing_work(expected, count, means=means)


EVALUATE = playing(
    name="evaluate",
    help="Play the evaluation tasks with the target agent.",
    reads=(*SAMPLED, "evaluation"),
    files=("episodes.jsonl", "records.jsonl"),
    folder=TREE + "eval",
    branches=_PLAYED,
    evaluates=True,
    inputs=lambda layout, wildcards: episodes(
        layout, wildcards, "eval", parts(layout.shards, "evaluate", wildcards["env"])
    ),
    workload=_evaluate_work,
)


def _shard_work(layout: Layout, wildcards: Wildcards) -> Workload:
    """A part of the episodes of a rollout or an evaluation."""
    whole = _evaluate_work if wildcards["whole"] == "eval" else _rollout_work
    return whole(layout, wildcards, int(wildcards["part"].partition("of")[2]))


SHARD = playing(
    name="shard",
    help="Play one shard of a rollout or evaluation (key `shards` of the machine file).",
    reads=(*SAMPLED, "evaluation"),
    files=("episodes.jsonl",),
    folder=TREE + "parts/{whole}/{part}",
    branches=_PLAYED,
    evaluates=True,
    inputs=lambda layout, wildcards: episodes(layout, wildcards, wildcards["whole"]),
    workload=_shard_work,
)

STAGES = (SHARD, ROLLOUT, EVALUATE)
