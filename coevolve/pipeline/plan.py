"""The plan of a suite: the job of every file, what a job depends on, and what targets need. Imports no torch.

The jobs of iterations are made in `coevolve.pipeline.paper`, those of tables in `coevolve.pipeline.products`.
"""

import contextlib
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from coevolve.config.loading import machine_file
from coevolve.config.machine import Shards
from coevolve.config.restriction import as_dict, digest, restrict
from coevolve.config.suite import Suite, for_method, iterations_of, supports
from coevolve.envs.section import has_module, module_name
from coevolve.errors import UserError, suggestion
from coevolve.pipeline import products
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.registry import ENDS, STAGES
from coevolve.pipeline.stage import MIRROR, PlannedJob, files_by_name, files_of, results_by_name
from coevolve.pipeline.suite_files import UNDIVIDED, SuiteFiles
from coevolve.policies.base import engine_module
from coevolve.records.provenance import Provenance, Workload
from coevolve.storage import code_digest
from coevolve.storage.policy_dir import REF_NAME


@dataclass(frozen=True)
class Plan(SuiteFiles):
    """The jobs of one suite, and their files under `root`."""

    @classmethod
    def on(cls, suite: Suite, machine: str | Path | None, root: str = "results") -> Self:
        """The plan of a suite on a machine, by its name or path; raises as `load_machine`. None: one of no machine."""
        if machine is None:
            return cls(suite, root)
        loaded = load_machine(machine)
        return cls(suite, root, loaded.shards, str(machine_file(machine)), loaded.vllm)

    @functools.cached_property
    def products(self) -> dict[str, PlannedJob]:
        """The jobs of what the suite's page shows, and of the page, by name."""
        return products.products(self)

    def ablation(self, name: str) -> PlannedJob:
        """The job of an ablation's table."""
        return products.ablation_table(self, name)

    def targets(self) -> list[str]:
        """The files of all products and default ablations, which a full run ends with."""
        products = [job for name, job in self.products.items() if name in ENDS]
        jobs = [*products, *map(self.ablation, self.default_ablations())]
        return [path for job in jobs for path in job.files]

    @property
    def page(self) -> Path:
        """The report page of the suite."""
        return Path(self.products["page"].files[0])

    # Which job makes what.

    def job(self, path: str) -> PlannedJob | None:
        """The job that makes a file, by its path; None for a file that comes from outside."""
        makers = self.paper.makers
        if path not in makers and path.startswith(f"{self.home}/"):
            self._make_all()
        return makers.get(path)

    def by_key(self, key: str) -> PlannedJob | None:
        """The job with a key (`PlannedJob.key`); None if the suite has none."""
        if key not in self.paper.jobs:
            self._make_all()
        return self.paper.jobs.get(key)

    def of_record(self, record: Provenance) -> PlannedJob | None:
        """The job whose result a provenance describes; None if the suite, or this version of the kit, has none."""
        root = MIRROR if record.stage in STAGES and STAGES[record.stage].shared else self.home
        names = [root, record.result, *filter(None, [record.wildcards.get("file")])]
        job = self.by_key("/".join(names))
        return job if job and job.stage.name == record.stage else None

    def named(self, stage: str, wildcards: Mapping[str, str]) -> PlannedJob | None:
        """The job of a stage with these wildcards; None if the suite has none."""
        self._make_all()
        jobs = self.paper.jobs.values()
        return next((job for job in jobs if job.stage.name == stage and job.wildcards == wildcards), None)

    def require(self, stage: str, wildcards: Mapping[str, str]) -> PlannedJob:
        """The job of a stage with these wildcards; raises `UserError` if the suite has none."""
        if job := self.named(stage, wildcards):
            return job
        same = [job.wildcards for job in self.paper.jobs.values() if job.stage.name == stage]
        needed = dict.fromkeys(name for names in same[:1] for name in names)
        if missing := [name for name in needed if name not in wildcards]:
            raise UserError(f"stage `{stage}`: which {missing[0]}? Give --on {missing[0]}=NAME.")
        if same and (unknown := [name for name in wildcards if name not in needed]):
            hint = suggestion(unknown[0], needed) or "; leave it out."
            raise UserError(f"stage `{stage}`: --on {unknown[0]}=...: it takes {', '.join(needed) or 'none'}{hint}")
        given = ", ".join(f"{name}={value}" for name, value in wildcards.items())
        problem = f"suite `{self.suite.suite}` has no job with {given}" if given else "the suite has no such job"
        raise UserError(f"stage `{stage}`: {problem}; correct --on.")

    def require_inputs(self, job: PlannedJob, given: Mapping[str, Sequence[str]]) -> None:
        """Raise `UserError` for a given input that the job does not read, or whose files are known by their results."""
        readable = self.input_names(job) if given else []
        for name in given:
            if name not in readable:
                hint = suggestion(name, readable) or f"; it reads {', '.join(readable) or 'no file'}."
                raise UserError(f"stage `{job.stage.name}` has no input `{name}`{hint}")
            if name in results_by_name(job.inputs):
                problem = f"`{name}` are results of a suite; name their folder by --root"
                raise UserError(f"stage `{job.stage.name}`: {problem}.")

    def of_rule(self, stage: str, wildcards: Mapping[str, str]) -> PlannedJob:
        """The job of a stage by the wildcard that Snakemake has for it, `job`; a product has none."""
        if stage in self.products:
            return self.products[stage]
        job = self.by_key(f"{MIRROR if STAGES[stage].shared else self.home}/{wildcards['job']}")
        assert job is not None, wildcards
        return job

    def log(self, job: PlannedJob) -> str:
        """The log file of a job."""
        name = "" if job.stage.name in self.products else f"/{job.name}"
        return f"{self.home}/logs/{job.stage.name}{name}.log"

    def leaves_provenance(self, path: str) -> bool:
        """Whether a job makes the file and leaves `provenance.json` beside it."""
        job = self.job(path)
        return job is not None and job.leaves_provenance

    def jobs(self, targets: Sequence[str] = ()) -> list[PlannedJob]:
        """The jobs that `targets` (a full run's) need, each once, after those that make its inputs.

        Raises `UserError` if a method cannot take as many steps as the other one that it is to be compared with.
        """
        needed: dict[str, PlannedJob] = {}
        waiting = [(job, False) for path in reversed(targets or self.targets()) if (job := self.job(path))]
        while waiting:
            job, inputs_are_listed = waiting.pop()
            if inputs_are_listed:
                _require_equal_steps(self.suite, job)
                needed[job.key] = job
            elif job.key not in needed:
                waiting.append((job, True))
                waiting += [(made, False) for path in files_of(job.inputs) if (made := self.job(path))]
        return list(needed.values())

    def missing_input(self, job: PlannedJob) -> UserError | None:
        """What is wrong if a job reads a file that is missing and that no job makes."""
        for name, paths in files_by_name(job.inputs).items():
            for path in paths:
                if self.job(path) is None and not Path(path).exists():
                    problem = f"input `{name}` of stage `{job.stage.name}` does not exist"
                    return UserError(f"{path}: {problem}; put it there.")
        return None

    def input_names(self, job: PlannedJob) -> list[str]:
        """Names of the inputs that a job can have, whether or not the machine divides rollouts and evaluations."""
        divided = replace(self, shards=Shards(rollout=2, evaluate=2))
        same = (plan.by_key(job.key) for plan in (self, replace(self, shards=UNDIVIDED), divided))
        return list(dict.fromkeys(name for each in same if each for name in each.inputs))

    def _make_all(self) -> None:
        """Make the jobs of every method, product and ablation that the suite can have, once.

        Of a method that the suite does not run, wrong settings are no error.
        """
        if self.paper.is_complete:
            return
        self.paper.is_complete = True
        supported = [method for method in self.suite.recipes if supports(self.suite, method)]
        for method in supported:
            with contextlib.suppress(*([] if method in self.suite.methods else [UserError])):
                self.paper.make([method])
        for name, ablation in self.suite.ablations.items():
            if {*ablation.methods} <= {*supported}:
                with contextlib.suppress(UserError):
                    self.ablation(name)
        products.growth(self)
        _ = self.products

    # What a job depends on.

    def settings(self, job: PlannedJob) -> Suite:
        """The part of the suite that a job may read; jobs with equal names but for seed and iteration share it."""
        sections = [job.wildcards.get(name) for name in ("model", "env", "source", "ablation")]
        key = (job.stage.name, *sections, self._method(job), job.agent, _explores(job))
        if key not in self._known_settings:
            self._known_settings[key] = self._restricted(job)
        return self._known_settings[key]

    @functools.cached_property
    def _known_settings(self) -> dict[tuple[Any, ...], Suite]:
        return {}

    def _method(self, job: PlannedJob) -> str | None:
        """The method whose settings a job has; None for what methods share."""
        return job.branch.method if job.branch and job.branch.method in self.suite.recipes else None

    def _restricted(self, job: PlannedJob) -> Suite:
        names, method = job.wildcards, self._method(job)
        suite = for_method(self.suite, method, job.agent) if method else self.suite
        unread = {"evaluation"} if _explores(job) else set[str]()
        unread |= {"sampler"} if "model" in names and self.suite.models[names["model"]].endpoint else set()
        sections = {"models": "model", "envs": "env", "sources": "source", "ablations": "ablation"}
        entries = {section: names[name] for section, name in sections.items() if name in names}
        entries |= {"recipes": method} if method else {}
        return restrict(suite, [key for key in job.stage.reads if key not in unread], entries)

    def fingerprint(self, job: PlannedJob) -> str:
        """Digest of the config that a job may read and of its code; with its inputs, all that the job depends on."""
        config = as_dict(self.settings(job))
        if job.stage.pin:
            return job.stage.pin(config, job.wildcards)
        return f"{digest(config)}-{self.code(job)}"

    def code(self, job: PlannedJob) -> str:
        """Digest of the code a job can reach from its `starts`."""
        return code_digest.code_digest(*self.starts(job))

    def starts(self, job: PlannedJob) -> tuple[str, ...]:
        """What a job's code starts from: `run` of its stage, its engine, and modules of the environments it reads.

        Of an environment's package they are `config` and the modules that the stage declares.
        """
        sections = [self.suite.envs[job.wildcards["env"]]] if "env" in job.wildcards else self.suite.envs.values()
        kinds = [section.kind for section in sections if "envs" in job.stage.reads]
        names = ("config", *job.stage.modules)
        of_kinds = (module_name(kind, name) for kind in kinds for name in names if has_module(kind, name))
        engine = self.engine(job)
        return f"{job.stage.module}.{job.stage.function}", *([engine_module(engine)] if engine else []), *of_kinds

    def engine(self, job: PlannedJob) -> str | None:
        """The engine that plays in a job; None: the stage declares none, and plays with the built-in one if at all."""
        plays = job.stage.plays
        return plays(self.settings(job), job.wildcards["model"]) if plays else None

    def changed_since(self, record: Provenance) -> list[str]:
        """What changed since the provenance was written: `settings` (or the suite has no such job), `code`, or both."""
        job = self.of_record(record)
        if job is None:
            return ["settings"]
        config = as_dict(self.settings(job))
        if pin := job.stage.pin:  # what is fetched is pinned, whatever code fetched it
            try:
                before = pin(record.config, job.wildcards)
            except KeyError:  # an older version of the kit did not record this pin
                before = ""
            return ["settings"] if pin(config, job.wildcards) != before else []
        differs = {
            "settings": digest(config) != record.config_digest,
            "code": self.code(job) != record.code_digest,
        }
        return [name for name, is_other in differs.items() if is_other]

    # The policies that jobs make and read, and what a job costs.

    def policies_read(self, job: PlannedJob) -> list[str]:
        """The `policy.json` of each policy whose weights a job reads."""
        return [path for path in dict.fromkeys(files_of(job.inputs)) if Path(path).name == REF_NAME]

    def is_last(self, job: PlannedJob) -> bool:
        """Whether a job belongs to the target after the last iteration of its row, which no iteration trains on."""
        branch = job.branch
        if branch is None or not branch.iteration or job.agent != "target":
            return False
        return branch.iteration >= iterations_of(self.suite, job.wildcards["env"], branch.method)

    def keeps_weights(self, policy: str) -> bool:
        """Whether a policy, named by its `policy.json`, keeps its weights: a base policy, the last of a row, adapters.

        Adapters are small, and all policies that are trained from them need them.
        """
        job = self.job(policy)
        if job is None or job.branch is None or not job.branch.iteration or self.is_last(job):
            return True
        return self.suite.models[job.wildcards["model"]].lora is not None

    def workload(self, job: PlannedJob) -> Workload:
        """Estimated work of a job; a job that joins parts has none."""
        return Workload() if "parts" in job.inputs else job.stage.cost(self.suite, job)


def _explores(job: PlannedJob) -> bool:
    """Whether a job plays a shard of an exploration, which reads no settings of evaluations."""
    return job.wildcards.get("whole", "eval") != "eval"


def _require_equal_steps(suite: Suite, job: PlannedJob) -> None:
    """Raise `UserError` if the steps of one epoch, or the epochs, differ between a method and that of `steps_like`."""
    if "steps_like" not in job.inputs:
        return
    method = job.subject.branch.method
    settings = for_method(suite, method, "target").dpo
    other = str(settings.steps_like)
    for name, key in itertools.product(suite.recipes[other].agents, ("epochs", "batch_size")):
        if getattr(settings, key) != (value := getattr(for_method(suite, other, name).dpo, key)):
            setting = f"recipes.{method}.settings.dpo.{key}"
            raise UserError(f"{setting}: the row takes the steps of `{other}`, which has {value}; set it to {value}.")
