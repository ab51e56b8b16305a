"""The pool of synthetic tasks: which candidates join it, and which of its tasks a round visits."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve import seeds
from coevolve.agent_data.records import FragmentDrop, FragmentDropReason, PoolTask, Validation
from coevolve.errors import UserError
from coevolve.records.episodes import StopReason, Task, Trajectory, Turn
from coevolve.storage import jsonl

if TYPE_CHECKING:
    from coevolve.agent_data.config import TaskEvolutionConfig

#: A task's normalised reference solution, whatever its start: equal for duplicates.
SolutionKey = tuple[str, ...]
Executed = Callable[[Sequence[Turn]], Sequence[str]]


@dataclass(frozen=True)
class PoolUpdate:
    """The tasks of a round's pool, old ones first, and the drops of its candidates."""

    tasks: tuple[PoolTask, ...]
    added: tuple[PoolTask, ...]
    drops: tuple[FragmentDrop, ...]


def read(path: Path) -> list[PoolTask]:
    """The tasks of a pool; raises `UserError` if it has none, as nothing can be trained on it."""
    if tasks := jsonl.read(path, PoolTask):
        return tasks
    raise UserError(f"{path}: the pool has no task; raise `task_evolution.initial_fragments`.")


def extend(
    config: TaskEvolutionConfig,
    pool: Sequence[PoolTask],
    candidates: Iterable[PoolTask],
    most: int,
    key: Callable[[PoolTask], SolutionKey],
    validate: Callable[[PoolTask], Validation | FragmentDropReason] | None,
    evaluated: Collection[SolutionKey] = (),
) -> PoolUpdate:
    """The pool with at most `most` candidates, in their order: new ones whose validation succeeds (None: all new).

    None of them has the solution of an `evaluated` task.
    """
    seen, words = {key(task) for task in pool}, [_words(task.instruction) for task in pool]
    added, drops = list[PoolTask](), list[FragmentDrop]()
    for candidate in candidates:
        of_candidate = _words(candidate.instruction)
        if len(added) == most:
            outcome: Validation | FragmentDropReason | None = FragmentDropReason.SURPLUS
        elif key(candidate) in evaluated:
            outcome = FragmentDropReason.EVALUATED
        elif key(candidate) in seen:
            outcome = FragmentDropReason.DUPLICATE
        elif config.similarity is not None and any(jaccard(of_candidate, w) >= config.similarity for w in words):
            outcome = FragmentDropReason.SIMILAR
        else:
            outcome = validate(candidate) if validate else None
        if isinstance(outcome, FragmentDropReason):
            name, fragment, signal = candidate.task.task_id, candidate.fragment, candidate.signal
            drops.append(FragmentDrop(name=name, fragment=fragment, signal=signal, reason=outcome))
            continue
        added.append(candidate.model_copy(update={"validation": outcome}))
        seen.add(key(candidate))
        words.append(of_candidate)
    return PoolUpdate((*pool, *added), tuple(added), tuple(drops))


def judge(runs: Sequence[Trajectory], actions: int, executed: Executed) -> Validation | FragmentDropReason:
    """The validation of a reference solution of `actions` actions by its two executions, or why it fails."""
    first, second = runs
    if any(run.stop is StopReason.ENV_ERROR for run in runs):
        return FragmentDropReason.ENV_ERROR
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


def round_schedule(
    pool: Sequence[PoolTask], number: int, steps: int, per_step: int, replay: float | None, seed: int
) -> list[list[Task]]:
    """The tasks of each step of round `number`, `per_step` a step.

    Tasks are visited permutation after permutation. With `replay`, that share of the visits goes to tasks of earlier
    rounds and the rest to this round's new tasks, as long as there are tasks of both.
    """
    visits = steps * per_step
    new = [entry.task for entry in pool if entry.round == number]
    old = [entry.task for entry in pool if entry.round != number]
    if replay is None or not new or not old:
        stream = _stream([*old, *new], visits, seed, "pool")
    else:
        repeated = math.floor(replay * visits + 0.5)
        mixed = [*_stream(old, repeated, seed, "old"), *_stream(new, visits - repeated, seed, "new")]
        stream = [mixed[index] for index in seeds.generator(seed, "mix").permutation(visits)]
    return [stream[step * per_step : (step + 1) * per_step] for step in range(steps)]


def _stream(tasks: Sequence[Task], visits: int, seed: int, name: str) -> list[Task]:
    """The first `visits` tasks of permutation after permutation."""
    stream: list[Task] = []
    while len(stream) < visits:
        order = seeds.generator(seed, "visits", name, len(stream)).permutation(len(tasks))
        stream += [tasks[index] for index in order]
    return stream[:visits]
