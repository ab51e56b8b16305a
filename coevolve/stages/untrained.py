"""The base model before training: a checkpoint that is there already, or a tiny one made from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.errors import UserError
from coevolve.policies import directory
from coevolve.stages.corpus import texts
from coevolve.stages.job import Job
from coevolve.train import tiny
from coevolve.types import Trajectory


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write a policy directory; a given checkpoint is linked, not copied."""
    model = job.model
    if model.tiny is None:
        return {"linked": _link(Path(str(model.path)), out, model.revision)}
    corpus = texts(job.records("corpus", Trajectory))
    name = job.wildcards["model"]
    ref = tiny.build(model.tiny, context=model.context, texts=corpus, seed=job.seed, out=out, name=name)
    return {"policy": ref.sha256, "texts": len(corpus)}


def _link(source: Path, out: Path, revision: str) -> list[str]:
    if not (source / "config.json").exists():
        raise UserError(f"{source}: no checkpoint here; put the model in transformers' format there or change `path`.")
    names = sorted(path.name for path in source.iterdir() if path.is_file() and path.name != "policy.json")
    for name in names:
        (out / name).symlink_to((source / name).resolve())
    directory.seal(out, name=source.name, base=str(source), revision=revision)
    return names
