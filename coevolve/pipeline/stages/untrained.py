"""The base model before training: a snapshot of the hub, a checkpoint in a folder, a name of an endpoint's model, or a
tiny one made from nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.config.models import ModelConfig
from coevolve.errors import UserError
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage
from coevolve.records.episodes import Trajectory
from coevolve.storage import files, policy_dir

if TYPE_CHECKING:
    from coevolve.config.models import ModelConfig
    from coevolve.config.suite import Suite
    from coevolve.pipeline.stage import Inputs, PlannedJob
    from coevolve.records.provenance import Workload


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write a policy directory; the files of a given checkpoint are linked, not copied."""
    from coevolve.assets import hub
    from coevolve.pipeline.stages.parts.training import texts
    from coevolve.policies.endpoint import endpoint_ref

    model, name = job.model, job.wildcards["model"]
    if "model" in job.inputs:
        manifest = hub.verify(job.file("model"))
        names = [file.name for file in manifest.files]
        _link(job.file("model").parent, names, out)
        write_template(model, out)
        ref = policy_dir.seal(out, name=name, base=manifest.hub, revision=manifest.revision)
        return {"policy": ref.sha256, "linked": names}
    if model.endpoint:
        ref = endpoint_ref(model.endpoint.model)
        files.write_bytes(out / policy_dir.REF_NAME, ref.to_json().encode() + b"\n")
        return {"policy": ref.sha256}
    if model.tiny is None:
        source = Path(str(model.path))
        if not (names := policy_dir.checkpoint_files(source)):
            raise UserError(f"{source}: no checkpoint in transformers' format; put one there or change `path`.")
        _link(source, names, out)
        if start := policy_dir.start_of(source):
            policy_dir.write_start(out, start.folder, start.sha256)
        write_template(model, out)
        ref = policy_dir.seal(out, name=source.name, base=str(source), revision=model.revision)
        return {"policy": ref.sha256, "linked": names}
    from coevolve.train import tiny_model  # imports the model classes of transformers, which no other branch needs

    corpus = texts(job.records("corpus", Trajectory))
    ref = tiny_model.build(model.tiny, context=model.context, texts=corpus, seed=job.seed, out=out, name=name)
    return {"policy": ref.sha256, "texts": len(corpus)}


def write_template(model: ModelConfig, out: Path) -> None:
    """Write the configured chat template, if there is one, where the model's policies find it."""
    if model.chat_template:
        (file := out / "chat_template.jinja").unlink(missing_ok=True)  # a link to the checkpoint's own
        files.write_bytes(file, model.chat_template.encode())


def _link(source: Path, names: Iterable[str], out: Path) -> None:
    """Hard-link the files into `out`; on another file system, link them symbolically."""
    for name in names:
        try:
            os.link((source / name).resolve(), out / name)
        except OSError:
            (out / name).symlink_to((source / name).resolve())


def inputs(model: ModelConfig, fetched: PlannedJob | None, corpus: PlannedJob | None) -> Inputs:
    """The downloaded or dequantised model, a given checkpoint, or the corpus of a tiny model's tokenizer."""
    if fetched:
        return {"model": fetched["manifest.json"]}
    if model.path:
        names = policy_dir.checkpoint_files(Path(model.path)) or ["config.json"]  # the plan reports that it is missing
        return {"checkpoint": [f"{model.path}/{name}" for name in names]}
    return {"corpus": corpus["sft.jsonl"]} if corpus else {}


def cost(suite: Suite, job: PlannedJob) -> Workload:
    """A process that loads the libraries; it writes a tiny model's weights and links those of a checkpoint."""
    from coevolve.records.provenance import Workload

    return Workload(starts=True, keeps_weights=suite.models[job.subject.model].tiny is not None)


STAGE = Stage(
    help="Write the base model before training: a downloaded checkpoint, or a tokenizer and random weights.",
    run=run,
    reads=("models",),
    files=("policy.json",),
    cost=cost,
    image="train",
)
