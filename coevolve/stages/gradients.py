"""The gradient of each pair kind before and after one agent's preference training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from coevolve.errors import UserError
from coevolve.progress import Progress
from coevolve.records.gradients import GradientReport
from coevolve.run.job import Job
from coevolve.stages.parts.training import training_run
from coevolve.stages.parts.training_pairs import job_pairs
from coevolve.storage import files
from coevolve.train import gradients


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `gradients.json`: the gradient of eq. 9 by pair kind, at the policy in `start` and at the trained one.

    One process. Adapters start with the random numbers of the training's own. Raises `UserError` if the suite measures
    no gradients.
    """
    limit = job.suite.gradients.pairs
    if limit is None:
        raise UserError("`gradients.pairs` is null; set it to the number of pairs of each kind that are measured.")
    training = training_run(replace(job, stage="train"), out)
    pairs = job_pairs(job, training.start)
    points = {
        name: gradients.measure(
            pairs,
            job.suite.dpo,
            replace(training, start=start),
            limit=limit,
            iteration=job.branch.iteration,
            reference=job.file("reference").parent if "reference" in job.inputs else None,
            progress=Progress(f"pairs at the {name}").report,
        )
        for name, start in (("start", training.start), ("end", job.file("policy").parent))
    }
    report = GradientReport(adapters=training.lora is not None, **points)
    files.write_json(out / "gradients.json", report.model_dump(mode="json"))
    return {"measured_pairs": sum(kind.measured_pairs for kind in report.start.kinds)}
