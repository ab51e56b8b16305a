"""Language modelling on all tokens, for tiny models: their replacement for the pre-training of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from coevolve.chat.chat_template import Renderer
from coevolve.policies import loading
from coevolve.train import sft
from coevolve.types import TrainReport, Trajectory
from coevolve.workflow.job import Job
from coevolve.workflow.training import limit_threads, tokenize


def run(job: Job, out: Path) -> TrainReport:
    """Train from `start` on the corpus and write a policy directory."""
    limit_threads(job)
    start = job.policy("start")
    corpus = tokenize(job.records("corpus", Trajectory), Renderer(loading.load_tokenizer(start)))
    config = job.model.pretrain
    assert config is not None, "the plan asks for pre-training of tiny models only"
    return sft.run_pretrain(
        corpus,
        start=start,
        config=config,
        context=job.model.context,
        seed=job.seed,
        out=out,
        work=job.work,
    )
