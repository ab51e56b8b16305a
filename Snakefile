"""The paper as a build product: `snakemake --profile slurm`, or `snakemake --profile smoke` on one CPU machine.

Names, dependencies and digests come from `coevolve.plan`; this file says only which rule a stage is and what it costs.
"""

import sys

from snakemake.utils import min_version

from pathlib import Path

from coevolve import config as suites, store
from coevolve.plan import Plan

min_version("9.0")

SUITE = f"configs/{config.get('suite', 'paper')}.yaml"
OVERRIDES = suites.dotted({key: value for key, value in config.items() if key not in ("suite", "python")})
PLAN = Plan(suites.load(SUITE, OVERRIDES))
COEVOLVE = f"{config.get('python', sys.executable)} -m coevolve"
LOGS = f"{PLAN.home}/logs"
LOCK = store.Lock(Path(PLAN.home) / ".lock")


def inputs(stage):
    return lambda wildcards: PLAN.inputs(stage, wildcards)


def params(stage):
    """`fingerprint` changes when a config section the stage reads, or code it can reach, changes: the job reruns."""
    return {
        "arguments": lambda wildcards: PLAN.arguments(stage, wildcards),
        "fingerprint": lambda wildcards: PLAN.fingerprint(stage, wildcards),
    }


def command(stage):
    overrides = " ".join(f"--set '{override}'" for override in OVERRIDES)
    return f"{COEVOLVE} {stage} --config {SUITE} {overrides} --threads {{threads}} {{params.arguments}} > {{log}} 2>&1"


onstart:
    # Snakemake's own lock outlives `kill -9` and then refuses the command that would resume; this one does not.
    if not LOCK.acquire():
        raise suites.UserError(f"{PLAN.home}: another snakemake is working here; wait for it or end it.")


localrules:
    all,


rule all:
    default_target: True
    input:
        PLAN.targets(),


# Gold trajectories asked of the simulator. Their result is committed under data/, so only `snakemake gold` runs this.
rule gold:
    input:
        [f"{PLAN.home}/gold/{env}/gold.jsonl" for env in PLAN.suite.envs],


rule generate_gold:
    output:
        PLAN.outputs("gold"),
    log:
        f"{LOGS}/gold/{{env}}.log",
    params:
        **params("gold"),
    shell:
        command("gold")


# Task lists and expert trajectories of an environment: who is fine-tuned on, explored and evaluated; drops counted.
rule data:
    input:
        unpack(inputs("data")),
    output:
        PLAN.outputs("data"),
    log:
        f"{LOGS}/data/{{env}}.log",
    params:
        **params("data"),
    shell:
        command("data")


# The base model before any training: a downloaded checkpoint, or a tokenizer and random weights.
rule untrained:
    input:
        unpack(inputs("untrained")),
    output:
        PLAN.outputs("untrained"),
    log:
        f"{LOGS}/untrained/{{model}}.{{env}}.{{branch}}.log",
    params:
        **params("untrained"),
    shell:
        command("untrained")


rule pretrain:
    input:
        unpack(inputs("pretrain")),
    output:
        PLAN.outputs("pretrain"),
    log:
        f"{LOGS}/pretrain/{{model}}.{{env}}.{{branch}}.log",
    params:
        **params("pretrain"),
    shell:
        command("pretrain")


# Section 4.1: the base policies of the target and of the failure agent, fine-tuned independently.
rule sft:
    input:
        unpack(inputs("sft")),
    output:
        PLAN.outputs("sft"),
    log:
        f"{LOGS}/sft/{{model}}.{{env}}.{{branch}}.{{agent}}.log",
    params:
        **params("sft"),
    shell:
        command("sft")


rule rollout:
    input:
        unpack(inputs("rollout")),
    output:
        PLAN.outputs("rollout"),
    log:
        f"{LOGS}/rollout/{{model}}.{{env}}.{{branch}}.{{agent}}.log",
    params:
        **params("rollout"),
    shell:
        command("rollout")


# Eq. 6 and 8, as the method's recipe says.
rule pairs:
    input:
        unpack(inputs("pairs")),
    output:
        PLAN.outputs("pairs"),
    log:
        f"{LOGS}/pairs/{{model}}.{{env}}.{{branch}}.{{agent}}.log",
    params:
        **params("pairs"),
    shell:
        command("pairs")


# Eq. 7 (failure agent) and eq. 9 (target agent): one objective, weights per pair.
rule train:
    input:
        unpack(inputs("train")),
    output:
        PLAN.outputs("train"),
    log:
        f"{LOGS}/train/{{model}}.{{env}}.{{branch}}.{{agent}}.log",
    params:
        **params("train"),
    shell:
        command("train")


rule evaluate:
    input:
        unpack(inputs("evaluate")),
    output:
        PLAN.outputs("evaluate"),
    log:
        f"{LOGS}/evaluate/{{model}}.{{env}}.{{branch}}.log",
    params:
        **params("evaluate"),
    shell:
        command("evaluate")


rule report:
    input:
        **PLAN.inputs("report", {}),
    output:
        PLAN.outputs("report"),
    log:
        f"{LOGS}/report.log",
    params:
        **params("report"),
    shell:
        command("report")
