"""The type of a stage's declaration: used by the plan, the Snakefile, the images and the command line."""

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevolve.config.names import Learns
from coevolve.config.suite import Suite
from coevolve.dag.layout import Layout
from coevolve.records.provenance import Workload
from coevolve.storage.files import PROVENANCE

Wildcards = Mapping[str, str]
#: Input files of a job by name: one, several, or several by what they are results of, such as (method, seed).
Inputs = dict[str, str | list[str] | Mapping[Any, str]]


def files_by_name(inputs: Inputs) -> dict[str, list[str]]:
    """All input files of each name, each once."""
    return {
        name: [files] if isinstance(files, str) else sorted({*files.values()}) if isinstance(files, Mapping) else files
        for name, files in inputs.items()
    }


def files_of(inputs: Inputs) -> list[str]:
    """All input files."""
    return [path for paths in files_by_name(inputs).values() for path in paths]


def results_by_name(inputs: Inputs) -> dict[str, dict[Hashable, Path]]:
    """The input files that are given by what they are results of."""
    keyed = {name: files for name, files in inputs.items() if isinstance(files, Mapping)}
    return {name: {key: Path(path) for key, path in files.items()} for name, files in keyed.items()}


@dataclass(frozen=True)
class Stage:
    """The declaration of a stage.

    Config and code: `reads` lists the config sections that it may read, `environment` the modules of an environment's
    package that it loads (`coevolve.envs.registry`). `plays` names the engine (`coevolve.policies.engines`) of a job by
    its sections and its model. A job reruns when these sections, this code or its inputs change; `digest` replaces
    sections and code where a part of the sections decides the result (of the sections as JSON data, and the wildcards).

    Files: `inputs` names the input files of a job. `history` names files; the `provenance.json` of every job behind
    them is an input too, named `provenance`. `files` are the outputs, in `folder`, which has the job's wildcards.
    `branches` is a pattern of the branches that it works on, beside the iterations of methods that learn as `learns`
    says and, if it `evaluates`, the branches of methods with evaluation settings of their own.

    Execution: `workload` estimates the work of a job, `image` is the container image that it runs in (empty: none),
    `launchable` says whether several processes can share a job, `network` whether it fetches from outside, `shared`
    whether its result lies in `data/mirror`, for all suites. A `product` is a file of the paper that a full run ends
    with. `remade`: its inputs alone decide its files, without a policy or an environment, so `coevolve reverify` makes
    them again.
    """

    name: str
    help: str
    reads: tuple[str, ...]
    files: tuple[str, ...]
    folder: str
    inputs: Callable[[Layout, Wildcards], Inputs] = lambda layout, wildcards: {}
    history: Callable[[Layout, Wildcards], list[str]] | None = None
    branches: str = ""
    learns: tuple[Learns, ...] = ()
    evaluates: bool = False
    environment: tuple[str, ...] = ()
    plays: Callable[[Suite, str], str] | None = None
    digest: Callable[[Mapping[str, Any], Wildcards], str] | None = None
    workload: Callable[[Layout, Wildcards], Workload] = lambda layout, wildcards: Workload()
    image: str = "envs"
    launchable: bool = False
    network: bool = False
    shared: bool = False
    product: bool = False
    remade: bool = False

    @property
    def module(self) -> str:
        """The module with the stage's `run`."""
        return f"coevolve.stages.{self.name}"

    @property
    def wildcards(self) -> list[str]:
        """Names of the wildcards that a job needs beside its inputs, such as `env`."""
        return re.findall(r"\{(\w+)\}", self.folder)

    @property
    def known_wildcards(self) -> list[str]:
        """The wildcards that a job takes: those that it needs, and a download's `file`, which its source decides."""
        return [*self.wildcards, *re.findall(r"\{(\w+)\}", " ".join(self.files))]

    @property
    def outputs(self) -> tuple[str, ...]:
        """All files of a job. A folder of downloads has a rule for each file, so its provenance belongs to none."""
        return self.files if any("{" in name for name in self.files) else (*self.files, PROVENANCE)

    @property
    def reusable(self) -> bool:
        """Whether suites can take a result from each other: a product names its suite, a shared one is of all."""
        return not (self.product or self.shared)

    @property
    def leaves_provenance(self) -> bool:
        """Whether its provenance is an output of a job."""
        return PROVENANCE in self.outputs
