"""Rejection sampling fine-tuning: a base policy again, from its start, on experts and own successes together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from coevolve.stages import sft
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Fine-tune from `start` on `selected` as the stage `sft` does on experts; own turns keep their sampled ids."""
    return sft.run(replace(job, inputs={**job.inputs, "experts": job.inputs["selected"]}), out)
