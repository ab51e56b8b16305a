"""A job as a file: all that its process needs. The plan writes it, and the process loads no suite and plans nothing.

The jobs of a run lie in `.jobs` in the folder of the suite's results, which all nodes of a cluster see, and outside of
the results, which are replaced as a whole; those of downloads in `data/mirror/.jobs`. That of a person's `coevolve
stage` lies in the job's work folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coevolve.config.restriction import as_dict, digest, part_of, whole
from coevolve.errors import UserError
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.job import NO_BRANCH, seed_of
from coevolve.pipeline.stage import Inputs, PlannedJob, files_by_name, results_by_name
from coevolve.policies.settings import VllmDevices
from coevolve.records.base import SCHEMA_VERSION, Record
from coevolve.records.evaluation import ResultFile
from coevolve.records.provenance import Workload
from coevolve.storage import files

if TYPE_CHECKING:
    from coevolve.pipeline.plan import Plan

#: The folder of a run's jobs in that of the suite's results.
FOLDER = ".jobs"
PLAN_ANEW = "run the same snakemake command again, which plans it anew"


class Pin(Record):
    """The sha256 of an input that a config key names."""

    key: str
    sha256: str


class JobFile(Record):
    """A planned job. Its result goes to `out`; `folder` is where the suite has it, `result` is that below the suite.

    `inputs` are files by name; `results` are those of them that are given with what they are results of. `settings` are
    the sections that the job may read. It runs the first of its `starts`; `code_digest` is of all code that these can
    reach, the `fingerprint` of settings and code; of a `pinned` job, of the settings alone. Another suite's result can
    be taken if it is `reusable`, with its `files`. Beside each of the inputs `made` is the provenance of the job that
    made it.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    stage: str
    wildcards: dict[str, str]
    branch_parts: tuple[str, int, int] | None
    result: str
    folder: str
    out: str
    inputs: dict[str, list[str]]
    results: dict[str, list[ResultFile]]
    made: list[str]
    pins: dict[str, Pin]
    settings: dict[str, Any]
    config_digest: str
    starts: list[str]
    code_digest: str
    fingerprint: str
    pinned: bool
    reusable: bool
    network: bool
    files: list[str]
    protocol: str
    workload: Workload | None
    vllm: VllmDevices

    @classmethod
    def of(cls, plan: Plan, job: PlannedJob, given: Inputs | None = None, out: Path | None = None) -> JobFile:
        """The file of a job; a person can give other inputs and another folder for its result."""
        from coevolve.pipeline.registry import ENDS  # of the plan's side: a job's process imports its own stage
        from coevolve.pipeline.required_files import required_files

        inputs, suite, branch = given or job.inputs, plan.settings(job), job.branch
        by_name = files_by_name(inputs)
        read = {path for paths in by_name.values() for path in paths}
        makers = {path: plan.job(path) for path in read} if out is None else {}
        pins = {file.path: file for file in required_files(plan.suite) if file.sha256}
        try:
            workload = plan.workload(job)
        except UserError:  # without `expected` there is no estimate, and only a cost report needs one
            workload = None
        return cls(
            stage=job.stage.name,
            wildcards=job.wildcards,
            branch_parts=branch and (branch.method, branch.seed, branch.iteration),
            result=job.result,
            folder=job.folder,
            out=str(out or job.folder),
            inputs=by_name,
            results=results_by_name(inputs),
            made=sorted(path for path, maker in makers.items() if maker and maker.leaves_provenance),
            pins={path: Pin(key=pins[path].key, sha256=pins[path].sha256) for path in sorted(read & pins.keys())},
            settings=whole(suite),
            config_digest=digest(as_dict(suite)),
            starts=list(plan.starts(job)),
            code_digest=plan.code(job),
            fingerprint=plan.fingerprint(job),
            pinned=job.stage.pin is not None,
            reusable=not job.stage.shared and job.stage.name not in ENDS,
            network=job.stage.network,
            files=list(job.names),
            protocol=plan.suite.protocol,
            workload=workload,
            vllm=plan.vllm,
        )

    @property
    def branch(self) -> Branch:
        """The job's method, seed and iteration."""
        return Branch(*self.branch_parts) if self.branch_parts else NO_BRANCH

    def identity(self, hashes: Mapping[str, str]) -> dict[str, Any]:
        """The job's provenance as far as it is known before the job runs, with the sha256 of each input."""
        seed = seed_of(self.stage, self.branch, self.wildcards)
        return {
            "stage": self.stage,
            "wildcards": self.wildcards,
            "result": self.result,
            "config": as_dict(part_of(self.settings)),
            "config_digest": self.config_digest,
            "code_digest": self.code_digest,
            "protocol": self.protocol,
            "seeds": {"suite": self.branch.seed, "job": seed} if self.branch_parts else {},
            "inputs": dict(hashes),
            "workload": self.workload,
        }

    def write(self, path: Path) -> None:
        """Write the file."""
        files.write_bytes(path, self.model_dump_json(indent=1).encode() + b"\n")

    @classmethod
    def read(cls, path: Path) -> JobFile:
        """The job in a file; raises `UserError` if it is none that this version of the kit wrote."""
        try:
            return cls.from_json(files.read_bytes(path))
        except ValueError:
            raise UserError(f"{path}: not a job of this version of the kit; {PLAN_ANEW}.") from None


def planned_file(job: PlannedJob) -> Path:
    """Where the plan of a run writes a job; what suites share has one file for all of them."""
    return Path(job.root, FOLDER, f"{job.name}.json")
