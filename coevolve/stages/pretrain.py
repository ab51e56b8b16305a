"""Language modelling on all tokens: what a downloaded checkpoint brings along, a tiny model learns here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.policies import directory
from coevolve.render import Renderer
from coevolve.stages.corpus import rows
from coevolve.stages.job import Job
from coevolve.stages.learning import notes, prepare
from coevolve.train import sft
from coevolve.types import Trajectory


def run(job: Job, out: Path) -> dict[str, Any]:
    """Train from `start` on the corpus and write a policy directory."""
    prepare(job)
    start = job.policy("start")
    corpus = rows(job.records("corpus", Trajectory), Renderer(directory.load_tokenizer(start)))
    config = job.model.pretrain
    assert config is not None, "the plan asks for pre-training of tiny models only"
    report = sft.run_pretrain(
        corpus,
        start=start,
        config=config,
        context=job.model.context,
        seed=job.seed,
        out=out,
        work=job.work,
    )
    return notes(report)
