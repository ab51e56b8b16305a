"""Trace a task of a pool to its fragment, the signal and the training episode that caused it."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from coevolve import escaping
from coevolve.agent_data.records import Fragment, PoolTask, TaskSignal
from coevolve.errors import UserError
from coevolve.records.base import Record
from coevolve.records.episodes import Trajectory
from coevolve.report import provenance_chain
from coevolve.storage import files, jsonl, provenance

R = TypeVar("R", bound=Record)


class TaskTrace(Record):
    """A task with all it depends on; `pool` is the first file with it, `signal` None if it was explored unguided."""

    pool: str
    task: PoolTask
    fragment: Fragment
    fragment_file: str
    signal: TaskSignal | None
    episode: Trajectory | None
    episode_file: str
    chain: provenance_chain.Chain
    broken: tuple[str, ...]


def pools(home: Path, query: str) -> list[Path]:
    """The pools with a task of this id, the first of each method and seed; those of later rounds hold it too."""
    needle = f'"task_id":"{query}"'.encode()
    first: dict[Path, Path] = {}
    for path in sorted(home.glob("*/*/*/seed*/iter*/tasks/pool.jsonl"), key=lambda path: (len(str(path)), path)):
        if needle in files.read_bytes(path) and any(task.task.task_id == query for task in jsonl.read(path, PoolTask)):
            first.setdefault(path.parents[2], path)
    return list(first.values())


def trace(path: Path, query: str, is_made: provenance_chain.IsMade, declared: Collection[str] = ()) -> TaskTrace:
    """Trace the task `query` of the pool in `path`; raises `UserError` if a provenance or the fragment is missing."""
    task = next(task for task in jsonl.read(path, PoolTask) if task.task.task_id == query)
    folder = path.parent.as_posix()
    chain = provenance_chain.walk(folder, provenance_chain.read(folder).inputs, is_made, declared)
    provenance.checked(path)
    fragment, fragment_file = _record(chain, "fragments.jsonl", Fragment, task.fragment)
    if fragment is None:
        raise UserError(f"{path}: fragment {task.fragment} of task `{query}` is gone; run `explore_tasks` again.")
    episode, episode_file = _record(chain, "episodes.jsonl", Trajectory, task.episode)
    lost = task.signal is not None and episode is None
    return TaskTrace(
        pool=path.as_posix(),
        task=task,
        fragment=fragment,
        fragment_file=fragment_file,
        signal=fragment.signal,
        episode=episode,
        episode_file=episode_file,
        chain=chain,
        broken=(*chain.broken, *([f"{path}: episode {task.episode} of `{query}` is gone."] if lost else [])),
    )


def _record(chain: provenance_chain.Chain, name: str, kind: type[R], digest: str) -> tuple[R | None, str]:
    """The record with this digest in one of the results' files `name`, and the file; None if there is none."""
    for result in chain.results if digest else ():
        path = Path(result.folder, name)
        for record in jsonl.read(path, kind) if path.exists() else ():
            if record.digest() == digest:
                return record, path.as_posix()
    return None, ""


def text(answer: TaskTrace) -> str:
    """The trace for a terminal."""
    return "\n".join(map(escaping.line, [*_task(answer), *_cause(answer), "", *answer.chain.checked(answer.broken)]))


def _task(answer: TaskTrace) -> Iterator[str]:
    task, fragment = answer.task, answer.fragment
    yield task.task.task_id
    yield f"  task      {task.instruction}"
    yield f"  solution  {'; '.join(task.solution)}"
    yield f"  pool      {answer.pool}, from round {task.round} on; the instruction is written by {task.written_by}"
    if task.validation is None:
        yield "  validated no: its reference solution was not executed"
    else:
        reward, observed = task.validation.rewards[0], task.validation.observations[0]
        yield f"  validated reward {reward:g} in two executions, observations {observed}"
    yield f"  fragment  {task.fragment} in {answer.fragment_file}"
    start = f"start {fragment.start.task_id}, {fragment.repeated} turns repeated"
    yield f"            explorer {fragment.explorer.name}, {start}"
    yield from _turns((turn.action, turn.observation) for turn in fragment.turns)


def _cause(answer: TaskTrace) -> Iterator[str]:
    signal, episode = answer.signal, answer.episode
    if signal is None:
        yield "  signal    none: exploration was unguided"
        return
    scores = ", ".join(f"{score:g}" for score in signal.scores)
    rare = f"pattern `{signal.pattern}`, {signal.count} of {signal.total} actions"
    evidence = rare if signal.kind == "rare" else f"{'scores' if signal.kind == 'forgetting' else 'rewards'} {scores}"
    yield f"  signal    {signal.kind} of {signal.task.task_id} in round {signal.round}, step {signal.step}: {evidence}"
    if episode is not None:
        name = episode.policy.name if episode.policy else ""
        yield f"  episode   {signal.episode} in {answer.episode_file}"
        yield f"            {episode.agent} agent, policy {name}, sample {episode.sample}, reward {episode.reward:g}"
        yield from _turns((turn.action, turn.observation) for turn in episode.turns)


def _turns(turns: Iterator[tuple[str | None, str]]) -> Iterator[str]:
    for action, observation in turns:
        yield f"            {action or '(no action)'} -> {' '.join(observation.split())[:80]}"


def find(home: Path, query: Sequence[str]) -> Path | None:
    """The pool of the task that a query names: its id, and words of the pool's path such as `agent_data/seed0`.

    None if the query names no task. Raises `UserError` if the pools of several methods or seeds hold the task.
    """
    fitting = pools(home, query[0]) if query and "/" in query[0] else []
    chosen = [path for path in fitting if all(f"/{word.strip('/')}/" in f"/{path.as_posix()}" for word in query[1:])]
    if len(chosen) > 1:
        names = ", ".join("/".join(path.parts[-5:-3]) for path in chosen)
        raise UserError(f"task `{query[0]}` is in {len(chosen)} pools; add one of {names}.")
    if fitting and not chosen:
        raise UserError(f"task `{query[0]}` is in no pool with {' '.join(query[1:])}; leave the words out.")
    return chosen[0] if chosen else None
