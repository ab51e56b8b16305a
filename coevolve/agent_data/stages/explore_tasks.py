"""Exploration of a round: an explorer acts near the signals, and its fragments become candidate tasks."""

from __future__ import annotations

import logging
from pathlib import Path

from coevolve.agent_data.records import FragmentDrop, PoolTask, task_counts
from coevolve.config.suite import Suite, engine
from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import SAMPLED, Inputs, PlannedJob, Stage
from coevolve.records.provenance import ExplorationNotes, Workload
from coevolve.storage import files, jsonl

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> ExplorationNotes:
    """Write `fragments.jsonl`, `candidates.jsonl`, `drops.jsonl` and `counts.json`; no fragment is lost."""
    from coevolve.agent_data.explorer import TaskExploration

    explored = TaskExploration(job)
    outcomes = explored.outcomes()
    fragments = [fragment for fragment, _ in outcomes]
    candidates = [outcome for _, outcome in outcomes if isinstance(outcome, PoolTask)]
    drops = [outcome for _, outcome in outcomes if isinstance(outcome, FragmentDrop)]
    jsonl.write(out / "fragments.jsonl", fragments)
    jsonl.write(out / "candidates.jsonl", candidates)
    jsonl.write(out / "drops.jsonl", drops)
    counts = task_counts(job.branch.iteration, candidates, drops).model_dump(mode="json")
    files.write_json(out / "counts.json", counts)
    log.info("%d fragments, %d candidates", len(outcomes), len(candidates))
    return explored.notes(fragments, counts)


def explorer_engine(suite: Suite, model: str) -> str:
    """The engine that explores: the policy's own, `endpoint`, or `scripted`."""
    explorer = suite.task_evolution.explorer
    return engine(suite, model) if explorer == "policy" else explorer


def inputs(playing: Inputs, signals: PlannedJob | None, *, explores: bool) -> Inputs:
    """The inputs of a rollout, with the signals that guide it; the policy only if it `explores`."""
    kept = {name: files for name, files in playing.items() if explores or name != "policy"}
    return kept | ({"signals": signals["signals.jsonl"]} if signals else {})


def cost(suite: Suite, job: PlannedJob) -> Workload:
    """The fragments of a round, which are shorter than episodes; a scripted explorer loads no model."""
    configured, expected = work.setting(suite, job)
    config = configured.task_evolution
    fragments = config.initial_fragments if job.subject.branch.iteration == 1 else config.fragments
    played = work.playing_work(expected, fragments * min(1.0, config.turns / expected.turns))
    return played if config.explorer == "policy" else Workload(turn_seconds=played.turn_seconds)


STAGE = Stage(
    help="Explore from the signals' tasks, and make candidate tasks of the explorations.",
    run=run,
    reads=(*SAMPLED, "task_evolution"),
    files=("fragments.jsonl", "candidates.jsonl", "drops.jsonl", "counts.json"),
    modules=("domain", "synthesis"),
    plays=explorer_engine,
    cost=cost,
    image="sample",
)
