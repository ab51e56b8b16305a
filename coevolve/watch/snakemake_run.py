"""One run of Snakemake: all that touches Snakemake's own objects, so that the Snakefile only declares rules."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake.settings.types import DeploymentMethod

from coevolve.assets import images
from coevolve.config.loading import as_overrides, given_name, load_suite, machine_file
from coevolve.config.machine import job_resources
from coevolve.config.restriction import digest
from coevolve.config.suite import Suite
from coevolve.envs import registry
from coevolve.errors import UserError, suggestion
from coevolve.export import suite_evidence
from coevolve.pipeline.job_file import FOLDER, JobFile, planned_file
from coevolve.pipeline.job_server import JobServer
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.stage import MIRROR, PlannedJob, files_by_name
from coevolve.pipeline.targets import Target, targets
from coevolve.storage import policy_dir
from coevolve.storage.files import PROVENANCE
from coevolve.storage.locks import ProcessLock
from coevolve.watch import estimates, slurm
from coevolve.watch.pruning import Pruning, require_weights
from coevolve.watch.run_log import RunLog, end_message
from coevolve.watch.run_record import RunRecord

#: Keys of Snakemake's `--config` that are no keys of a suite.
NO_OVERRIDES = ("suite", "machine", "python", "reuse")


class SnakemakeRun:
    """A run, from Snakemake's `workflow` and `config`; `offline` are variables that keep libraries off the network.

    `plan` and `machine` decide the rules. Raises `UserError` for a wrong `config`, suite or machine.
    """

    def __init__(self, workflow: Any, config: Mapping[str, Any], offline: Mapping[str, str]) -> None:
        self._workflow, self._offline = workflow, offline
        suite = given_name(config, "suite", "paper")
        self._same_python = "python" not in config and "COEVOLVE_PYTHON" not in os.environ
        self._overrides = _overrides(config)
        self._machine_file = str(machine_file(given_name(config, "machine", "h100")))
        self.machine = load_machine(self._machine_file)
        self.plan = Plan.on(load_suite(suite, self._overrides), self._machine_file)
        self._contained = self._contain(workflow.deployment_settings)
        self._images = images.named({stage.image for stage in STAGES.values()} - {""}) if self._contained else {}
        self._python = given_name(config, "python", "") if "python" in config else None
        self._jobs = self._jobs_of(sys.argv)
        self._reuse = _reuse_flag(config)
        self._locks = [ProcessLock(Path(self.plan.home) / ".lock")]
        self._missing: list[UserError] = []
        self._server: JobServer | None = None
        self._log = RunLog(self.plan)
        for handler in workflow.logger_manager.get_log_handlers():
            handler.receive = self._log.receive  # of the plugin that the profiles select; others ignore the attribute

    def _contain(self, settings: Any) -> bool:
        """Whether jobs run in images, as the machine says or `--sdm apptainer`; Snakemake's settings follow it.

        Where Snakemake runs there may be no Apptainer: its local jobs then run outside of images, which decides no
        result. Folders that are links out of the checkout are visible in a container too.
        """
        if self.machine.containers:
            if images.engine() or not self._workflow.is_main_process:
                settings.imply_deployment_method(DeploymentMethod.APPTAINER)
        elif DeploymentMethod.APPTAINER not in settings.deployment_method:
            return False
        linked = {str(Path(folder).resolve()) for folder in (MIRROR, self.plan.home) if Path(folder).is_symlink()}
        for variable in ("APPTAINER_BIND", "SINGULARITY_BIND") if linked else ():
            bound = {*filter(None, os.environ.get(variable, "").split(","))}
            os.environ[variable] = ",".join(sorted(bound | linked))
        return True

    def image(self, stage: str) -> str | None:
        """The container image of a stage's jobs; None for a job outside of containers."""
        name = STAGES[stage].image
        return str(self._images[name].file) if name in self._images else None

    def _jobs_of(self, words: Sequence[str]) -> dict[str, list[PlannedJob]]:
        """By stage, the jobs that a full run needs, and those that the targets among the command's words need.

        Of a process on a cluster's node, also those that the main process planned, as it does not have its words.
        """
        named = {target.name: target for target in targets(self.plan)}
        files = {path for word in words if word in named for path in named[word].files()}
        files |= {word for word in words if self.plan.job(word)}
        if not self._workflow.is_main_process:
            for root in (self.plan.home, MIRROR):
                written = Path(root, FOLDER).rglob("*.json")
                names = [str(path.relative_to(Path(root, FOLDER))).removesuffix(".json") for path in written]
                planned = (self.plan.by_key(f"{root}/{name}") for name in names)
                files |= {path for job in planned if job for path in job.files}
        by_stage: dict[str, list[PlannedJob]] = {stage: [] for stage in STAGES}
        for job in self.plan.jobs([*self.plan.targets(), *sorted(files)]):
            by_stage[job.stage.name].append(job)
        return by_stage

    def outputs(self, stage: str) -> list[str]:
        """The files of a stage's jobs. Snakemake's only wildcard, `job`, is one of their names; a product has none."""
        declared, jobs = STAGES[stage], self._jobs[stage]
        if stage in self.plan.products:
            return self.plan.products[stage].outputs
        names = "|".join(re.escape(job.name) for job in jobs) or "(?!)"  # which no path has
        pattern = f"{MIRROR if declared.shared else self.plan.home}/{{job,{names}}}"
        return [f"{pattern}/{name}" for name in (*declared.files, PROVENANCE)] if declared.files else [pattern]

    def log(self, stage: str) -> str:
        """The log of a stage's jobs, with Snakemake's wildcard."""
        return f"{self.plan.home}/logs/{stage}{'' if stage in self.plan.products else '/{job}'}.log"

    def files(self, target: Target) -> Callable[[Any], Sequence[str]]:
        """The function that Snakemake calls for the files of a named target."""
        return lambda wildcards: target.files()

    def inputs(self, stage: str) -> Callable[[Any], dict[str, list[str]]]:
        """The function that Snakemake calls for a job's input files.

        Snakemake ignores its errors where the job's files exist; the function of the fingerprint raises them again.
        """

        def inputs(wildcards: Any) -> dict[str, list[str]]:
            job = self.plan.of_rule(stage, dict(wildcards.items()))
            if error := self.plan.missing_input(job):
                self._missing.append(error)
                raise error
            return files_by_name(job.inputs)

        return inputs

    def params(self, stage: str) -> dict[str, Callable[[Any], str]]:
        """The file of a job, its fingerprint, and the digest of its inputs' names: which of its files is which.

        The fingerprint changes when a config section that the stage reads, or code that it can reach, changes: the job
        reruns.
        """

        def job_of(wildcards: Any) -> PlannedJob:
            # Snakemake's wildcards are a list of values: `"job" in wildcards` would be false.
            return self.plan.of_rule(stage, dict(wildcards.items()))

        return {
            "file": lambda wildcards: str(planned_file(job_of(wildcards))),
            "fingerprint": lambda wildcards: self._fingerprint(job_of(wildcards)),
            "inputs": lambda wildcards: digest(files_by_name(job_of(wildcards).inputs)),
        }

    def start(self) -> None:
        """What precedes the first job; raises `UserError`."""
        for problem in images.problems() if self._contained else ():
            raise UserError(problem)
        dag = self._workflow.dag
        on_slurm = self._workflow.executor_plugin.name == "slurm"
        if on_slurm:
            slurm.programs()
            os.environ["PATH"] = f"{Path(self._workflow.basedir, slurm.SBATCH_FOLDER)}:{os.environ['PATH']}"
        needed = [job for job in dag.needrun_jobs() if job.rule.name in STAGES]
        used = {job.rule.name for job in needed}
        for stage in used if self._contained else ():
            if job_resources(self.machine, stage).nodes > 1:
                problem = f"`stages.{stage}.nodes` is more than 1, and images contain no srun to start its processes"
                raise UserError(f"{self._machine_file}: {problem}; set it to 1, or run `make cluster CONTAINERS=none`.")
        suite_evidence.require_same_settings(self.plan, [str(path) for job in needed for path in job.output])
        planned = [self._planned(job) for job in needed]
        estimates.require_whole_batches(self.plan, self.machine, planned)
        if not self._contained:
            played = {job.wildcards.get("env") for job in planned}
            registry.install(section for env, section in self.plan.suite.envs.items() if env in played)
        # Snakemake's own lock outlives `kill -9` and then refuses the command that would resume; this one does not.
        if not self._locks[0].acquire():
            raise UserError(f"{self.plan.home}: another snakemake is working here; wait for it or end it.")
        self._lock_shared(planned)
        for each in planned:
            JobFile.of(self.plan, each).write(planned_file(each))
        jobs = {self._planned(job): job for job in dag.jobs if job.rule.name in STAGES}
        record = RunRecord.of(self._workflow, jobs, self._machine_file, self._overrides)
        todo = [each for each, job in jobs.items() if job in {*needed}]
        require_weights(self.plan, todo, record.options)
        record.write(self.plan.home)
        # A run that makes policies again, for another run that will read them, deletes none.
        made_again = all(policy_dir.REF_NAME in map(os.path.basename, job.output) for job in dag.targetjobs)
        prunes = self.machine.prune_weights and not made_again
        self._log.begin(record, Pruning.of(self.plan, jobs, todo, record.options) if prunes else None)
        if self.machine.fork_jobs and not self._contained and self._same_python:
            stages = [name for name, stage in STAGES.items() if stage.image in ("train", "sample")]
            self._server = JobServer(stages, {**self._offline, "OMP_NUM_THREADS": "1"})

    def end(self, log: Sequence[str], *, successful: bool) -> str | None:
        """Stop what was started; returns what is printed of a successful run: its results and Snakemake's log."""
        if self._server:
            self._server.stop()
            self._server = None
        self._log.prune()
        if not successful:
            return None
        made = [str(path) for job in self._workflow.dag.targetjobs for path in (job.output or job.input)]
        return end_message(self.plan, made, log)

    def command(self, stage: str) -> str:
        """The shell command of a stage's jobs, with Snakemake's fields in braces."""
        launch = _without_fields(shlex.join(["--launch", self.machine.launch or "none"]))
        return (
            f"{_without_fields(self._interpreter(STAGES[stage].image))} -m coevolve job {{params.file:q}}"
            f" {self._reuse} {launch} --threads {{threads}}"
            " --processes {resources.processes} --nodes {resources.nodes} --gpus {resources.gpus} > {log:q} 2>&1"
        )

    def _interpreter(self, image: str) -> str:
        """The interpreter of an image's stages, for a shell; the code is this checkout's, inside and outside.

        An image names its own in COEVOLVE_PYTHON. Without images vLLM is in an environment of its own. The path may
        have blanks: it stands in double quotes.
        """
        separate = images.environment(image) / "bin/python"
        samples = self.plan.suite.sampler.engine == "vllm" and separate.exists()
        python = re.sub(r'(["$`\\])', r"\\\1", self._python or str(separate if samples else sys.executable))
        return f'"${{COEVOLVE_PYTHON:-{python}}}"'

    def _fingerprint(self, job: PlannedJob) -> str:
        """The job's fingerprint when the run was planned: a Slurm job reads the Snakefile again, after an edit too."""
        if self._missing:
            raise self._missing[0]
        if self._workflow.is_main_process:
            return self.plan.fingerprint(job)
        return JobFile.read(planned_file(job)).fingerprint

    def _planned(self, job: Any) -> PlannedJob:
        """The plan's job of a job of Snakemake."""
        return self.plan.of_rule(job.rule.name, job.wildcards_dict)

    def _lock_shared(self, needed: Sequence[PlannedJob]) -> None:
        """Lock what several suites share and this run makes: Snakemake deletes what it will make."""
        for folder in sorted({Path(job.folder) for job in needed if job.stage.shared}):
            self._locks.append(ProcessLock(folder.with_name(f".{folder.name}.lock")))
            if not self._locks[-1].acquire():
                raise UserError(f"{folder}: the snakemake of another suite fetches this; wait for it or end it.")


def _overrides(config: Mapping[str, Any]) -> list[str]:
    """The suite's overrides in Snakemake's `--config`; raises `UserError` for a misspelt key that is not a suite's."""
    settings = {key: value for key, value in config.items() if key not in NO_OVERRIDES}
    for key in (key for key in settings if key not in Suite.model_fields):
        if hint := suggestion(key, NO_OVERRIDES):
            raise UserError(f"--config {key}=: unknown key{hint}")
    return as_overrides(settings)


def _reuse_flag(config: Mapping[str, Any]) -> str:
    """The option of a job for `--config reuse=...`; raises `UserError` for another value than true or false."""
    flags = {"true": "--reuse", "false": "--no-reuse"}
    flag = flags.get(str(config.get("reuse", True)).lower())
    if flag is None:
        raise UserError(f"--config reuse={config['reuse']}: write `reuse=false` to run every job, or leave it out.")
    return flag


def _without_fields(text: str) -> str:
    """The text for a format string of Snakemake, in which braces enclose fields."""
    return text.replace("{", "{{").replace("}", "}}")
