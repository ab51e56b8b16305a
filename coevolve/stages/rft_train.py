"""Rejection sampling fine-tuning: a base policy, trained from its start on experts and the agent's successes."""

from dataclasses import replace
from pathlib import Path

from coevolve.records.training import TrainReport
from coevolve.run.job import Job
from coevolve.stages import sft


def run(job: Job, out: Path) -> TrainReport:
    """Fine-tune from `start` on `selected` as the stage `sft` does on experts; sampled turns keep their token ids."""
    return sft.run(replace(job, inputs={**job.inputs, "experts": job.inputs["selected"]}), out)
