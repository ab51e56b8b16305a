"""Stages that bring files and models from outside, once for all suites."""

from collections.abc import Mapping
from typing import Any

from coevolve.config.restriction import digest
from coevolve.dag.layout import Layout
from coevolve.dag.stage import Inputs, Stage, Wildcards
from coevolve.records.provenance import Workload

DOWNLOAD = Stage(
    name="download",
    help="Fetch a file, pinned by sha256, once for all suites.",
    reads=("sources",),
    files=("{file}",),
    folder="{source}",
    digest=lambda config, wildcards: f"{digest(config)}-",  # the content of a pinned file does not depend on code
    image="",
    network=True,
    shared=True,
)


def _pinned_model(config: Mapping[str, Any], wildcards: Wildcards) -> str:
    """Digest of a model's pin."""
    model = config["models"][wildcards["model"]]
    return digest([model["hub"], model["revision"]])


SNAPSHOT = Stage(
    name="snapshot",
    help="Fetch a model of the hub at its pinned commit, once for all suites.",
    reads=("models",),
    files=("manifest.json",),
    folder="models/{model}",
    digest=_pinned_model,
    workload=lambda layout, wildcards: Workload(keeps_weights=True),
    image="",
    network=True,
    shared=True,
)


def _gguf_file(layout: Layout, wildcards: Wildcards) -> Inputs:
    gguf = layout.suite.models[wildcards["model"]].gguf
    return {"gguf": gguf.path} if gguf else {}


def _pinned_gguf(config: Mapping[str, Any], wildcards: Wildcards) -> str:
    """Digest of a GGUF file's pin and of the weights' in it."""
    gguf = config["models"][wildcards["model"]]["gguf"]
    return digest(gguf and [gguf["sha256"], gguf["weights_sha256"]])


CONVERT = Stage(
    name="convert",
    help="Dequantise a model in a GGUF file into a folder in transformers' format, once for all suites.",
    reads=("models",),
    files=("manifest.json",),
    folder="converted/{model}",
    inputs=_gguf_file,
    digest=_pinned_gguf,
    image="train",
    shared=True,
)

STAGES = (DOWNLOAD, SNAPSHOT, CONVERT)
