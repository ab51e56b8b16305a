"""The stages of the DAG, each declared once, in the order of the paper. A new one touches this table and its module."""

from __future__ import annotations

import difflib
from pathlib import Path

from coevolve.config import machine as machine_config
from coevolve.config.machine import Machine
from coevolve.config.suite import as_dict, digest, restrict
from coevolve.errors import UserError
from coevolve.workflow import inputs, workloads
from coevolve.workflow.layout import Layout
from coevolve.workflow.stage import Stage, Wildcards

SEED, ITERATION = r"base/seed\d+", r"(?!base/)\w+/seed\d+/iter[1-9]\d*"
PLAYED = f"base/untrained|{SEED}|{ITERATION}"
#: What reference log-probs are of: pairs, or the trajectories of two or all sources.
SCORED = ("pairs", "experts_target", "experts_failure", "target_failure", "experts_target_failure")

_POLICY = ("policy.json",)
_PAIRS = ("pairs.jsonl", "drops.jsonl", "summary.json")
_TREE = "{model}/{env}/{branch}/"
_ENVIRONMENT = ("envs", "protocol", "protocols")
_EPISODES = ("models", *_ENVIRONMENT, "rollout")
_SAMPLED = (*_EPISODES, "sampler")
_TABLE = ("suite", "protocol", "methods", "seeds", "models", "envs", "iterations", "recipes", "prompt", "report")
_BASELINES = ("evaluation", "selection", "steps", "ppo", "grpo")


def _pinned_file(layout: Layout, wildcards: Wildcards) -> str:
    """Digest of a file's pin: a pinned file stays what it is, whatever code fetched it."""
    section = restrict(layout.suite, ["sources"], {"sources": wildcards["source"]})
    return f"{digest(as_dict(section))}-"


def _pinned_model(layout: Layout, wildcards: Wildcards) -> str:
    """Digest of a model's pin."""
    model = layout.suite.models[wildcards["model"]]
    return digest([model.hub, model.revision])


_DECLARED = (
    Stage(
        name="download",
        help="Fetch a file, pinned by sha256, once for all suites.",
        reads=("sources",),
        files=("{file}",),
        folder="{source}",
        digest=_pinned_file,
        image="",
        network=True,
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
    ),
    Stage(
        name="gold",
        help="Make ScienceWorld's expert trajectories; the committed file is the result, only `make gold` runs this.",
        reads=_ENVIRONMENT,
        files=("gold.jsonl",),
        folder="gold/{env}",
        enters_environment=True,
    ),
    Stage(
        name="prepare",
        help="Make what all jobs of an environment share, such as a shop and its search engine.",
        reads=_ENVIRONMENT,
        files=("meta.json",),
        folder="prepared/{env}",
        inputs=inputs.prepare,
        enters_environment=True,
    ),
    Stage(
        name="data",
        help="Choose the tasks that are fine-tuned on, explored and evaluated, and their experts; drops are counted.",
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
        enters_environment=True,
    ),
    Stage(
        name="untrained",
        help="Write the base model before training: a downloaded checkpoint, or a tokenizer and random weights.",
        reads=("models",),
        files=_POLICY,
        folder=_TREE + "policy/target",
        branches="base/untrained",
        inputs=inputs.untrained,
        workload=workloads.untrained,
        image="train",
    ),
    Stage(
        name="pretrain",
        help="Pre-train a model that was made here, on language modelling.",
        reads=("models",),
        files=_POLICY,
        folder=_TREE + "policy/target",
        branches="base/pretrained",
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
        help="Play a part of a rollout or evaluation, where the machine divides them.",
        reads=(*_SAMPLED, "evaluation"),
        files=("episodes.jsonl",),
        folder=_TREE + "parts/{whole}/{part}",
        branches=PLAYED,
        evaluates=True,
        inputs=inputs.shard,
        enters_environment=True,
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
        enters_environment=True,
        workload=workloads.rollout,
        image="sample",
    ),
    Stage(
        name="pairs",
        help="Build preference pairs of episodes as the method's recipe says (eq. 6 and 8).",
        reads=("recipes", "pairing"),
        files=_PAIRS,
        folder=_TREE + "pairs/{agent}",
        learns=("preference",),
        inputs=inputs.pairs,
        workload=workloads.pairs,
    ),
    Stage(
        name="steps",
        help="Build IPR's preference pairs of steps, by the rewards of continuations.",
        reads=(*_SAMPLED, "recipes", "pairing", "steps"),
        files=(*_PAIRS, "explored.jsonl", "step_values.jsonl"),
        folder=_TREE + "pairs/{agent}",
        learns=("steps",),
        inputs=inputs.steps,
        enters_environment=True,
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
        help="Fine-tune a base policy on what was selected (RFT).",
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
        help="Train the target on its own episodes while it plays (PPO).",
        reads=(*_EPISODES, "ppo"),
        files=(*_POLICY, "episodes.jsonl"),
        folder=_TREE + "policy/{agent}",
        learns=("ppo",),
        inputs=inputs.online,
        enters_environment=True,
        workload=workloads.ppo,
        image="train",
    ),
    Stage(
        name="grpo",
        help="Train the target on groups of its own episodes while it plays (GRPO).",
        reads=(*_EPISODES, "grpo"),
        files=(*_POLICY, "episodes.jsonl"),
        folder=_TREE + "policy/{agent}",
        learns=("grpo",),
        inputs=inputs.online,
        enters_environment=True,
        workload=workloads.grpo,
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
        learns=("preference", "steps"),
        inputs=inputs.train,
        workload=workloads.train,
        image="train",
        launchable=True,
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
        enters_environment=True,
        workload=workloads.evaluate,
        image="sample",
    ),
    Stage(
        name="report",
        help="Write the paper's tables and figures.",
        # The estimated cost of a job depends on the sections that the job reads.
        reads=(*_TABLE, "ablations", "sft", "dpo", "rollout", "pairing", "sources", *_BASELINES),
        files=(
            "table1.md",
            "table1.tex",
            "table1.json",
            "figure3.png",
            "figure3.json",
            "differences.json",
            "figure2.json",
            "figure2.png",
            "figure2.svg",
            "analysis.json",
            "analysis.md",
            "pairs.json",
            "examples.md",
            "verdicts.json",
            "verdicts.md",
            "summary.md",
            "costs.md",
            "costs.json",
            "report.html",
        ),
        folder="paper",
        inputs=inputs.report,
        product=True,
    ),
    Stage(
        name="ablation",
        help="Write an ablation's table: its methods side by side.",
        reads=(*_TABLE, "ablations"),
        files=("table.md", "table.tex", "table.json", "summary.md"),
        folder="ablations/{ablation}",
        inputs=inputs.ablation,
    ),
)
STAGES = {stage.name: stage for stage in _DECLARED}


def load_machine(path: str | Path) -> Machine:
    """The machine of a YAML file; raises `UserError` naming file and key, also for an unknown stage."""
    machine = machine_config.load_machine(path)
    for name in machine.stages.keys() - STAGES.keys() - {"default"}:
        near = difflib.get_close_matches(name, STAGES, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else "."
        raise UserError(f"{path}: key `stages.{name}`: no such stage{hint}")
    return machine
