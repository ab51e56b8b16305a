"""The gradient of each pair kind before and after one agent's preference training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.errors import UserError
from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage
from coevolve.progress import Progress
from coevolve.records.gradients import GradientReport
from coevolve.storage import files

if TYPE_CHECKING:
    from coevolve.config.suite import Suite
    from coevolve.pipeline.stage import Inputs, PlannedJob
    from coevolve.records.provenance import Workload


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `gradients.json`: the gradient of eq. 9 by pair kind, at the policy in `start` and at the trained one.

    One process. Adapters start with the random numbers of the training's own. Raises `UserError` if the suite measures
    no gradients.
    """
    from coevolve.pipeline.stages.parts.training import training_run
    from coevolve.pipeline.stages.parts.training_pairs import job_pairs
    from coevolve.train import gradients

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


def inputs(training: Inputs, policy: PlannedJob) -> Inputs:
    """The inputs of `train` that its loss depends on, and the trained policy."""
    return {name: files for name, files in training.items() if name != "steps_like"} | {"policy": policy["policy.json"]}


def cost(suite: Suite, job: PlannedJob) -> Workload:
    """A forward and two backward passes (one for each part of eq. 9) over the measured pairs, at two policies."""
    from coevolve.config.models import FORWARD, TRAIN
    from coevolve.records.provenance import Workload

    configured, expected = work.setting(suite, job)
    forward, backward = 1 + (work.reference_passes(configured.dpo) > 0), 2
    passes = (forward * FORWARD + backward * (TRAIN - FORWARD)) / TRAIN
    limit = configured.gradients.pairs or 0
    of_kinds = work.expected_pairs(configured, job.subject.branch, job.agent, expected)
    tokens = sum(min(limit, pairs) for pairs in of_kinds.values()) * 2 * expected.tokens
    return Workload(train=2 * passes * tokens, starts=tokens > 0)


STAGE = Stage(
    help="Measure the gradient of each pair kind before and after a preference training.",
    run=run,
    reads=("models", "dpo", "gradients"),
    files=("gradients.json",),
    cost=cost,
    image="train",
)
