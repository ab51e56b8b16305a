"""The DAG: every stage's jobs with their inputs, outputs and digests. Imports no torch, so a dry run is quick."""

import functools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coevolve.config.derived.methods import for_method
from coevolve.config.derived.protocol import grpo_engine
from coevolve.config.derived.sizes import parts
from coevolve.config.kinds import has_module, module_name
from coevolve.config.machine import Shards
from coevolve.config.names import ComputeDtype
from coevolve.config.restriction import as_dict, digest, restrict
from coevolve.config.suite import Suite
from coevolve.dag.branch import Branch, agent_of
from coevolve.dag.layout import MIRROR, UNDIVIDED, Layout
from coevolve.dag.rules import STAGES
from coevolve.dag.rules.page import PAGE
from coevolve.dag.rules.products import ABLATION
from coevolve.dag.rules.train import SCORED
from coevolve.dag.stage import Inputs, Stage, Wildcards, files_by_name, files_of
from coevolve.errors import UserError
from coevolve.policies.engines import engine_module
from coevolve.records.provenance import Provenance, Workload
from coevolve.storage import code_digest
from coevolve.storage.files import PROVENANCE
from coevolve.storage.policy_dir import REF_NAME

#: A stage, and the wildcards of one of its jobs.
JobKey = tuple[str, dict[str, str]]


@dataclass(frozen=True)
class Plan(Layout):
    """The jobs of one suite, and their files under `root`."""

    def targets(self) -> list[str]:
        """The files of all products and default ablations, which a full run ends with."""
        products = [path for name, stage in STAGES.items() if stage.product for path in self.files(name, {})]
        return [*products, *(path for name in self.default_ablations() for path in self.tables(name))]

    def default_ablations(self) -> list[str]:
        """The ablations whose tables a full run makes."""
        return [name for name, ablation in self.suite.ablations.items() if ablation.default]

    def tables(self, ablation: str) -> list[str]:
        """The files of an ablation."""
        return self.files(ABLATION.name, {"ablation": ablation})

    def inputs(self, stage: str, wildcards: Wildcards) -> Inputs:
        """Input files of a job by name."""
        declared = STAGES[stage]
        inputs = declared.inputs(self, wildcards)
        if declared.history is None:
            return inputs
        jobs = self.jobs(declared.history(self, wildcards))
        leaving = [job for job in jobs if STAGES[job[0]].leaves_provenance]
        return inputs | {"provenance": sorted(f"{self.folder(*job)}/{PROVENANCE}" for job in leaving)}

    def has_job(self, stage: str, wildcards: Wildcards) -> bool:
        """Whether stage and wildcards, perhaps of another version of the kit, are those of a job of the suite."""
        if stage not in STAGES or not wildcards.keys() >= {*STAGES[stage].wildcards}:
            return False
        branch = Branch.parse(wildcards.get("branch", ""))
        if branch.iteration:
            recipe = self.suite.recipes.get(branch.method)
            if recipe is None or agent_of(wildcards) not in recipe.agents:
                return False
        path = self.files(stage, {"file": "any", **wildcards})[0]
        return any(pattern.fullmatch(path) for owner, pattern in self._patterns if owner == stage)

    def input_names(self, stage: str, wildcards: Wildcards) -> list[str]:
        """Names of the inputs that a job can have, whether or not the machine divides rollouts and evaluations."""
        divided = replace(self, shards=Shards(rollout=2, evaluate=2))
        names = [name for plan in (replace(self, shards=UNDIVIDED), divided) for name in plan.inputs(stage, wildcards)]
        return list(dict.fromkeys(names))

    def outputs(self, stage: str) -> list[str]:
        """Output patterns of a stage, with Snakemake's wildcards and their constraints."""
        folder, constraints = f"{self._root(stage)}/{STAGES[stage].folder}", self._constraints(STAGES[stage])
        paths = [f"{folder}/{name}" for name in STAGES[stage].outputs]
        return [re.sub(r"\{(\w+)\}", lambda m: f"{{{m[1]},{constraints[m[1]]}}}", path) for path in paths]

    def log(self, stage: str) -> str:
        """The log file of a stage's jobs, with Snakemake's wildcards."""
        names = re.findall(r"\{(\w+),", self.outputs(stage)[0])
        return f"{self.home}/logs/{stage}{'/' if names else ''}{'.'.join(f'{{{name}}}' for name in names)}.log"

    def arguments(self, stage: str, wildcards: Wildcards) -> str:
        """Arguments of a job after `coevolve stage <stage> --suite ...`, for bash. The job makes its inputs' names."""
        on = [f"--on {shlex.quote(f'{name}={value}')}" for name, value in wildcards.items()]
        inputs = digest(files_by_name(self.inputs(stage, wildcards)))
        return " ".join([f"--out {shlex.quote(self.folder(stage, wildcards))}", *on, f"--inputs {inputs}"])

    @property
    def page(self) -> Path:
        """The report page of the suite."""
        return Path(self.files(PAGE.name, {})[0])

    def files(self, stage: str, wildcards: Wildcards) -> list[str]:
        """The files of a job, without its provenance."""
        return [f"{self.folder(stage, wildcards)}/{name.format_map(wildcards)}" for name in STAGES[stage].files]

    def folder(self, stage: str, wildcards: Wildcards) -> str:
        """The folder of a job's files."""
        return f"{self._root(stage)}/{STAGES[stage].folder.format_map(dict(wildcards))}"

    def fingerprint(self, stage: str, wildcards: Wildcards) -> str:
        """Digest of the config that a job may read and of its code; with its inputs, all that the job depends on."""
        config = as_dict(self.restricted(stage, wildcards))
        if declared := STAGES[stage].digest:
            return declared(config, wildcards)
        return f"{digest(config)}-{self.code(stage, wildcards)}"

    def code(self, stage: str, wildcards: Wildcards) -> str:
        """Digest of the code a job can reach: its `modules`, and all that these import."""
        return code_digest.code_digest(*self.modules(stage, wildcards))

    def modules(self, stage: str, wildcards: Wildcards) -> tuple[str, ...]:
        """The modules that a job starts from: its stage's, its engine's, and those of the environments that it reads.

        Of an environment's package they are `config` and the modules that the stage declares.
        """
        declared = STAGES[stage]
        sections = [self.suite.envs[wildcards["env"]]] if "env" in wildcards else self.suite.envs.values()
        kinds = [section.kind for section in sections if "envs" in declared.reads]
        names = ("config", *declared.environment)
        of_kinds = (module_name(kind, name) for kind in kinds for name in names if has_module(kind, name))
        engine = self.engine(stage, wildcards)
        return declared.module, *([engine_module(engine)] if engine else []), *of_kinds

    def engine(self, stage: str, wildcards: Wildcards) -> str | None:
        """The engine that plays in a job; None: the stage declares none, and plays with the built-in one if at all."""
        plays = STAGES[stage].plays
        return plays(self.restricted(stage, wildcards), wildcards["model"]) if plays else None

    def image(self, stage: str) -> str:
        """The name of the container image of a stage's jobs; empty: none."""
        if STAGES[stage].plays is grpo_engine:
            suites = (self.suite, *(for_method(self.suite, method) for method in self.suite.recipes))
            if any(suite.grpo.engine for suite in suites):
                return "online"
        return STAGES[stage].image

    def policies_read(self, stage: str, wildcards: Wildcards) -> list[str]:
        """The `policy.json` of each policy whose weights a job reads."""
        read = files_of(STAGES[stage].inputs(self, wildcards))
        return [path for path in dict.fromkeys(read) if Path(path).name == REF_NAME]

    def keeps_weights(self, policy: str) -> bool:
        """Whether a policy, named by its `policy.json`, keeps its weights: a base policy, the last of a row, adapters.

        Adapters are small, and all policies that are trained from them need them.
        """
        maker = self.maker(policy)
        if maker is None or not Branch.parse(maker[1]["branch"]).iteration or self.is_last(maker[1]):
            return True
        return self.suite.models[maker[1]["model"]].lora is not None

    def changed_since(self, record: Provenance) -> list[str]:
        """What changed since the provenance was written: `settings` (or the suite has no such job), `code`, or both."""
        stage, wildcards = record.stage, record.wildcards
        if not self.has_job(stage, wildcards):
            return ["settings"]
        config = as_dict(self.restricted(stage, wildcards))
        if pinned := STAGES[stage].digest:  # what is fetched is pinned, whatever code fetched it
            try:
                before = pinned(record.config, wildcards)
            except KeyError:  # an older version of the kit did not record this pin
                before = ""
            return ["settings"] if pinned(config, wildcards) != before else []
        differs = {
            "settings": digest(config) != record.config_digest,
            "code": self.code(stage, wildcards) != record.code_digest,
        }
        return [name for name, is_other in differs.items() if is_other]

    def restricted(self, stage: str, wildcards: Wildcards) -> Suite:
        """The part of the suite a job may read."""
        method = Branch.parse(wildcards["branch"]).method if "branch" in wildcards else None
        method = method if method in self.suite.recipes else None
        names = {"models": wildcards.get("model"), "envs": wildcards.get("env"), "sources": wildcards.get("source")}
        names |= {"ablations": wildcards.get("ablation"), "recipes": method}
        entries = {key: name for key, name in names.items() if name is not None}
        suite = for_method(self.suite, method, agent_of(wildcards)) if method else self.suite
        if not self.final_dtype(stage, wildcards):
            models = {name: model.model_copy(update={"final_dtype": None}) for name, model in suite.models.items()}
            suite = suite.model_copy(update={"models": models})
        unread = {"evaluation"} if wildcards.get("whole", "eval") != "eval" else set()
        unread |= {"sampler"} if "model" in wildcards and self.suite.models[wildcards["model"]].endpoint else set()
        return restrict(suite, [key for key in STAGES[stage].reads if key not in unread], entries)

    def final_dtype(self, stage: str, wildcards: Wildcards) -> ComputeDtype:
        """The type of the weights that a job writes, if it makes the last target of a row and the model names one."""
        is_last = REF_NAME in STAGES[stage].files and self.is_last(wildcards)
        return self.suite.models[wildcards["model"]].final_dtype if is_last else None

    def workload(self, stage: str, wildcards: Wildcards) -> Workload:
        """Estimated work of a job; a job that joins parts has none."""
        joins = parts(self.shards, stage, wildcards.get("env", "")) is not None
        return Workload() if joins else STAGES[stage].workload(self, wildcards)

    def jobs(self, targets: Sequence[str] = ()) -> Iterator[JobKey]:
        """Every (stage, wildcards) that `targets` (a full run's) need, each once, consumers before producers."""
        waiting, seen = list(targets) or self.targets(), set[tuple[str, ...]]()
        while waiting:
            maker = self.maker(waiting.pop())
            if maker is None:
                continue
            stage, wildcards = maker
            key = (stage, *wildcards.values())
            if key in seen:
                continue
            seen.add(key)
            yield stage, wildcards
            waiting += files_of(self.inputs(stage, wildcards))

    def unfinished(self, targets: Sequence[str] = ()) -> list[JobKey]:
        """The jobs that `targets` (a full run's) need without all of their files."""
        return [job for job in self.jobs(targets) if not all(map(os.path.exists, self.files(*job)))]

    def maker(self, path: str) -> JobKey | None:
        """The stage and wildcards that make a file; None for a file that comes from outside."""
        if path not in self._makers:
            matches = ((stage, pattern.fullmatch(path)) for stage, pattern in self._patterns)
            self._makers[path] = next(((stage, match.groupdict()) for stage, match in matches if match), None)
        made = self._makers[path]
        return made and (made[0], {**made[1]})

    def leaves_provenance(self, path: str) -> bool:
        """Whether a stage makes the file and leaves `provenance.json` beside it as an output of the same job."""
        maker = self.maker(path)
        return maker is not None and STAGES[maker[0]].leaves_provenance

    def checked_inputs(self, stage: str, wildcards: Wildcards) -> Inputs:
        """`inputs`; raises `UserError` if one of them is missing that no stage makes."""
        inputs = self.inputs(stage, wildcards)
        for name, paths in files_by_name(inputs).items():
            for path in paths:
                if not Path(path).exists() and self.maker(path) is None:
                    raise UserError(f"{path}: input `{name}` of stage `{stage}` does not exist; put it there.")
        return inputs

    @functools.cached_property
    def _makers(self) -> dict[str, JobKey | None]:
        """What makes the files that were asked for: most are inputs of many jobs."""
        return {}

    @functools.cached_property
    def _patterns(self) -> list[tuple[str, re.Pattern[str]]]:
        """Regular expressions of the files of all stages, with groups that are called like the wildcards."""
        patterns = [(stage, pattern) for stage in STAGES for pattern in self.outputs(stage)]
        return [(stage, re.compile(re.sub(r"\{(\w+),([^}]*)\}", r"(?P<\1>\2)", each))) for stage, each in patterns]

    def _constraints(self, stage: Stage) -> dict[str, str]:
        """Regular expressions of the wildcards of a stage's files."""
        return {
            "model": _any(self.suite.models),
            "env": _any(self.suite.envs),
            "source": _any(self.suite.sources),
            "agent": "target|failure",
            "ablation": _any(self.suite.ablations),
            "branch": "|".join(self._branches(stage)),
            "file": r"[^/]+",
            "part": r"\d+of\d+",
            "whole": "rollout/target|rollout/failure|eval",
            "of": "|".join(SCORED),
        }

    def _branches(self, stage: Stage) -> Iterator[str]:
        """Patterns of the branches that a stage works on."""
        if stage.branches:
            yield stage.branches
        if stage.learns:
            methods = [name for name, recipe in self.suite.recipes.items() if recipe.learns in stage.learns]
            yield rf"(?:{_any(methods)})/seed\d+/iter[1-9]\d*"
        if stage.evaluates:
            methods = [name for name in self.suite.recipes if self.evaluates_alone(name)]
            yield rf"(?:{_any(methods)})/seed\d+"

    def _root(self, stage: str) -> str:
        return MIRROR if STAGES[stage].shared else self.home


def _any(names: Iterable[str]) -> str:
    """A pattern of any of the names, and of nothing where there are none."""
    return "|".join(map(re.escape, names)) or "(?!)"
