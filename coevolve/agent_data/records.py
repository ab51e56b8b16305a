"""Records of a round: visits to tasks, signals, fragments, candidate tasks, the pool, drops and their counts."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Literal

from coevolve.config.names import SignalKind
from coevolve.errors import UserError
from coevolve.records.base import SCHEMA_VERSION, Record
from coevolve.records.episodes import Agent, PolicyRef, Reward, StopReason, Task, Trajectory, Turn
from coevolve.storage import jsonl


@dataclass(frozen=True)
class Visit:
    """The group of episodes of one task in one step of a round; rounds count from 1, steps from 0."""

    task: Task
    round: int
    step: int
    episodes: tuple[Trajectory, ...]

    @property
    def score(self) -> float:
        """Mean reward of the group."""
        return fmean(episode.reward for episode in self.episodes)


def visits(rounds: Iterable[Iterable[Trajectory]]) -> list[Visit]:
    """The visits of all rounds in training order, without failed environments; an agent has one seed in a step."""
    groups: defaultdict[tuple[int, int, str], list[Trajectory]] = defaultdict(list)
    for number, episodes in enumerate(rounds, start=1):
        for step, episode in _numbered(episodes):
            if episode.stop is not StopReason.ENV_ERROR:
                groups[number, step, episode.task.task_id].append(episode)
    return [Visit(group[0].task, number, step, tuple(group)) for (number, step, _), group in groups.items()]


def _numbered(episodes: Iterable[Trajectory]) -> Iterator[tuple[int, Trajectory]]:
    """Each episode with the number of its step; the next step begins when the seed of an agent changes."""
    step, seeds = 0, dict[Agent, int]()
    for episode in episodes:
        if seeds.get(episode.agent, episode.seed) != episode.seed:
            step, seeds = step + 1, {}
        seeds[episode.agent] = episode.seed
        yield step, episode


class TaskSignal(Record):
    """A signal in the training episodes of a round, which points to a task.

    `round` and `step` (from 1 and 0) say where it was seen, `episode` is the digest of the training episode. `actions`
    are those that exploration starts from: the task's reference solution, or the episode's up to the rare one.
    `scores` are the window of scores (forgetting) or the rewards of the group (boundary); `pattern` occurs `count`
    times among `total` actions of the round (rare).
    """

    kind: SignalKind
    task: Task
    round: int
    step: int
    episode: str
    actions: tuple[str, ...]
    scores: tuple[Reward, ...] = ()
    pattern: str = ""
    count: int = 0
    total: int = 0


class Validation(Record):
    """Two executions of a reference solution, each from a fresh reset: rewards, and digests of the observations."""

    rewards: tuple[Reward, Reward]
    observations: tuple[str, str]


class PoolTask(Record):
    """A task with its reference solution and its provenance.

    `round` is the first round that trains on it. `fragment` and `episode` are digests: of the fragment that it was
    made of, and of the training episode whose signal led there (empty: none did). `written_by` is what wrote the
    instruction: `rules`, or the explorer's name. `validation` is None for a candidate, or if nothing is validated.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    task: Task
    instruction: str
    solution: tuple[str, ...]
    round: int
    fragment: str
    signal: SignalKind | None
    signal_round: int = 0
    signal_step: int = 0
    signal_task: str = ""
    episode: str = ""
    explorer: str
    written_by: str
    validation: Validation | None = None

    def unique_key(self) -> Hashable:
        """The task's id."""
        return self.task.task_id


def read_pool(path: Path) -> list[PoolTask]:
    """The tasks of a pool; raises `UserError` if it has none, as nothing can be trained on it."""
    if tasks := jsonl.read(path, PoolTask):
        return tasks
    raise UserError(f"{path}: the pool has no task; raise `task_evolution.initial_fragments`.")


class FragmentDropReason(StrEnum):
    """Why a fragment became no task of the pool."""

    ENV_ERROR = "env_error"  # the environment failed
    NO_ACTION = "no_action"  # no explored action was executed
    NOTHING_NEW = "nothing_new"  # nothing but the repeated turns was executed
    NO_GOAL = "no_goal"  # the actions reach nothing that a task could ask for
    NO_QUERY = "no_query"  # the model wrote no instruction, or a solution that is none
    TRUNCATED = "truncated"  # the model's reply was cut off at max_new_tokens
    EVALUATED = "evaluated"  # an evaluated task has the same normalised solution
    DUPLICATE = "duplicate"  # a task of the pool has the same normalised solution, from whatever start
    SIMILAR = "similar"  # a task with nearly the same words exists
    NOT_EXECUTABLE = "not_executable"  # an action of the reference solution is not executed, or the task does not end
    NOT_REPEATABLE = "not_repeatable"  # the two executions differ
    UNREWARDED = "unrewarded"  # the reference solution earns less than 1
    SURPLUS = "surplus"  # beyond the number of new tasks of a round


class FragmentDrop(Record):
    """A fragment that became no task; `fragment` is its digest."""

    name: str
    fragment: str
    signal: SignalKind | None
    reason: FragmentDropReason
    detail: str = ""


class Fragment(Record):
    """Explored actions with their observations, from the initial state of the task `start`.

    `name` is the id of the open task that was explored. `signal` is None if exploration was unguided. The first
    `repeated` turns repeat the signal's actions.
    """

    name: str
    round: int
    start: Task
    signal: TaskSignal | None
    explorer: PolicyRef
    repeated: int
    turns: tuple[Turn, ...]

    def unique_key(self) -> Hashable:
        """The name."""
        return self.name

    def drop(self, reason: FragmentDropReason) -> FragmentDrop:
        """The drop of the fragment."""
        kind = self.signal.kind if self.signal else None
        return FragmentDrop(name=self.name, fragment=self.digest(), signal=kind, reason=reason)

    def candidate(self, task: Task, instruction: str, solution: tuple[str, ...], written_by: str) -> PoolTask:
        """The candidate `task` that was made of the fragment."""
        signal = self.signal
        return PoolTask(
            task=task,
            instruction=instruction,
            solution=solution,
            round=self.round,
            fragment=self.digest(),
            signal=signal.kind if signal else None,
            signal_round=signal.round if signal else 0,
            signal_step=signal.step if signal else 0,
            signal_task=signal.task.task_id if signal else "",
            episode=signal.episode if signal else "",
            explorer=self.explorer.name,
            written_by=written_by,
        )


class FragmentCount(Record):
    """Counts of fragments: every one is kept (as a candidate, later as a task) or dropped with a reason."""

    fragments: int
    kept: int
    drops: dict[FragmentDropReason, int]


class TaskCounts(Record):
    """Counts of a round's fragments, in total and by signal (`unguided`: none), and the size of the pool after it."""

    round: int
    total: FragmentCount
    by_signal: dict[str, FragmentCount]
    pool: int | None = None


def task_counts(
    number: int, kept: Sequence[PoolTask], drops: Sequence[FragmentDrop], pool: int | None = None
) -> TaskCounts:
    """The counts of the fragments of round `number` that were kept and dropped."""
    signals = {task.signal for task in kept} | {drop.signal for drop in drops}
    by_signal = {
        signal or "unguided": _count([t for t in kept if t.signal == signal], [d for d in drops if d.signal == signal])
        for signal in sorted(signals, key=lambda signal: signal or "")
    }
    return TaskCounts(round=number, total=_count(kept, drops), by_signal=by_signal, pool=pool)


def _count(kept: Sequence[PoolTask], drops: Sequence[FragmentDrop]) -> FragmentCount:
    reasons = Counter(drop.reason for drop in drops)
    return FragmentCount(fragments=len(kept) + len(drops), kept=len(kept), drops=dict(sorted(reasons.items())))
