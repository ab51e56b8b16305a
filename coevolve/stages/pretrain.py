"""Language modelling on all tokens, for tiny models: their replacement for the pre-training of a checkpoint."""

from pathlib import Path

from coevolve.chat.chat_template import Renderer
from coevolve.policies import loading
from coevolve.records.episodes import Trajectory
from coevolve.records.training import TrainReport
from coevolve.run.job import Job
from coevolve.stages.parts.training import tokenize, training_run
from coevolve.train import sft


def run(job: Job, out: Path) -> TrainReport:
    """Train from `start` on the corpus and write a policy directory."""
    training, config = training_run(job, out), job.model.pretrain
    corpus = tokenize(job.records("corpus", Trajectory), Renderer(loading.load_tokenizer(training.start)))
    assert config is not None, "the plan asks for pre-training of tiny models only"
    return sft.run_pretrain(corpus, config, training)
