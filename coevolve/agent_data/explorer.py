"""Exploration of a round: where it starts, how its explorer plays, and what becomes of the explored fragments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from coevolve import seeds
from coevolve.agent_data import prompts
from coevolve.agent_data.records import Fragment, FragmentDrop, FragmentDropReason, PoolTask, TaskSignal
from coevolve.config.suite import exploration_temperature
from coevolve.envs.base import Env, Setup
from coevolve.envs.synthesis import TaskDraft, TaskSynthesis, synthesis
from coevolve.pipeline.job import Job
from coevolve.pipeline.stages.parts import playing
from coevolve.pipeline.stages.parts.environment import env_setup
from coevolve.policies.base import Conversation, Policy, ScriptedPolicy, engine_player
from coevolve.records.base import Record
from coevolve.records.episodes import StopReason, Task, Trajectory, Turn
from coevolve.records.provenance import ExplorationNotes
from coevolve.storage import jsonl

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
#: The context of an endpoint's model, in tokens: unknown, so that the endpoint itself rejects what is too long.
UNKNOWN_CONTEXT = 2**31


@dataclass(frozen=True)
class ExplorationStart:
    """The task in whose initial state a fragment begins, and the signal that led there, if any.

    `repeated` are the signal's actions that are repeated first. `actions`: the number of executed actions, with these,
    after which exploration ends. `extra`: how many of the repeated actions the limits of a fragment do not count.
    """

    start: Task
    signal: TaskSignal | None
    repeated: tuple[str, ...]
    actions: int
    extra: int = 0


def exploration_starts(job: Job) -> dict[str, ExplorationStart]:
    """Where the job's round explores, by the names of the open tasks."""
    config, number, rng = job.suite.task_evolution, job.branch.iteration, seeds.generator(job.seed, "starts")
    count = config.initial_fragments if number == 1 else config.fragments
    if "signals" in job.inputs:
        starts = guided(job.records("signals", TaskSignal), count, config.actions, rng)
    else:
        starts = unguided(job.records("tasks", Task), count, config.actions, rng)
    return {f"{job.env.kind}/open{number}/{index}": start for index, start in enumerate(starts)}


def unguided(tasks: Sequence[Task], count: int, most: int, rng: np.random.Generator) -> list[ExplorationStart]:
    """`count` starts at tasks in the order of random permutations; each ends after 1 to `most` actions."""
    return [ExplorationStart(task, None, (), int(rng.integers(1, most + 1))) for task in _permuted(tasks, count, rng)]


def guided(signals: Sequence[TaskSignal], count: int, most: int, rng: np.random.Generator) -> list[ExplorationStart]:
    """`count` starts at the tasks of the signals, in the order of random permutations; none without a signal.

    A fragment repeats the signal's first actions, their number drawn, and ends after at most `most` executed actions.
    Of a rare action's signal it repeats all, up to the rare one, and ends after at most `most` further ones.
    """
    return [_guided(signal, most, rng) for signal in _permuted(signals, count, rng)]


def _permuted(items: Sequence[T], count: int, rng: np.random.Generator) -> list[T]:
    order: list[int] = []
    while items and len(order) < count:
        order += rng.permutation(len(items)).tolist()
    return [items[index] for index in order[:count]]


def _guided(signal: TaskSignal, most: int, rng: np.random.Generator) -> ExplorationStart:
    extra = len(signal.actions) if signal.kind == "rare" else 0
    repeated = extra or int(rng.integers(0, min(len(signal.actions), most - 1) + 1))
    actions = int(rng.integers(repeated + 1, extra + most + 1))
    return ExplorationStart(signal.task, signal, signal.actions[:repeated], actions, extra)


class DraftReply(Record):
    """A model's reply to the prompt for the task of a fragment (its digest), and the number of its sampled tokens.

    `truncated`: generation stopped at max_new_tokens.
    """

    fragment: str
    text: str
    tokens: int
    truncated: bool


class TaskExploration:
    """The exploration of a job's round, by its explorer."""

    def __init__(self, job: Job) -> None:
        self._job, self._config, self._setup = job, job.suite.task_evolution, env_setup(job)
        self._starts = exploration_starts(job)
        self._sampling = playing.sampling(job, exploration_temperature(job.suite))
        self._synthesis = synthesis(job.env)
        self._player, self._workers = self._load_player()
        self._draft_tokens = 0

    def outcomes(self) -> list[tuple[Fragment, PoolTask | FragmentDrop]]:
        """The fragment of every start, in their order, with its candidate or its drop."""
        played = list(self._fragments())
        drafts = iter(self._drafts([fragment for fragment, reason in played if reason is None]))
        return [
            (fragment, self._outcome(index, fragment, reason or next(drafts)))
            for index, (fragment, reason) in enumerate(played)
        ]

    def written_drafts(self, fragments: Sequence[Fragment]) -> list[TaskDraft | FragmentDropReason]:
        """The drafts that the explorer's model writes, or why a fragment has none.

        Replies that a killed run received are read back.
        """
        journal = jsonl.Journal(self._job.work / "drafts.jsonl", DraftReply)
        with contextlib.closing(journal):
            replies = {reply.fragment: reply for reply in journal.records}
            for fragment in fragments:
                if fragment.digest() not in replies:
                    replies[fragment.digest()] = reply = self._reply(fragment)
                    journal.append(reply)
        self._draft_tokens = sum(reply.tokens for reply in replies.values())
        return [self._read(replies[fragment.digest()], fragment) for fragment in fragments]

    def notes(self, fragments: Sequence[Fragment], counts: dict[str, Any]) -> ExplorationNotes:
        """The `counts`, with what was sampled for the fragments and their drafts."""
        sampled = (turn for fragment in fragments for turn in fragment.turns[fragment.repeated :])
        return ExplorationNotes(
            counts=counts,
            sampled_tokens=sum(len(turn.token_ids) for turn in sampled) + self._draft_tokens,
            spent=playing.spending(self._job.work, self._config.endpoint or self._job.model.endpoint),
        )

    # From starts to fragments.

    def _fragments(self) -> Iterator[tuple[Fragment, FragmentDropReason | None]]:
        """The fragment of every start, with the reason why it becomes no candidate, if its actions decide that."""
        for episode in self._play() if self._starts else ():
            start = self._starts[episode.task.task_id]
            assert episode.policy is not None, "explorers have a reference"
            fragment = Fragment(
                name=episode.task.task_id,
                round=self._job.branch.iteration,
                start=start.start,
                signal=start.signal,
                explorer=episode.policy,
                repeated=len(start.repeated),
                turns=episode.turns,
            )
            executed, repeated = self._executed(fragment.turns), self._executed(fragment.turns[: fragment.repeated])
            if episode.stop is StopReason.ENV_ERROR:
                yield fragment, FragmentDropReason.ENV_ERROR
            elif not executed:
                yield fragment, FragmentDropReason.NO_ACTION
            else:
                yield fragment, FragmentDropReason.NOTHING_NEW if len(executed) == len(repeated) else None

    def _play(self) -> list[Trajectory]:
        """The episode of every start's open task."""
        tasks = [
            self._synthesis.open_task(start.start, name, prompts.exploration_prompt(start.signal, start.actions))
            for name, start in self._starts.items()
        ]
        player = self._player, min(self._workers, len(tasks))

        def prefixes(env: Env) -> list[list[Turn]]:
            return [self._repeated(task, env.parse) for task in tasks]

        seed, sampling, ended = self._job.seed, self._sampling, self._ended
        return playing.play_with(player, self._job, tasks, "explored", seed, sampling, 1, prefixes, ended)

    def _repeated(self, task: Task, parse: Callable[[str], str | None]) -> list[Turn]:
        """The turns that repeat a signal's actions."""
        texts = (self._synthesis.write(self._setup, task, action) for action in self._starts[task.task_id].repeated)
        return [Turn(text=text, action=parse(text), observation="") for text in texts]

    def _ended(self, conversation: Conversation) -> bool:
        start = self._start_of(conversation)
        done = len(self._executed(conversation.turns)) >= start.actions
        return done or len(conversation.turns) >= self._config.turns + start.extra

    def _start_of(self, conversation: Conversation) -> ExplorationStart:
        return self._starts[conversation.key.rpartition("#")[0]]

    def _executed(self, turns: Sequence[Turn]) -> tuple[str, ...]:
        return self._synthesis.executed(self._setup, turns)

    # Who explores.

    def _load_player(self) -> tuple[Policy, int]:
        """The explorer, and how many episodes it plays at once."""
        workers = self._job.env.workers
        if self._config.explorer == "scripted":
            return ScriptedPolicy(self._propose), workers
        if self._config.explorer == "policy":
            return playing.load_player(self._job, self._job.file("policy").parent, workers)
        settings = playing.engine_settings(self._job, workers)
        endpoint = replace(settings, endpoint=self._config.endpoint, context=UNKNOWN_CONTEXT)
        return engine_player("endpoint", None, endpoint)

    def _propose(self, conversation: Conversation) -> str:
        """The next turn of scripted exploration, drawn from the episode's seed."""
        start, setup = self._start_of(conversation), self._setup
        favoured = [self._synthesis.pattern(action) for action in start.signal.actions] if start.signal else []
        rng = seeds.generator(conversation.seed, "propose", len(conversation.turns))
        action = self._synthesis.propose(setup, start.start, conversation.turns, favoured, rng)
        return self._synthesis.write(setup, start.start, action)

    # From fragments to candidates.

    def _drafts(self, fragments: Sequence[Fragment]) -> list[TaskDraft | FragmentDropReason]:
        """The draft of each fragment's task, by rules or as the explorer's model writes it, or why it has none."""
        if self._config.abstraction == "model":
            return self.written_drafts(fragments)
        described = (
            self._synthesis.describe(self._setup, each.start, self._executed(each.turns)) for each in fragments
        )
        return [draft or FragmentDropReason.NO_GOAL for draft in described]

    def _reply(self, fragment: Fragment) -> DraftReply:
        seed = seeds.derive(self._job.seed, "draft", fragment.name)
        prompt = prompts.abstraction_prompt(observed_actions(self._setup, self._synthesis, fragment.turns))
        conversation = Conversation(f"{fragment.name}#draft", seed, prompt, ())
        (completion,) = self._player.complete([conversation], self._sampling)
        self._player.forget(conversation.key)
        return DraftReply(
            fragment=fragment.digest(),
            text=completion.text,
            tokens=len(completion.token_ids),
            truncated=completion.truncated,
        )

    def _read(self, reply: DraftReply, fragment: Fragment) -> TaskDraft | FragmentDropReason:
        """The draft in a reply; a reply that was cut off has none."""
        if reply.truncated:
            return FragmentDropReason.TRUNCATED
        return prompts.read_draft(reply.text, self._executed(fragment.turns)) or FragmentDropReason.NO_QUERY

    def _outcome(
        self, index: int, fragment: Fragment, draft: TaskDraft | FragmentDropReason
    ) -> PoolTask | FragmentDrop:
        """The candidate of a draft; a drop if its solution reaches nothing that a task could ask for."""
        setup, start = self._setup, fragment.start
        if isinstance(draft, TaskDraft) and self._synthesis.describe(setup, start, draft.solution) is None:
            draft = FragmentDropReason.NO_GOAL
        if isinstance(draft, FragmentDropReason):
            return fragment.drop(draft)
        name = f"{self._job.env.kind}/round{fragment.round}/{index}"
        task = self._synthesis.goal_task(setup, start, name, draft)
        writer = fragment.explorer.name if self._config.abstraction == "model" else "rules"
        return fragment.candidate(task, draft.instruction, draft.solution, writer)


def observed_actions(setup: Setup, tasks: TaskSynthesis, turns: Sequence[Turn]) -> list[tuple[str, str]]:
    """The executed actions of `turns`, each with the observation of its own turn."""
    observed: list[tuple[str, str]] = []
    for number, turn in enumerate(turns, start=1):
        actions = tasks.executed(setup, turns[:number])
        if len(actions) > len(observed):
            observed.append((actions[-1], turn.observation))
    return observed
