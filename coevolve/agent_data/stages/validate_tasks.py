"""Validation of a round's candidates: reference solutions are executed twice, and what succeeds joins the pool."""

from __future__ import annotations

import functools
import hashlib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.agent_data.records import FragmentDrop, FragmentDropReason, PoolTask, Validation, task_counts
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import ENVIRONMENT, Inputs, PlannedJob, Stage
from coevolve.records.episodes import StopReason, Task, Trajectory, Turn
from coevolve.storage import files, jsonl

if TYPE_CHECKING:
    from coevolve.envs.base import Env, Setup
    from coevolve.envs.synthesis import TaskSynthesis

log = logging.getLogger(__name__)

#: A task's normalised reference solution, whatever its start: equal for duplicates.
SolutionKey = tuple[str, ...]
Executed = Callable[[Sequence[Turn]], Sequence[str]]


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `pool.jsonl` (the old pool and the new tasks), `drops.jsonl` and `counts.json`; no candidate is lost."""
    from coevolve.envs.synthesis import synthesis
    from coevolve.envs.workers import environments
    from coevolve.pipeline.stages.parts.environment import env_setup

    config, number, setup = job.suite.task_evolution, job.branch.iteration, env_setup(job)
    tasks = synthesis(job.env)

    def key(task: Task, solution: Sequence[str]) -> SolutionKey:
        return tuple(tasks.normalised(setup, task, action) for action in solution)

    pool = job.records("pool", PoolTask) if "pool" in job.inputs else []
    known = ((task, tasks.reference_solution(task)) for task in job.records("evaluated", Task))
    with environments(setup, 1) as (env,):
        added, drops = extend(
            config.similarity,
            pool,
            job.records("candidates", PoolTask),
            config.initial_tasks if number == 1 else config.new_tasks,
            lambda each: key(each.task, each.solution),
            functools.partial(_validate, env, tasks, setup, job.suite.rollout.retries) if config.validation else None,
            {key(task, solution) for task, solution in known if solution},
        )
    pool += added
    jsonl.write(out / "pool.jsonl", pool)
    jsonl.write(out / "drops.jsonl", drops)
    counts = task_counts(number, added, drops, len(pool)).model_dump(mode="json")
    files.write_json(out / "counts.json", counts)
    log.info("%d tasks, %d of them new", len(pool), len(added))
    return counts


def _validate(
    env: Env, tasks: TaskSynthesis, setup: Setup, retries: int, candidate: PoolTask
) -> Validation | FragmentDropReason:
    """The validation of a candidate's reference solution, or why it fails."""
    from coevolve.envs.base import EnvError
    from coevolve.envs.synthesis import execute_solution

    texts = tasks.solution_texts(setup, candidate.task)
    try:
        runs = [execute_solution(env, candidate.task, texts, setup, retries) for _ in range(2)]
    except EnvError as error:
        log.warning("%s: %s", candidate.task.task_id, error)
        return FragmentDropReason.ENV_ERROR
    return judge(runs, len(candidate.solution), functools.partial(tasks.executed, setup))


def extend(
    similarity: float | None,
    pool: Sequence[PoolTask],
    candidates: Iterable[PoolTask],
    most: int,
    key: Callable[[PoolTask], SolutionKey],
    validate: Callable[[PoolTask], Validation | FragmentDropReason] | None,
    evaluated: Collection[SolutionKey] = (),
) -> tuple[list[PoolTask], list[FragmentDrop]]:
    """At most `most` candidates that join the pool, in their order, and the drops of the others.

    They are new, their validation succeeds (None: nothing is validated), and they have no `evaluated` task's solution.
    """
    seen, words = {key(task) for task in pool}, [_words(task.instruction) for task in pool]
    added, drops = list[PoolTask](), list[FragmentDrop]()
    for candidate in candidates:
        solution, of_candidate = key(candidate), _words(candidate.instruction)
        if len(added) == most:
            outcome: Validation | FragmentDropReason | None = FragmentDropReason.SURPLUS
        elif solution in evaluated:
            outcome = FragmentDropReason.EVALUATED
        elif solution in seen:
            outcome = FragmentDropReason.DUPLICATE
        elif similarity is not None and any(jaccard(of_candidate, each) >= similarity for each in words):
            outcome = FragmentDropReason.SIMILAR
        else:
            outcome = validate(candidate) if validate else None
        if isinstance(outcome, FragmentDropReason):
            name, fragment, signal = candidate.task.task_id, candidate.fragment, candidate.signal
            drops.append(FragmentDrop(name=name, fragment=fragment, signal=signal, reason=outcome))
            continue
        added.append(candidate.model_copy(update={"validation": outcome}))
        seen.add(solution)
        words.append(of_candidate)
    return added, drops


def judge(runs: Sequence[Trajectory], actions: int, executed: Executed) -> Validation | FragmentDropReason:
    """The validation of a reference solution of `actions` actions by its two executions, or why it fails."""
    first, second = runs
    if any(run.stop is not StopReason.DONE or len(executed(run.turns)) < actions for run in runs):
        return FragmentDropReason.NOT_EXECUTABLE
    if first.turns != second.turns:
        return FragmentDropReason.NOT_REPEATABLE
    if min(run.reward for run in runs) < 1.0:
        return FragmentDropReason.UNREWARDED
    return Validation(rewards=(first.reward, second.reward), observations=(observations(first), observations(second)))


def observations(run: Trajectory) -> str:
    """First 16 hex digits of the sha256 over the observations of an episode."""
    text = "\0".join(turn.observation for turn in run.turns)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Shared words over all words of two texts; 1 for two texts without words."""
    return len(first & second) / len(first | second) if first | second else 1.0


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))


def inputs(explored: PlannedJob, evaluated: PlannedJob, before: PlannedJob | None, env_files: Inputs) -> Inputs:
    """The candidates of a round, the pool that they join, the tasks that none may equal, and what an episode reads."""
    old = {"pool": before["pool.jsonl"]} if before else {}
    return {"candidates": explored["candidates.jsonl"], "evaluated": evaluated["evaluate.jsonl"], **old, **env_files}


STAGE = Stage(
    help="Execute the reference solutions of candidate tasks twice, and add those that succeed to the pool.",
    run=run,
    reads=(*ENVIRONMENT, "task_evolution", "rollout"),
    files=("pool.jsonl", "drops.jsonl", "counts.json"),
    modules=("domain", "synthesis"),
)
