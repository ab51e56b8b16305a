"""Section 4.1: supervised fine-tuning of a base policy on action tokens only (eq. 3 to 5)."""

from pathlib import Path

from coevolve.chat.chat_template import Renderer
from coevolve.policies import loading
from coevolve.records.episodes import Trajectory
from coevolve.records.training import TrainReport
from coevolve.run.job import Job
from coevolve.stages.parts.training import tokenize, training_run
from coevolve.train import sft


def run(job: Job, out: Path) -> TrainReport:
    """Fine-tune from `start` on the experts and write a policy directory; the agent's name decides its seed."""
    training = training_run(job, out)
    experts = tokenize(job.records("experts", Trajectory), Renderer(loading.load_tokenizer(training.start)))
    return sft.run_sft(experts, job.suite.sft, training)
