"""Rejection sampling fine-tuning: a base policy, trained from its start on experts and the agent's successes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage
from coevolve.pipeline.stages import sft
from coevolve.records.training import TrainReport

if TYPE_CHECKING:
    from coevolve.config.suite import Suite
    from coevolve.pipeline.stage import Inputs, PlannedJob
    from coevolve.records.provenance import Workload


def run(job: Job, out: Path) -> TrainReport:
    """Fine-tune from `start` on `selected` as the stage `sft` does on experts; sampled turns keep their token ids."""
    return sft.run(replace(job, inputs={**job.inputs, "experts": job.inputs["selected"]}), out)


def inputs(selected: PlannedJob, start: PlannedJob) -> Inputs:
    """Selected trajectories and the policy that fine-tuning starts from."""
    return {"selected": selected["selected.jsonl"], "start": start["policy.json"]}


def cost(suite: Suite, job: PlannedJob) -> Workload:
    """All epochs over the experts and the expected successes, as far as the method selects them."""
    configured, expected = work.setting(suite, job)
    explores = suite.recipes[job.subject.branch.method].agents["target"].explores
    successes = expected.explore * configured.rollout.k * (1 - expected.failures) if explores else 0.0
    experts = expected.experts + (expected.explore if configured.selection.experts == "all" else 0)
    experts *= configured.selection.with_experts
    return work.training_work((experts + successes) * expected.tokens * configured.sft.epochs)


STAGE = Stage(
    help="Fine-tune a base policy on the selected trajectories (RFT).",
    run=run,
    reads=("models", "sft"),
    files=("policy.json",),
    cost=cost,
    image="train",
    launchable=True,
)
