"""The jobs of a plan whose results other suites have: known before a run, as `coevolve.pipeline.reuse` takes them."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from coevolve.pipeline import reuse
from coevolve.pipeline.job_file import JobFile
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.required_files import recorded_sha256
from coevolve.pipeline.stage import PlannedJob, files_of
from coevolve.records.provenance import Provenance
from coevolve.storage import files


class Reusable:
    """Finds another suite's result of a job, also where its inputs are themselves results that will be reused."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._taken: dict[str, tuple[Path, Provenance] | None] = {}

    def source(self, job: PlannedJob) -> str | None:
        """The folder of the suite whose result an unfinished job will take; None if it will run."""
        taken = self._of(job)
        return taken[0].as_posix().removesuffix(f"/{taken[1].result}") if taken else None

    def sentence(self, jobs: Iterable[PlannedJob]) -> str:
        """Such as `94 of 129 jobs reuse results of results/smoke`; empty if none does."""
        every = list(jobs)
        counts = Counter(filter(None, map(self.source, every)))
        if not counts:
            return ""
        return f"{counts.total():,} of {len(every):,} jobs reuse results of {', '.join(counts)}"

    def _of(self, job: PlannedJob) -> tuple[Path, Provenance] | None:
        key = job.key
        if key not in self._taken:
            self._taken[key] = None
            self._taken[key] = self._search(job)
        return self._taken[key]

    def _search(self, job: PlannedJob) -> tuple[Path, Provenance] | None:
        planned = JobFile.of(self._plan, job)
        if not planned.reusable or not Path(self._plan.home).parent.is_dir():
            return None
        hashes = {path: self._sha256(path) for path in files_of(job.inputs)}
        if not all(hashes.values()):
            return None
        return next(reuse.candidates(planned.identity(hashes), Path(job.folder)), None)

    def _sha256(self, path: str) -> str:
        """The hash of a file that is there, or that a reused result will have; empty if it is not known."""
        if Path(path).exists():
            return recorded_sha256(Path(path)) or files.sha256(Path(path))
        maker = self._plan.job(path)
        taken = self._of(maker) if maker else None
        return taken[1].outputs.get(Path(path).name, "") if taken else ""
