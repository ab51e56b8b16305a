"""A policy whose actions come from a function: for tests, and to replay recorded trajectories."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coevolve.policies.base import Completion, Conversation
from coevolve.types import PolicyRef, Sampling


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
        return [Completion(text=text or "", fits=text is not None) for text in texts]

    def forget(self, key: str) -> None:
        """Does nothing: there is no cache."""


def recorded(texts: Mapping[str, Sequence[str]], name: str = "recorded") -> ScriptedPolicy:
    """A policy that acts with `texts[task id]`, one text per turn, in every episode of that task."""

    def script(conversation: Conversation) -> str | None:
        task_id, _, _ = conversation.key.rpartition("#")
        remaining = texts[task_id][len(conversation.turns) :]
        return remaining[0] if remaining else None

    return ScriptedPolicy(script, name)
