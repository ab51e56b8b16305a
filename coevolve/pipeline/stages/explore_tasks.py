"""Exploration of a round: an explorer acts near the signals, and its fragments become candidate tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve import seeds
from coevolve.config.derived.protocol import explorer_engine
from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import SAMPLED, Stage
from coevolve.records.episodes import StopReason, Task
from coevolve.records.provenance import ExplorationNotes
from coevolve.storage import files, jsonl

if TYPE_CHECKING:
    from coevolve.config.suite import Suite
    from coevolve.envs.synthesis import TaskDraft
    from coevolve.methods.task_evolution.exploration import ExplorationStart
    from coevolve.methods.task_evolution.records import Fragment, FragmentDrop, FragmentDropReason, PoolTask
    from coevolve.pipeline.stage import Inputs, PlannedJob
    from coevolve.pipeline.stages.parts.exploring import TaskExploration
    from coevolve.records.provenance import Workload

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> ExplorationNotes:
    """Write `fragments.jsonl`, `candidates.jsonl`, `drops.jsonl` and `counts.json`; no fragment is lost."""
    from coevolve.methods.task_evolution.records import FragmentDrop, PoolTask, task_counts
    from coevolve.pipeline.stages.parts.exploring import TaskExploration

    explored = TaskExploration(job, _starts(job))
    outcomes = list(_outcomes(job, explored))
    candidates = [outcome for _, outcome in outcomes if isinstance(outcome, PoolTask)]
    drops = [outcome for _, outcome in outcomes if isinstance(outcome, FragmentDrop)]
    fragments = [fragment for fragment, _ in outcomes]
    jsonl.write(out / "fragments.jsonl", fragments)
    jsonl.write(out / "candidates.jsonl", candidates)
    jsonl.write(out / "drops.jsonl", drops)
    counts = task_counts(job.branch.iteration, candidates, drops).model_dump(mode="json")
    files.write_json(out / "counts.json", counts)
    log.info("%d fragments, %d candidates", len(outcomes), len(candidates))
    return explored.notes(fragments, counts)


def _starts(job: Job) -> dict[str, ExplorationStart]:
    """Where the round explores, by the names of the open tasks."""
    from coevolve.methods.task_evolution import exploration
    from coevolve.methods.task_evolution.records import TaskSignal

    config, number = job.suite.task_evolution, job.branch.iteration
    rng = seeds.generator(job.seed, "starts")
    count = config.initial_fragments if number == 1 else config.fragments
    if "signals" in job.inputs:
        starts = exploration.guided(job.records("signals", TaskSignal), count, config.actions, rng)
    else:
        starts = exploration.unguided(job.records("tasks", Task), count, config.actions, rng)
    return {f"{job.env.kind}/open{number}/{index}": start for index, start in enumerate(starts)}


def _outcomes(job: Job, explored: TaskExploration) -> Iterator[tuple[Fragment, PoolTask | FragmentDrop]]:
    """Every fragment with its candidate or its drop."""
    from coevolve.methods.task_evolution.records import FragmentDropReason

    pairs = [(fragment, _reason(explored, fragment, stop)) for fragment, stop in explored.fragments()]
    drafts = iter(explored.drafts([fragment for fragment, reason in pairs if reason is None]))
    for index, (fragment, reason) in enumerate(pairs):
        draft = reason or next(drafts)
        if isinstance(draft, FragmentDropReason):
            yield fragment, _drop(fragment, draft)
        elif task := explored.goal_task(fragment, f"{job.env.kind}/round{job.branch.iteration}/{index}", draft):
            yield fragment, _candidate(fragment, task, draft, explored.writer)
        else:
            yield fragment, _drop(fragment, FragmentDropReason.NO_GOAL)


def _reason(explored: TaskExploration, fragment: Fragment, stop: StopReason) -> FragmentDropReason | None:
    """Why a fragment becomes no candidate; None if it can become one."""
    from coevolve.methods.task_evolution.records import FragmentDropReason

    if stop is StopReason.ENV_ERROR:
        return FragmentDropReason.ENV_ERROR
    executed, repeated = (explored.executed(turns) for turns in (fragment.turns, fragment.turns[: fragment.repeated]))
    if not executed:
        return FragmentDropReason.NO_ACTION
    return None if len(executed) > len(repeated) else FragmentDropReason.NOTHING_NEW


def _drop(fragment: Fragment, reason: FragmentDropReason) -> FragmentDrop:
    from coevolve.methods.task_evolution.records import FragmentDrop

    kind = fragment.signal.kind if fragment.signal else None
    return FragmentDrop(name=fragment.name, fragment=fragment.digest(), signal=kind, reason=reason)


def _candidate(fragment: Fragment, task: Task, draft: TaskDraft, written_by: str) -> PoolTask:
    from coevolve.methods.task_evolution.records import PoolTask

    signal = fragment.signal
    return PoolTask(
        task=task,
        instruction=draft.instruction,
        solution=draft.solution,
        round=fragment.round,
        fragment=fragment.digest(),
        signal=signal.kind if signal else None,
        signal_round=signal.round if signal else 0,
        signal_step=signal.step if signal else 0,
        signal_task=signal.task.task_id if signal else "",
        episode=signal.episode if signal else "",
        explorer=fragment.explorer.name,
        written_by=written_by,
    )


def inputs(playing: Inputs, signals: PlannedJob | None, *, explores: bool) -> Inputs:
    """The inputs of a rollout, with the signals that guide it; the policy only if it `explores`."""
    kept = {name: files for name, files in playing.items() if explores or name != "policy"}
    return kept | ({"signals": signals["signals.jsonl"]} if signals else {})


def cost(suite: Suite, job: PlannedJob) -> Workload:
    """The fragments of a round, which are shorter than episodes; a scripted explorer loads no model."""
    from coevolve.records.provenance import Workload

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
