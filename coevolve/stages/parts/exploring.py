"""Exploration as a stage: an explorer plays open tasks; its actions become fragments and drafts of tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coevolve import seeds
from coevolve.config.task_evolution import TaskEvolutionConfig
from coevolve.envs.synthesis import TaskDraft, observed_actions, synthesis
from coevolve.envs.workers import environments
from coevolve.methods.task_evolution import prompts
from coevolve.methods.task_evolution.exploration import ExplorationStart
from coevolve.methods.task_evolution.records import Fragment, FragmentDropReason
from coevolve.policies import engines
from coevolve.policies.base import Completion, Conversation, Policy
from coevolve.policies.scripted import ScriptedPolicy
from coevolve.records.base import Record
from coevolve.records.episodes import PolicyRef, Sampling, StopReason, Task, Trajectory, Turn
from coevolve.records.provenance import ExplorationNotes
from coevolve.rollout import rollout
from coevolve.stages.parts import playing
from coevolve.stages.parts.playing import PlaySettings
from coevolve.storage import jsonl

#: The context of an endpoint's model, in tokens: unknown, so that the endpoint itself rejects what is too long.
UNKNOWN_CONTEXT = 2**31


class DraftReply(Record):
    """A model's reply to the prompt for the task of a fragment (its digest), and the number of its sampled tokens.

    `truncated`: generation stopped at max_new_tokens.
    """

    fragment: str
    text: str
    tokens: int
    truncated: bool

    def draft(self, actions: Sequence[str]) -> TaskDraft | FragmentDropReason:
        """The draft in the reply, or why it has none; `actions` are the fragment's executed ones."""
        if self.truncated:
            return FragmentDropReason.TRUNCATED
        return prompts.read_draft(self.text, actions) or FragmentDropReason.NO_QUERY


@dataclass(frozen=True)
class BoundedExplorer:
    """A policy whose episodes end when `ended` returns True. Implements `coevolve.policies.base.Policy`."""

    policy: Policy
    ended: Callable[[Conversation], bool]

    @property
    def ref(self) -> PolicyRef:
        """The reference of the policy."""
        return self.policy.ref

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """The policy's completions; an ended conversation does not fit."""
        running = [conversation for conversation in conversations if not self.ended(conversation)]
        completions = iter(self.policy.complete(running, sampling) if running else [])
        return [Completion("", fits=False) if self.ended(each) else next(completions) for each in conversations]

    def forget(self, key: str) -> None:
        """Free what the policy keeps of an episode."""
        self.policy.forget(key)


class TaskExploration:
    """The exploration of a round: its starts by name, their open tasks, and the explorer.

    `policy` is the directory of the policy that explores; None for another explorer.
    """

    def __init__(
        self,
        settings: PlaySettings,
        config: TaskEvolutionConfig,
        number: int,
        starts: Mapping[str, ExplorationStart],
        policy: Path | None,
    ) -> None:
        self._settings, self._config, self._number, self._starts = settings, config, number, starts
        self._synthesis = synthesis(settings.env.config)
        self._player, self._workers = self._load_player(policy)
        self._draft_tokens = 0

    def fragments(self) -> Iterator[tuple[Fragment, StopReason]]:
        """The fragment of every start, in their order, with the reason why its episode ended."""
        for episode in self._play():
            start = self._starts[episode.task.task_id]
            assert episode.policy is not None, "explorers have a reference"
            fragment = Fragment(
                name=episode.task.task_id,
                round=self._number,
                start=start.start,
                signal=start.signal,
                explorer=episode.policy,
                repeated=len(start.repeated),
                turns=episode.turns,
            )
            yield fragment, episode.stop

    def actions(self, fragment: Fragment) -> tuple[str, ...]:
        """The executed actions of a fragment."""
        return self._executed(fragment.turns)

    def is_new(self, fragment: Fragment) -> bool:
        """Whether the fragment has an executed action that is not repeated."""
        return len(self.actions(fragment)) > len(self._executed(fragment.turns[: fragment.repeated]))

    def draft(self, fragment: Fragment) -> TaskDraft | None:
        """The draft of a fragment's task by rules; None if the actions reach no goal."""
        return self._synthesis.describe(self._settings.env, fragment.start, self.actions(fragment))

    def written_drafts(self, fragments: Sequence[Fragment]) -> list[TaskDraft | FragmentDropReason]:
        """The drafts that the explorer's model writes, or why a fragment has none.

        Replies that a killed run received are read back.
        """
        journal = jsonl.Journal(self._settings.work / "drafts.jsonl", DraftReply)
        with contextlib.closing(journal):
            replies = {reply.fragment: reply for reply in journal.records}
            for fragment in fragments:
                if fragment.digest() not in replies:
                    replies[fragment.digest()] = reply = self._reply(fragment)
                    journal.append(reply)
        self._draft_tokens = sum(reply.tokens for reply in replies.values())
        return [replies[fragment.digest()].draft(self.actions(fragment)) for fragment in fragments]

    def notes(self, fragments: Sequence[Fragment], counts: dict[str, Any]) -> ExplorationNotes:
        """The `counts`, with what was sampled for the fragments and their drafts."""
        sampled = (turn for fragment in fragments for turn in fragment.turns[fragment.repeated :])
        return ExplorationNotes(
            counts=counts,
            sampled_tokens=sum(len(turn.token_ids) for turn in sampled) + self._draft_tokens,
            spent=playing.spending(self._settings.work, self._config.endpoint or self._settings.policies.endpoint),
        )

    def goal_task(self, fragment: Fragment, name: str, draft: TaskDraft) -> Task | None:
        """The task of a draft; None if its solution reaches nothing that a task could ask for."""
        if self._synthesis.describe(self._settings.env, fragment.start, draft.solution) is None:
            return None
        return self._synthesis.goal_task(self._settings.env, fragment.start, name, draft)

    @property
    def explorer(self) -> str:
        """The explorer's name."""
        return self._player.ref.name

    def _executed(self, turns: Sequence[Turn]) -> tuple[str, ...]:
        return self._synthesis.executed(self._settings.env, turns)

    def _play(self) -> list[Trajectory]:
        settings = self._settings
        if not self._starts:
            return []
        workers = min(self._workers, len(self._starts))
        tasks = [
            self._synthesis.open_task(start.start, name, prompts.exploration_prompt(start.signal, start.actions))
            for name, start in self._starts.items()
        ]
        journal = jsonl.Journal(settings.work / "explored.jsonl", Trajectory)
        with contextlib.closing(journal), environments(settings.env, workers) as envs:
            return rollout(
                tasks,
                BoundedExplorer(self._player, self._ended),
                envs,
                samples=1,
                sampling=self._settings.explored,
                seed=settings.seed,
                agent=settings.agent,
                protocol=settings.env.protocol,
                retries=settings.rollout.retries,
                journal=journal,
                prompt=settings.prompt,
                prefixes=[self._repeated(task, envs[0].parse) for task in tasks],
            )

    def _repeated(self, task: Task, parse: Callable[[str], str | None]) -> list[Turn]:
        """The turns that repeat a signal's actions."""
        texts = (
            self._synthesis.write(self._settings.env, task, action) for action in self._starts[task.task_id].repeated
        )
        return [Turn(text=text, action=parse(text), observation="") for text in texts]

    def _ended(self, conversation: Conversation) -> bool:
        start = self._starts[conversation.key.rpartition("#")[0]]
        done = len(self._executed(conversation.turns)) >= start.actions
        return done or len(conversation.turns) >= self._config.turns + start.extra

    def _load_player(self, policy: Path | None) -> tuple[Policy, int]:
        """The explorer, and how many episodes it plays at once."""
        policies = self._settings.policies
        if self._config.explorer == "scripted":
            return ScriptedPolicy(self._propose), policies.workers
        if self._config.explorer == "policy":
            return playing.load_player(self._settings, policy, policies.workers)
        endpoint = replace(policies, endpoint=self._config.endpoint, context=UNKNOWN_CONTEXT)
        return engines.load_player("endpoint", None, endpoint)

    def _propose(self, conversation: Conversation) -> str:
        """The next turn of scripted exploration, drawn from the episode's seed."""
        name = conversation.key.rpartition("#")[0]
        start, setup = self._starts[name], self._settings.env
        favoured = [self._synthesis.pattern(action) for action in start.signal.actions] if start.signal else []
        rng = seeds.generator(conversation.seed, "propose", len(conversation.turns))
        action = self._synthesis.propose(setup, start.start, conversation.turns, favoured, rng)
        return self._synthesis.write(setup, start.start, action)

    def _reply(self, fragment: Fragment) -> DraftReply:
        observed = observed_actions(self._settings.env, self._synthesis, fragment.turns)
        seed = seeds.derive(self._settings.seed, "draft", fragment.name)
        conversation = Conversation(f"{fragment.name}#draft", seed, prompts.abstraction_prompt(observed), ())
        (completion,) = self._player.complete([conversation], self._settings.explored)
        self._player.forget(conversation.key)
        return DraftReply(
            fragment=fragment.digest(),
            text=completion.text,
            tokens=len(completion.token_ids),
            truncated=completion.truncated,
        )
