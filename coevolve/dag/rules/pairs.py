"""Stages that make training data of episodes: preference pairs, step pairs, selected successes."""

from coevolve.config.derived.methods import for_method
from coevolve.config.derived.recipes import PAIR_LEARNING
from coevolve.config.names import PairKind
from coevolve.dag.layout import Layout
from coevolve.dag.rules.common import SAMPLED, TREE, episodes, playing, subject
from coevolve.dag.rules.work import pair_tokens, playing_work, setting
from coevolve.dag.stage import Inputs, Stage, Wildcards
from coevolve.records.provenance import Workload

PAIRS = ("pairs.jsonl", "drops.jsonl", "summary.json")


def _pairs_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Explored tasks, experts and the episodes of all exploring agents."""
    model, env, branch, agent = subject(wildcards)
    return {
        "tasks": layout.explored(model, env, branch, "explore.jsonl"),
        "experts": layout.explored(model, env, branch, "experts.jsonl"),
        **layout.paired_rollouts(model, env, branch, agent),
        **layout.excluded_example(env, branch),
    }


def _pairs_work(layout: Layout, wildcards: Wildcards) -> Workload:
    """Pairs on disk."""
    suite, branch, expected = setting(layout, wildcards)
    return Workload(kept=pair_tokens(suite, branch, subject(wildcards)[-1], expected))


PAIRING = Stage(
    name="pairs",
    help="Build preference pairs of episodes by the method's recipe (eq. 6 and 8).",
    reads=("recipes", "pairing"),
    files=PAIRS,
    folder=TREE + "pairs/{agent}",
    learns=PAIR_LEARNING,
    inputs=_pairs_inputs,
    workload=_pairs_work,
    remade=True,
)


def _steps_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The inputs of `pairs`, the policy that explores after steps, and the `scorer` whose continuations value them."""
    model, env, branch, agent = subject(wildcards)
    inputs = episodes(layout, wildcards, f"rollout/{agent}")
    if excluded := layout.excluded_example(env, branch):
        inputs.pop("example")
    return {
        **inputs,
        "experts": layout.data(env, "experts.jsonl"),
        agent: layout.rollouts(model, env, branch)[agent],
        "scorer": layout.policy(model, env, branch.at(0), agent),
        **excluded,
    }


def _steps_work(layout: Layout, wildcards: Wildcards) -> Workload:
    """Continuations from steps of the experts' trajectories; on average half a trajectory is left."""
    suite, branch, expected = setting(layout, wildcards)
    kinds = suite.recipes[branch.method].agents["target"].trains_on
    points = {PairKind.EXPERT_STEP: expected.turns / suite.steps.every, PairKind.EXPERT_GROUP: suite.steps.groups}
    starts = expected.experts * sum(number for kind, number in points.items() if kind in kinds)
    return playing_work(expected, starts * (1 + 2 * suite.steps.samples) / 2)


STEPS = playing(
    name="steps",
    help="Build IPR's and HPL's preference pairs of steps from the rewards of sampled continuations.",
    reads=(*SAMPLED, "recipes", "pairing", "steps"),
    files=(*PAIRS, "explored.jsonl", "step_values.jsonl"),
    folder=TREE + "pairs/{agent}",
    learns=("steps",),
    inputs=_steps_inputs,
    workload=_steps_work,
)


def _select_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Experts, and the agent's episodes if it explores."""
    model, env, branch, _ = subject(wildcards)
    inputs: Inputs = {
        "experts": layout.data(env, "sft.jsonl"),
        **layout.rollouts(model, env, branch),
        **layout.excluded_example(env, branch),
    }
    if for_method(layout.suite, branch.method).selection.experts == "all":
        inputs["explored_experts"] = layout.data(env, "experts.jsonl")
    return inputs


SELECT = Stage(
    name="select",
    help="Select the experts and the agent's successes (RFT).",
    reads=("selection",),
    files=("selected.jsonl", "drops.jsonl", "summary.json"),
    folder=TREE + "selected/{agent}",
    learns=("selected",),
    inputs=_select_inputs,
    remade=True,
)

STAGES = (PAIRING, STEPS, SELECT)
