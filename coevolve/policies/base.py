"""What the kit asks of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coevolve.types import Message, PolicyRef, Sampling, Turn


@dataclass(frozen=True)
class Conversation:
    """A conversation that awaits its next action.

    `key` names the episode: it stays the same over the episode's turns (so that a policy can keep its KV cache), and
    with `seed` it decides the randomness of the completion. `seed` is the episode's own.
    """

    key: str
    seed: int
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Completion:
    """What the policy said: the text without its end-of-turn token, and the sampled ids with it.

    `truncated`: max_new_tokens ran out first. `fits` is False when the conversation did not fit the context window;
    then nothing was sampled.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    truncated: bool = False
    fits: bool = True


class Policy(Protocol):
    """Completes many conversations at once."""

    @property
    def ref(self) -> PolicyRef:
        """Which weights these are."""
        ...

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """The next action of each conversation, in order. An answer depends on its own conversation only, never on
        which others stand beside it.
        """
        ...

    def forget(self, key: str) -> None:
        """The episode called `key` is over: its cache may go."""
        ...
