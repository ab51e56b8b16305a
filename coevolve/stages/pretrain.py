"""Language modelling on all tokens, for tiny models: their replacement for the pre-training of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from coevolve.chat.chat_template import Renderer
from coevolve.policies import loading
from coevolve.train import sft
from coevolve.types import TrainReport, Trajectory
from coevolve.workflow.job import Job
from coevolve.workflow.training import tokenize, training_run


def run(job: Job, out: Path) -> TrainReport:
    """Train from `start` on the corpus and write a policy directory."""
    training, config = training_run(job, out), job.model.pretrain
    corpus = tokenize(job.records("corpus", Trajectory), Renderer(loading.load_tokenizer(training.start)))
    assert config is not None, "the plan asks for pre-training of tiny models only"
    return sft.run_pretrain(corpus, config, training)
