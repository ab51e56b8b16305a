"""The histories of trainings, for the report's figure."""

from collections.abc import Iterable, Iterator

from coevolve.pipeline.branch import Branch, agent_of
from coevolve.records.provenance import Provenance
from coevolve.records.training import TrainReport
from coevolve.report.training_figure import TrainingCurve


def trainings(jobs: Iterable[Provenance]) -> Iterator[TrainingCurve]:
    """The histories of the trainings among finished jobs."""
    for job in jobs:
        if isinstance(job.notes, TrainReport) and job.notes.history:
            branch = Branch.parse(job.wildcards["branch"])
            yield TrainingCurve(
                model=job.wildcards["model"],
                env=job.wildcards["env"],
                agent=agent_of(job.wildcards),
                **vars(branch),
                history=job.notes.history,
                gold=job.notes.gold,
            )
