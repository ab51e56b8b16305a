"""Stages that make an environment's files, tasks and experts."""

from coevolve.dag.layout import Layout
from coevolve.dag.rules.common import ENVIRONMENT
from coevolve.dag.stage import Inputs, Stage, Wildcards

GOLD = Stage(
    name="gold",
    help="Generate ScienceWorld's expert trajectories, which are committed; only `make gold` runs this.",
    reads=ENVIRONMENT,
    files=("gold.jsonl",),
    folder="gold/{env}",
    environment=("domain", "gold"),
)


def _data_files(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The environment's data files."""
    return {**layout.suite.envs[wildcards["env"]].data_files}


PREPARE = Stage(
    name="prepare",
    help="Build the files that all jobs of an environment share, such as a shop and its search index.",
    reads=ENVIRONMENT,
    files=("meta.json",),
    folder="prepared/{env}",
    inputs=_data_files,
    environment=("domain",),
)


def _prepared_data(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The environment's data files, and the prepared folder."""
    return {**_data_files(layout, wildcards), **layout.prepared(wildcards["env"])}


DATA = Stage(
    name="data",
    help="Select the tasks of SFT, exploration and evaluation, and their expert trajectories; count drops.",
    reads=(*ENVIRONMENT, "prompt"),
    files=(
        "sft.jsonl",
        "experts.jsonl",
        "explore.jsonl",
        "evaluate.jsonl",
        "drops.jsonl",
        "instruction.txt",
        "example.json",
    ),
    folder="data/{env}",
    inputs=_prepared_data,
    environment=("domain",),
)

STAGES = (GOLD, PREPARE, DATA)
