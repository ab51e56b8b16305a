"""The interface of a policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coevolve.records.episodes import Message, PolicyRef, Sampling, Turn


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


@dataclass(frozen=True)
class Completion:
    """The next action: its text without the end-of-turn token, and the sampled token ids with it.

    `truncated`: generation stopped at max_new_tokens. `fits` is False if the conversation exceeds the context window;
    then nothing was sampled. `logps`: log-probs in nats of the token ids, if the policy was to keep them.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    truncated: bool = False
    fits: bool = True
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
