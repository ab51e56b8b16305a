"""The jobs of a plan whose results other suites have: known before a run, as `coevolve.pipeline.reuse` takes them."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from coevolve.pipeline.plan import JobKey, Plan
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.stage import files_of
from coevolve.follow.forecast import JobId, job_id
from coevolve.records.provenance import Provenance
from coevolve.pipeline import reuse, run_stage
from coevolve.pipeline.required_files import recorded_sha256
from coevolve.storage import files


class Reusable:
    """Finds another suite's result of a job, also where its inputs are themselves results that will be reused."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._taken: dict[JobId, tuple[Path, Provenance] | None] = {}

    def source(self, job: JobKey) -> str | None:
        """The folder of the suite whose result an unfinished job will take; None if it will run."""
        taken = self._of(job)
        return taken[0].as_posix().removesuffix(f"/{taken[1].result}") if taken else None

    def sentence(self, jobs: Iterable[JobKey]) -> str:
        """Such as `94 of 129 jobs reuse results of results/smoke`; empty if none does."""
        every = list(jobs)
        counts = Counter(filter(None, map(self.source, every)))
        if not counts:
            return ""
        return f"{counts.total():,} of {len(every):,} jobs reuse results of {', '.join(counts)}"

    def _of(self, job: JobKey) -> tuple[Path, Provenance] | None:
        key = job_id(*job)
        if key not in self._taken:
            self._taken[key] = None
            self._taken[key] = self._search(*job)
        return self._taken[key]

    def _search(self, stage: str, wildcards: dict[str, str]) -> tuple[Path, Provenance] | None:
        declared, out = STAGES[stage], Path(self._plan.folder(stage, wildcards))
        if not declared.reusable or not Path(self._plan.home).parent.is_dir():
            return None
        given = self._plan.inputs(stage, wildcards)
        hashes = {Path(path): self._sha256(path) for path in files_of(given)}
        if not all(hashes.values()):
            return None
        job = run_stage.job_of(self._plan, stage, wildcards, given, out, 1)
        return next(reuse.candidates(run_stage.identity(self._plan, job, hashes), out), None)

    def _sha256(self, path: str) -> str:
        """The hash of a file that is there, or that a reused result will have; empty if it is not known."""
        if Path(path).exists():
            return recorded_sha256(Path(path)) or files.sha256(Path(path))
        maker = self._plan.maker(path)
        taken = self._of(maker) if maker else None
        return taken[1].outputs.get(Path(path).name, "") if taken else ""
