"""A policy whose actions come from a function: for scripted exploration, and for tests."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coevolve.policies.base import Completion, Conversation
from coevolve.records.episodes import PolicyRef, Sampling, StopReason


@dataclass(frozen=True)
class ScriptedPolicy:
    """Acts with the text of `script(conversation)`; None ends the episode."""

    script: Callable[[Conversation], str | None]
    name: str = "scripted"

    @property
    def ref(self) -> PolicyRef:
        """The script's name, hashed in place of weights."""
        return PolicyRef(name=self.name, sha256=hashlib.sha256(self.name.encode()).hexdigest())

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """The script's text for each conversation."""
        texts = [self.script(conversation) for conversation in conversations]
        return [Completion(text=text or "", stop=None if text is not None else StopReason.CONTEXT) for text in texts]

    def forget(self, key: str) -> None:
        """Does nothing: there is no cache."""
