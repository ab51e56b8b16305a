"""How the outputs of a stage were made."""

from typing import Any, Literal

from pydantic import Field

from coevolve.records.base import SCHEMA_VERSION, Record, is_none
from coevolve.records.evaluation import EpisodeNotes
from coevolve.records.pairs import PairingSummary
from coevolve.records.training import TrainReport
from coevolve.settings.protocol import Protocol


class Workload(Record):
    """Estimated work of a job: tokens to train on (epochs multiplied; a forward pass counts a third), tokens to read
    and to write while playing, seconds of the environment's turns, tokens kept on disk.

    `starts`: the job loads a model; `keeps_weights`: it leaves a policy's weights on disk.
    """

    train: float = 0.0
    read: float = 0.0
    write: float = 0.0
    turn_seconds: float = 0.0
    kept: float = 0.0
    starts: bool = False
    keeps_weights: bool = False


class ExplorationNotes(Record):
    """What the stage `explore_tasks` notes: the content of its `counts.json`, and what the explorer sampled.

    `sampled_tokens`: of the turns after the repeated ones, and of the drafts of tasks. `spent` is the cost of an
    endpoint's answers, omitted where none explored.
    """

    counts: dict[str, Any]
    sampled_tokens: int
    spent: dict[str, Any] | None = Field(default=None, exclude_if=is_none)


#: What a stage notes of its run: a record where a report reads it, else JSON data.
Notes = EpisodeNotes | TrainReport | PairingSummary | ExplorationNotes | dict[str, Any]


class Provenance(Record):
    """How the outputs of a stage were made, written next to them as `provenance.json`.

    `inputs` and `outputs` map paths to sha256 digests; `seconds` is wall time, `cpu_seconds` the time on the CPU of the
    job's process and of its ended children (user and system), None in older files. `result` is the folder of the
    outputs below the suite's results. `notes` are what the stage's `run` returned. `workload` is the estimated work,
    None if the environment's section has no `expected`. `dirty`: whether the checkout had uncommitted changes, None if
    git could not tell. `reused_from` is the folder in another suite's results where the outputs were computed, omitted
    if the job ran; `commit`, `dirty`, `versions`, `container`, `notes`, `started`, `seconds` and `cpu_seconds` are then
    those of the computation, and so is `hardware`, the processor and the GPUs that the job saw, None in older files.
    `slurm_job` is the number of the Slurm job that computed them, omitted outside of Slurm.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    stage: str
    wildcards: dict[str, str] = Field(default={})
    result: str = ""
    config: dict[str, Any]
    config_digest: str
    code_digest: str
    commit: str
    dirty: bool | None
    protocol: Protocol
    seeds: dict[str, int]
    versions: dict[str, str]
    container: str
    hardware: str | None = Field(default=None, exclude_if=is_none)
    inputs: dict[str, str]
    outputs: dict[str, str]
    notes: Notes = Field(default={}, union_mode="left_to_right")
    workload: Workload | None = None
    started: str
    seconds: float
    cpu_seconds: float | None = Field(default=None, exclude_if=is_none)
    reused_from: str | None = Field(default=None, exclude_if=is_none)
    slurm_job: str | None = Field(default=None, exclude_if=is_none)
