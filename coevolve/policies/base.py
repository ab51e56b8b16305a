"""The interfaces of a policy: one that completes a batch at a time, and one whose completions finish on their own."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from coevolve import seeds
from coevolve.records.episodes import Message, PolicyRef, Sampling, StopReason, Turn, turn_messages


@dataclass(frozen=True)
class Conversation:
    """A conversation that awaits its next action.

    `key` identifies the episode and is the same in all of its turns, so that a policy can keep the episode's KV cache.
    `seed` is the episode's seed; with the number of turns it determines the randomness of the completion.
    """

    key: str
    seed: int
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]

    def last_message(self) -> "Conversation":
        """Its last message as a whole prompt, with a seed that depends on the number of turns."""
        *_, last = (*self.prompt, *turn_messages(self.turns))
        return Conversation(self.key, seeds.derive(self.seed, "message", len(self.turns)), (last,), ())


@dataclass(frozen=True)
class Completion:
    """The next action: its text without the end-of-turn token, and the sampled token ids with it.

    `truncated`: generation stopped at max_new_tokens. `stop`: why there is no action and the episode ends, such as a
    conversation that exceeds the context window. `logps`: log-probs in nats of the token ids, if the policy was to keep
    them.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    truncated: bool = False
    stop: StopReason | None = None
    logps: tuple[float, ...] = ()


class Policy(Protocol):
    """Completes many conversations at once."""

    @property
    def ref(self) -> PolicyRef:
        """Name and hash of the weights."""
        ...

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """The next action of each conversation, in order. Each depends on its own conversation only."""
        ...

    def forget(self, key: str) -> None:
        """Free what is cached for the finished episode `key`."""
        ...


@runtime_checkable
class ContinuousPolicy(Policy, Protocol):
    """A policy whose completions finish one by one, while others are submitted (continuous batching).

    An episode has at most one unfinished request. The policy decides how many conversations it holds at a time: what
    exceeds its cache waits for its turn.
    """

    def submit(self, conversations: Sequence[Conversation], sampling: Sampling) -> None:
        """Request the next action of each conversation."""
        ...

    def poll(self) -> dict[str, Completion]:
        """Completions that have finished since the last call, by episode; with none, it returns after a short wait."""
        ...

    def forget(self, key: str) -> None:
        """Free what is cached for the episode `key`, and drop its unfinished request."""
        ...

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """The next action of each conversation, in order; the conversations are of different episodes."""
        self.submit(conversations, sampling)
        completions: dict[str, Completion] = {}
        try:
            while len(completions) < len(conversations):
                completions |= self.poll()
        except Exception:
            for conversation in conversations:
                self.forget(conversation.key)
            raise
        return [completions[conversation.key] for conversation in conversations]


class BatchedPolicy:
    """`submit` and `poll` of a policy that completes a batch at a time: what is submitted together is a batch."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._batches: deque[tuple[Sequence[Conversation], Sampling]] = deque()
        self.forget = policy.forget

    def submit(self, conversations: Sequence[Conversation], sampling: Sampling) -> None:
        """Add a batch."""
        self._batches.append((conversations, sampling))

    def poll(self) -> dict[str, Completion]:
        """The completions of the batch that was submitted first, by episode."""
        conversations, sampling = self._batches.popleft()
        completions = self._policy.complete(conversations, sampling)
        return {each.key: completion for each, completion in zip(conversations, completions, strict=True)}
