"""Language modelling on all tokens, for tiny models: their replacement for the pre-training of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage
from coevolve.records.episodes import Trajectory
from coevolve.records.training import TrainReport

if TYPE_CHECKING:
    from coevolve.config.suite import Suite
    from coevolve.pipeline.stage import Inputs, PlannedJob
    from coevolve.records.provenance import Workload


def run(job: Job, out: Path) -> TrainReport:
    """Train from `start` on the corpus and write a policy directory."""
    from coevolve.chat.chat_template import Renderer
    from coevolve.pipeline.stages.parts.training import tokenize, training_run
    from coevolve.policies import loading
    from coevolve.train import sft

    training, config = training_run(job, out), job.model.pretrain
    corpus = tokenize(job.records("corpus", Trajectory), Renderer(loading.load_tokenizer(training.start)))
    assert config is not None, "the plan asks for pre-training of tiny models only"
    return sft.run_pretrain(corpus, config, training)


def inputs(corpus: PlannedJob, start: PlannedJob) -> Inputs:
    """A corpus and the untrained policy, which all seeds share or of which each has its own."""
    return {"corpus": corpus["sft.jsonl"], "start": start["policy.json"]}


def cost(suite: Suite, job: PlannedJob) -> Workload:
    """All epochs over the experts and the sequences that repeat themselves."""
    _, expected = work.setting(suite, job)
    config = suite.models[job.subject.model].pretrain
    return work.training_work(expected.experts * expected.tokens * config.epochs if config else 0)


STAGE = Stage(
    help="Pre-train a randomly initialised model on language modelling.",
    run=run,
    reads=("models",),
    files=("policy.json",),
    cost=cost,
    image="train",
    launchable=True,
)
