"""Section 4.1: supervised fine-tuning of a base policy on action tokens only (eq. 3 to 5)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage
from coevolve.records.episodes import Trajectory
from coevolve.records.training import TrainReport

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs, PlannedJob


def run(job: Job, out: Path) -> TrainReport:
    """Fine-tune from `start` on the experts and write a policy directory; the agent's name decides its seed."""
    from coevolve.chat.chat_template import Renderer
    from coevolve.pipeline.stages.parts.training import tokenize, training_run
    from coevolve.policies import loading
    from coevolve.train import sft

    training = training_run(job, out)
    experts = tokenize(job.records("experts", Trajectory), Renderer(loading.load_tokenizer(training.start)))
    return sft.run_sft(experts, job.suite.sft, training)


def inputs(experts: PlannedJob, start: PlannedJob) -> Inputs:
    """Experts and the policy that fine-tuning starts from."""
    return {"experts": experts["sft.jsonl"], "start": start["policy.json"]}


STAGE = Stage(
    help="Fine-tune the base policies of the target and the failure agent, independently (section 4.1).",
    run=run,
    reads=("models", "sft"),
    files=("policy.json",),
    cost=work.of_setting(lambda suite, of: work.training_work(of.experts * of.tokens * suite.sft.epochs)),
    image="train",
    launchable=True,
)
