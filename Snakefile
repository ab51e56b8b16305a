"""The paper as a build product: `snakemake --profile slurm`, or `snakemake --profile smoke` on one CPU machine.

The loops that make the jobs, and so the paper's algorithm, are in `coevolve/pipeline/paper.py`; `SnakemakeRun` begins
and ends a run. This file declares the rules: one a stage, whose only wildcard is looked up in the plan. A job is
`coevolve job FILE`, which calls `run` of the stage's module.
"""

import sys

from snakemake.utils import min_version

from coevolve.cli import OFFLINE
from coevolve.config.derived.sizes import job_resources
from coevolve.errors import UserError
from coevolve.follow.snakemake_run import SnakemakeRun
from coevolve.pipeline.machine import snakemake_resources
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.targets import targets

min_version("9.0")

try:
    RUN = SnakemakeRun(workflow, config, OFFLINE)
except UserError as error:
    sys.exit(f"coevolve: {error}")  # Snakemake would print this file's lines below the sentence
PLAN, MACHINE = RUN.plan, RUN.machine


onstart:
    try:
        RUN.start()
    except UserError as error:
        sys.exit(f"coevolve: {error}")  # Snakemake would print a traceback below the sentence


onsuccess:
    logger.info(RUN.end(log, successful=True), extra={"coevolve": True})


onerror:
    RUN.end(log, successful=False)


rule all:
    default_target: True
    localrule: True
    input:
        PLAN.targets(),


# One rule a stage; `coevolve stage --help` lists them with what they do.
for stage in STAGES:

    rule:
        name:
            stage
        localrule: job_resources(MACHINE, stage).local
        input:
            unpack(RUN.inputs(stage)),
        output:
            RUN.outputs(stage),
        log:
            RUN.log(stage),
        params:
            **RUN.params(stage),
        threads: job_resources(MACHINE, stage).cpus
        resources:
            **snakemake_resources(MACHINE, stage),
        container:
            RUN.image(stage)
        shell:
            RUN.command(stage)


# Named parts of the suite, such as `webshop_coevolve` or `ablation_positive_agent`; `coevolve targets` lists them. A
# product such as `table1` is a stage's rule already.
for target in (target for target in targets(PLAN) if target.name not in STAGES):

    rule:
        name:
            target.name
        localrule: True
        input:
            RUN.files(target),
