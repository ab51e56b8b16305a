"""The stages of the DAG, each declared once, in the order of the paper. A new stage is an entry here and a module."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coevolve.config import machine as machine_config
from coevolve.config.machine import Machine
from coevolve.config.sections import PAIR_LEARNING, POOL_LEARNING
from coevolve.config.suite import Suite, digest
from coevolve.errors import UserError, suggestion
from coevolve.workflow import inputs, workloads
from coevolve.workflow.branch import SOURCES
from coevolve.workflow.layout import Layout
from coevolve.workflow.stage import Inputs, Stage, Wildcards

SEED, ITERATION = r"base/seed\d+", r"(?!base/)\w+/seed\d+/iter[1-9]\d*"
PLAYED = f"base/untrained|{SEED}|{ITERATION}"
#: What reference log-probs are of: pairs, or the trajectories of some sources.
SCORED = ("pairs", *("_".join(some) for n in (1, 2, 3) for some in itertools.combinations(SOURCES.values(), n)))

_POLICY = ("policy.json",)
_PAIRS = ("pairs.jsonl", "drops.jsonl", "summary.json")
_TREE = "{model}/{env}/{branch}/"
_ENVIRONMENT = ("envs", "protocol", "protocols")
_EPISODES = ("models", *_ENVIRONMENT, "rollout")
_SAMPLED = (*_EPISODES, "sampler")
_TABLE = ("suite", "protocol", "methods", "seeds", "models", "envs", "iterations", "recipes", "report")


def _pinned_file(config: Mapping[str, Any], wildcards: Wildcards) -> str:
    """Digest of a file's pin: the content of a pinned file does not depend on code."""
    return f"{digest(config)}-"


def _pinned_model(config: Mapping[str, Any], wildcards: Wildcards) -> str:
    """Digest of a model's pin."""
    model = config["models"][wildcards["model"]]
    return digest([model["hub"], model["revision"]])


def _pinned_gguf(config: Mapping[str, Any], wildcards: Wildcards) -> str:
    """Digest of a GGUF file's pin and of the weights' in it."""
    gguf = config["models"][wildcards["model"]]["gguf"]
    return digest(gguf and [gguf["sha256"], gguf["weights_sha256"]])


#: A table beside the paper's own.
ABLATION = Stage(
    name="ablation",
    help="Write an ablation's table: its methods side by side.",
    reads=(*_TABLE, "ablations"),
    files=("table.md", "table.tex", "table.json", "summary.md"),
    folder="ablations/{ablation}",
    inputs=inputs.ablation,
)
_EXPERIMENT = (
    Stage(
        name="download",
        help="Fetch a file, pinned by sha256, once for all suites.",
        reads=("sources",),
        files=("{file}",),
        folder="{source}",
        digest=_pinned_file,
        image="",
        network=True,
        shared=True,
    ),
    Stage(
        name="snapshot",
        help="Fetch a model of the hub at its pinned commit, once for all suites.",
        reads=("models",),
        files=("manifest.json",),
        folder="models/{model}",
        digest=_pinned_model,
        workload=workloads.snapshot,
        image="",
        network=True,
        shared=True,
    ),
    Stage(
        name="convert",
        help="Dequantise a model in a GGUF file into a folder in transformers' format, once for all suites.",
        reads=("models",),
        files=("manifest.json",),
        folder="converted/{model}",
        inputs=inputs.convert,
        digest=_pinned_gguf,
        image="train",
        shared=True,
    ),
    Stage(
        name="gold",
        help="Generate ScienceWorld's expert trajectories, which are committed; only `make gold` runs this.",
        reads=_ENVIRONMENT,
        files=("gold.jsonl",),
        folder="gold/{env}",
        environment=("domain", "gold"),
    ),
    Stage(
        name="prepare",
        help="Build the files that all jobs of an environment share, such as a shop and its search index.",
        reads=_ENVIRONMENT,
        files=("meta.json",),
        folder="prepared/{env}",
        inputs=inputs.prepare,
        environment=("domain",),
    ),
    Stage(
        name="data",
        help="Select the tasks of SFT, exploration and evaluation, and their expert trajectories; count drops.",
        reads=(*_ENVIRONMENT, "prompt"),
        files=(
            "sft.jsonl",
            "experts.jsonl",
            "explore.jsonl",
            "evaluate.jsonl",
            "drops.jsonl",
            "instruction.txt",
            "example.json",
        ),
        folder="data/{env}",
        inputs=inputs.data,
        environment=("domain",),
    ),
    Stage(
        name="untrained",
        help="Write the base model before training: a downloaded checkpoint, or a tokenizer and random weights.",
        reads=("models",),
        files=_POLICY,
        folder=_TREE + "policy/target",
        branches=r"base/untrained|untrained/seed\d+",
        inputs=inputs.untrained,
        workload=workloads.untrained,
        image="train",
    ),
    Stage(
        name="pretrain",
        help="Pre-train a randomly initialised model on language modelling.",
        reads=("models",),
        files=_POLICY,
        folder=_TREE + "policy/target",
        branches=r"base/pretrained|pretrained/seed\d+",
        inputs=inputs.pretrain,
        workload=workloads.pretrain,
        image="train",
        launchable=True,
    ),
    Stage(
        name="sft",
        help="Fine-tune the base policies of the target and the failure agent, independently (section 4.1).",
        reads=("models", "sft"),
        files=_POLICY,
        folder=_TREE + "policy/{agent}",
        branches=SEED,
        inputs=inputs.sft,
        workload=workloads.sft,
        image="train",
        launchable=True,
    ),
    Stage(
        name="shard",
        help="Play one shard of a rollout or evaluation (key `shards` of the machine file).",
        reads=(*_SAMPLED, "evaluation"),
        files=("episodes.jsonl",),
        folder=_TREE + "parts/{whole}/{part}",
        branches=PLAYED,
        evaluates=True,
        inputs=inputs.shard,
        environment=("domain",),
        workload=workloads.shard,
        image="sample",
    ),
    Stage(
        name="rollout",
        help="Explore the training tasks with one agent.",
        reads=_SAMPLED,
        files=("episodes.jsonl",),
        folder=_TREE + "rollout/{agent}",
        branches=f"{SEED}|{ITERATION}",
        inputs=inputs.rollout,
        environment=("domain",),
        workload=workloads.rollout,
        image="sample",
    ),
    Stage(
        name="pairs",
        help="Build preference pairs of episodes by the method's recipe (eq. 6 and 8).",
        reads=("recipes", "pairing"),
        files=_PAIRS,
        folder=_TREE + "pairs/{agent}",
        learns=PAIR_LEARNING,
        inputs=inputs.pairs,
        workload=workloads.pairs,
    ),
    Stage(
        name="steps",
        help="Build IPR's preference pairs of steps from the rewards of sampled continuations.",
        reads=(*_SAMPLED, "recipes", "pairing", "steps"),
        files=(*_PAIRS, "explored.jsonl", "step_values.jsonl"),
        folder=_TREE + "pairs/{agent}",
        learns=("steps",),
        inputs=inputs.steps,
        environment=("domain",),
        workload=workloads.steps,
        image="sample",
    ),
    Stage(
        name="select",
        help="Select the experts and the agent's successes (RFT).",
        reads=("selection",),
        files=("selected.jsonl", "drops.jsonl", "summary.json"),
        folder=_TREE + "selected/{agent}",
        learns=("selected",),
        inputs=inputs.select,
    ),
    Stage(
        name="rft_train",
        help="Fine-tune a base policy on the selected trajectories (RFT).",
        reads=("models", "sft"),
        files=_POLICY,
        folder=_TREE + "policy/{agent}",
        learns=("selected",),
        inputs=inputs.rft_train,
        workload=workloads.rft_train,
        image="train",
        launchable=True,
    ),
    Stage(
        name="ppo",
        help="Train the target with PPO on episodes that it samples.",
        reads=(*_EPISODES, "ppo"),
        files=(*_POLICY, "episodes.jsonl"),
        folder=_TREE + "policy/{agent}",
        learns=("ppo",),
        inputs=inputs.online,
        environment=("domain",),
        workload=workloads.ppo,
        image="train",
    ),
    Stage(
        name="grpo",
        help="Train the target with GRPO on groups of episodes that it samples.",
        reads=(*_EPISODES, "grpo"),
        files=(*_POLICY, "episodes.jsonl"),
        folder=_TREE + "policy/{agent}",
        learns=("grpo",),
        inputs=inputs.online,
        environment=("domain",),
        workload=workloads.grpo,
        image="train",
    ),
    Stage(
        name="signals",
        help="Compute the signals of a round's training episodes: forgetting, boundary, rare.",
        reads=(*_ENVIRONMENT, "task_evolution"),
        files=("signals.jsonl", "summary.json"),
        folder=_TREE + "signals",
        learns=POOL_LEARNING,
        inputs=inputs.signals,
        environment=("synthesis",),
    ),
    Stage(
        name="explore_tasks",
        help="Explore from the signals' tasks, and make candidate tasks of the explorations.",
        reads=(*_SAMPLED, "task_evolution"),
        files=("fragments.jsonl", "candidates.jsonl", "drops.jsonl", "counts.json"),
        folder=_TREE + "explored",
        learns=POOL_LEARNING,
        inputs=inputs.explore_tasks,
        environment=("domain", "synthesis"),
        workload=workloads.explore_tasks,
        image="sample",
    ),
    Stage(
        name="validate_tasks",
        help="Execute the reference solutions of candidate tasks twice, and add those that succeed to the pool.",
        reads=(*_ENVIRONMENT, "task_evolution", "rollout"),
        files=("pool.jsonl", "drops.jsonl", "counts.json"),
        folder=_TREE + "tasks",
        learns=POOL_LEARNING,
        inputs=inputs.validate_tasks,
        environment=("domain", "synthesis"),
    ),
    Stage(
        name="pool_experts",
        help="Play the reference solutions of a pool, as experts for preference pairs on its tasks.",
        reads=(*_ENVIRONMENT, "rollout"),
        files=("explore.jsonl", "experts.jsonl", "drops.jsonl"),
        folder=_TREE + "pool",
        learns=("pool_preference",),
        inputs=inputs.pool_experts,
        environment=("domain", "synthesis"),
    ),
    Stage(
        name="grpo_round",
        help="Train the target with GRPO on the pool's tasks.",
        reads=(*_EPISODES, "grpo", "task_evolution"),
        files=(*_POLICY, "episodes.jsonl"),
        folder=_TREE + "policy/{agent}",
        learns=("task_pool",),
        inputs=inputs.grpo_round,
        environment=("domain",),
        workload=workloads.grpo_round,
        image="train",
    ),
    Stage(
        name="reference",
        help="Compute a reference policy's log-probs, once for all trainings that share them.",
        reads=("models",),
        files=("scores.safetensors",),
        folder=_TREE + "reference/{agent}/{of}",
        branches=f"{SEED}|{ITERATION}",
        inputs=inputs.reference,
        workload=workloads.reference,
        image="train",
    ),
    Stage(
        name="train",
        help="Train the failure agent (eq. 7) or the target agent (eq. 9): one objective, weights per pair.",
        reads=("models", "dpo"),
        files=_POLICY,
        folder=_TREE + "policy/{agent}",
        learns=(*PAIR_LEARNING, "steps"),
        inputs=inputs.train,
        workload=workloads.train,
        image="train",
        launchable=True,
    ),
    Stage(
        name="gradients",
        help="Measure the gradient of each pair kind before and after a preference training.",
        reads=("models", "dpo", "gradients"),
        files=("gradients.json",),
        folder=_TREE + "gradients/{agent}",
        learns=(*PAIR_LEARNING, "steps"),
        inputs=inputs.gradients,
        workload=workloads.gradients,
        image="train",
    ),
    Stage(
        name="evaluate",
        help="Play the evaluation tasks with the target agent.",
        reads=(*_SAMPLED, "evaluation"),
        files=("episodes.jsonl", "records.jsonl"),
        folder=_TREE + "eval",
        branches=PLAYED,
        evaluates=True,
        inputs=inputs.evaluate,
        environment=("domain",),
        workload=workloads.evaluate,
        image="sample",
    ),
    ABLATION,
)
_TASK_GROWTH = Stage(
    name="task_growth",
    help="Show how pools of synthetic tasks grow, and compare with the second paper's numbers.",
    reads=(*_TABLE, "task_evolution"),
    files=("growth.md", "growth.png", "growth.svg", "growth.json", "comparison.md"),
    folder="task_growth",
    inputs=inputs.task_growth,
)
_product = functools.partial(Stage, reads=_TABLE, product=True)
#: The files of the paper that a full run ends with.
_PRODUCTS = (
    _product(
        name="verdicts",
        help="Judge each claim of the paper: reproduced, contradicted, underpowered or not run.",
        files=("verdicts.json", "verdicts.md"),
        folder="paper/verdicts",
        inputs=inputs.verdicts,
    ),
    _product(
        name="table1",
        help="Write Table 1 with the paper's numbers.",
        files=("table1.md", "table1.tex", "table1.json"),
        folder="paper/table1",
        inputs=inputs.table1,
    ),
    _product(
        name="figure2",
        help="Draw Figure 2: failures, and the rewards of shared failures.",
        files=("figure2.json", "figure2.png", "figure2.svg"),
        folder="paper/figure2",
        inputs=inputs.figure2,
    ),
    _product(
        name="figure3",
        help="Draw Figure 3: average reward per iteration.",
        files=("figure3.json", "figure3.png", "figure3.svg"),
        folder="paper/figure3",
        inputs=inputs.tables,
    ),
    _product(
        name="differences",
        help="Compare the methods, paired by task and seed.",
        files=("differences.json",),
        folder="paper/differences",
        inputs=inputs.tables,
    ),
    _product(
        name="failures",
        help="Analyse explorations, failures, log-probs before and after training, and compute.",
        files=("analysis.json", "analysis.md", "mechanism.png", "mechanism.svg"),
        folder="paper/failures",
        inputs=inputs.failures,
        environment=("observations",),
        history=inputs.evaluated,
    ),
    _product(
        name="regime",
        help="Check whether the suite could decide between methods.",
        reads=(*_TABLE, "regime"),
        files=("regime.json", "regime.md"),
        folder="paper/regime",
        inputs=inputs.regime,
        history=inputs.measured,
    ),
    _product(
        name="pair_counts",
        help="Count the pairs and drops of every pairing.",
        files=("pairs.json",),
        folder="paper/pair_counts",
        inputs=inputs.pair_counts,
    ),
    _product(
        name="examples",
        help="Show failures of two agents on the same instructions, selected by a fixed rule.",
        files=("examples.md",),
        folder="paper/examples",
        inputs=inputs.figure2,
    ),
    _product(
        name="costs",
        help="Compare estimated and measured hours of all jobs.",
        reads=("models", "recipes"),
        files=("costs.md", "costs.json"),
        folder="paper/costs",
        inputs=inputs.machine,
        history=inputs.costed,
    ),
    _product(
        name="summary",
        help="Write the differences between methods, and each method's source, pairs and drops.",
        files=("summary.md",),
        folder="paper/summary",
        inputs=inputs.summary,
    ),
)


def exported(suite: Suite) -> list[str]:
    """The stages whose files an export of a suite holds: its products, and `task_growth` if a method has a pool."""
    products = [name for name, stage in STAGES.items() if stage.product]
    pools = any(suite.recipes[method].learns in POOL_LEARNING for method in suite.methods)
    return [*products, _TASK_GROWTH.name] if pools else products


def _page_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The files of all other stages that an export holds."""
    shown = [STAGES[name] for name in exported(layout.suite) if name != PAGE.name]
    products = [f"{layout.home}/{stage.folder}/{name}" for stage in shown for name in stage.files]
    return {"products": products, "claims": inputs.CLAIMS}


#: The report, which links to all other products.
PAGE = _product(
    name="page",
    help="Put all products on one HTML page.",
    files=("report.html",),
    folder="paper/page",
    inputs=_page_inputs,
    history=inputs.measured,
)
STAGES = {stage.name: stage for stage in (*_EXPERIMENT, _TASK_GROWTH, *_PRODUCTS, PAGE)}


def load_machine(name: str | Path) -> Machine:
    """The machine of a name or path. The key `products` applies to every product.

    Raises `UserError` naming file and key, also for an unknown stage, and for several processes of a stage that runs in
    one.
    """
    machine, path = machine_config.read_machine(name), machine_config.machine_file(name)
    groups = {"default", "products"}
    for unknown in machine.stages.keys() - STAGES.keys() - groups:
        raise UserError(f"{path}: key `stages.{unknown}`: no such stage{suggestion(unknown, STAGES) or '.'}")
    products = {
        stage: machine.stages.get("products", machine.stages["default"]) for stage in STAGES if STAGES[stage].product
    }
    machine = machine.model_copy(update={"stages": products | machine.stages})
    for stage, declared in STAGES.items():
        if machine.job_resources(stage).processes > 1 and not declared.launchable:
            key = f"stages.{stage if stage in machine.stages else 'default'}.processes"
            raise UserError(f"{path}: key `{key}`: `{stage}` runs in one process; remove the key.")
    return machine
