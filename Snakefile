"""The paper as a build product: `snakemake --profile slurm`, or `snakemake --profile smoke` on one CPU machine.

Names, dependencies and digests come from `coevolve.workflow`; this file declares the rules.
"""

import functools
import json
import os
import re
import shlex
import sys

from snakemake.utils import min_version

from pathlib import Path

from snakemake.settings.types import DeploymentMethod

from coevolve.assets import images
from coevolve.cli import OFFLINE
from coevolve.config.machine import machine_file
from coevolve.config.suite import as_overrides, given_name, load_suite
from coevolve.envs import registry
from coevolve.errors import UserError
from coevolve.storage.files import ProcessLock, write_json
from coevolve.workflow import slurm
from coevolve.workflow.job_server import JobServer
from coevolve.workflow.plan import Plan
from coevolve.workflow.run_log import RunLog, end_message
from coevolve.workflow.run_record import RunRecord
from coevolve.workflow.stage_table import STAGES, load_machine
from coevolve.workflow.targets import targets

min_version("9.0")

try:
    SUITE, PYTHON = given_name(config, "suite", "paper"), given_name(config, "python", sys.executable)
    NO_OVERRIDES = ("suite", "machine", "python", "reuse")
    OVERRIDES = as_overrides({key: value for key, value in config.items() if key not in NO_OVERRIDES})
    FLAGS = {"true": "--reuse", "false": "--no-reuse"}
    REUSE = FLAGS.get(str(config.get("reuse", True)).lower())
    if REUSE is None:
        raise UserError(f"--config reuse={config['reuse']}: write `reuse=false` to run every job, or leave it out.")
    MACHINE_FILE = str(machine_file(given_name(config, "machine", "h100")))
    MACHINE = load_machine(MACHINE_FILE)
    PLAN = Plan(load_suite(SUITE, OVERRIDES), shards=MACHINE.shards, machine=MACHINE_FILE)
    CONTAINED = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
    IMAGES = images.named({stage.image for stage in STAGES.values()} - {""}) if CONTAINED else {}
except UserError as error:
    sys.exit(f"coevolve: {error}")  # Snakemake would print this file's lines below the sentence
# An image names its interpreter in COEVOLVE_PYTHON; the code is this checkout's, inside and outside. The path may have
# blanks: it stands in double quotes of the shell, in a format string of Snakemake.
PYTHON = re.sub(r'(["$`\\\\])', r"\\\1", PYTHON)
PYTHON = PYTHON.replace("{", "{{").replace("}", "}}")
COEVOLVE = f'"${{{{COEVOLVE_PYTHON:-{PYTHON}}}}}" -m coevolve'
LOCK = ProcessLock(Path(PLAN.home) / ".lock")
PLANNED = Path(PLAN.home) / ".planned.json"
SERVERS, MISSING, FETCHING = [], [], []
RUN_LOG = RunLog(PLAN)
for handler in workflow.logger_manager.get_log_handlers():
    handler.receive = RUN_LOG.receive  # of the plugin that the profiles select; another plugin has no such attribute


def of_job(function, stage):
    """The function of a stage and a job's wildcards as Snakemake calls it.

    Snakemake's wildcards are a list of values: `"branch" in wildcards` would be false.
    """
    return lambda wildcards: function(stage, dict(wildcards.items()))


def inputs(stage, wildcards):
    """Snakemake ignores an error of this function where the job's files exist; `fingerprint` raises it again."""
    try:
        return PLAN.checked_inputs(stage, wildcards)
    except UserError as error:
        MISSING.append(error)
        raise


def fingerprint(stage, wildcards):
    """The job's fingerprint when the run was planned: a Slurm job reads this file again, perhaps after an edit."""
    if MISSING:
        raise MISSING[0]
    planned = {} if workflow.is_main_process else planned_fingerprints()
    return planned.get(PLAN.folder(stage, wildcards)) or PLAN.fingerprint(stage, wildcards)


@functools.cache
def planned_fingerprints():
    """Fingerprints of the run's jobs by folder, as the main process wrote them when it started."""
    return json.loads(PLANNED.read_bytes())


def params(stage):
    """`fingerprint` changes when a config section the stage reads, or code it can reach, changes: the job reruns."""
    return {"arguments": of_job(PLAN.arguments, stage), "fingerprint": of_job(fingerprint, stage)}


# A shell command is put together when its job runs, after the loop over stages: it must not name the loop's variable.
SET = [word for override in OVERRIDES for word in ("--set", override)]
GIVEN = shlex.join(["--suite", SUITE, *SET, "--launch", MACHINE.launch or "none"]).replace("{", "{{").replace("}", "}}")
LAUNCH = "--processes {resources.processes} --nodes {resources.nodes} --gpus {resources.gpus}"
COMMAND = f"{COEVOLVE} stage {{rule}} {GIVEN} {REUSE} --fingerprint {{params.fingerprint}} --threads {{threads}} {LAUNCH} {{params.arguments}} > {{log:q}} 2>&1"


def start():
    """What precedes the first job; raises `UserError`."""
    for problem in images.problems() if CONTAINED else ():
        raise UserError(problem)
    if workflow.executor_plugin.name == "slurm":
        slurm.programs()
    if not CONTAINED:
        playing = {job.wildcards_dict.get("env") for job in workflow.dag.needrun_jobs()}
        registry.install(section for env, section in PLAN.suite.envs.items() if env in playing)
    # Snakemake's own lock outlives `kill -9` and then refuses the command that would resume; this one does not.
    if not LOCK.acquire():
        raise UserError(f"{PLAN.home}: another snakemake is working here; wait for it or end it.")
    jobs = [job for job in workflow.dag.jobs if job.rule.name in STAGES]
    shared = [job for job in workflow.dag.needrun_jobs() if job.rule.name in STAGES and STAGES[job.rule.name].shared]
    for folder in sorted({Path(PLAN.folder(job.rule.name, job.wildcards_dict)) for job in shared}):
        FETCHING.append(ProcessLock(folder.with_name(f".{folder.name}.lock")))  # Snakemake deletes what it will make
        if not FETCHING[-1].acquire():
            raise UserError(f"{folder}: the snakemake of another suite fetches this; wait for it or end it.")
    write_json(PLANNED, {PLAN.folder(job.rule.name, job.wildcards_dict): job.params.fingerprint for job in jobs})
    record = RunRecord.of(workflow, jobs, MACHINE_FILE, OVERRIDES)
    record.write(PLAN.home)
    RUN_LOG.begin(record)
    if MACHINE.fork_jobs and not CONTAINED and "python" not in config and "COEVOLVE_PYTHON" not in os.environ:
        stages = [name for name, stage in STAGES.items() if stage.image in ("train", "sample")]
        SERVERS.append(JobServer(stages, OFFLINE | {"OMP_NUM_THREADS": "1"}))


onstart:
    try:
        start()
    except UserError as error:
        sys.exit(f"coevolve: {error}")  # Snakemake would print a traceback below the sentence


def stop_servers(log):
    while SERVERS:
        SERVERS.pop().stop()


def end(log, *, successful):
    """Stop the servers, and print where the results and Snakemake's log are."""
    stop_servers(log)
    if successful:
        files = [str(path) for job in workflow.dag.targetjobs for path in (job.output or job.input)]
        logger.info(end_message(PLAN, files, log), extra={"coevolve": True})


onsuccess: end(log, successful=True)
onerror: end(log, successful=False)


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
        localrule: MACHINE.job_resources(stage).local
        input:
            unpack(of_job(inputs, stage)),
        output:
            PLAN.outputs(stage),
        log:
            PLAN.log(stage),
        params:
            **params(stage),
        threads: MACHINE.job_resources(stage).cpus
        resources:
            **MACHINE.snakemake_resources(stage),
        container:
            str(IMAGES[STAGES[stage].image].file) if STAGES[stage].image in IMAGES else None
        shell:
            COMMAND


# Named parts of the suite, such as `webshop_coevolve` or `ablation_positive_agent`; `coevolve targets` lists them. A
# product such as `table1` is a stage's rule already.
for target in (target for target in targets(PLAN) if target.name not in STAGES):

    rule:
        name:
            target.name
        localrule: True
        input:
            target.files,
