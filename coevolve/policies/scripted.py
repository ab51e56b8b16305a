"""A policy that says what it is told to: for tests, and for replaying recorded trajectories."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coevolve.policies.base import Completion, Conversation
from coevolve.types import PolicyRef, Sampling


@dataclass(frozen=True)
class ScriptedPolicy:
    """Says `script(conversation)`; None means that it has nothing left to say, which ends the episode."""

    script: Callable[[Conversation], str | None]
    name: str = "scripted"

    @property
    def ref(self) -> PolicyRef:
        """The script's name stands for its weights."""
        return PolicyRef(name=self.name, sha256=hashlib.sha256(self.name.encode()).hexdigest())

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """What the script says to each conversation."""
        texts = [self.script(conversation) for conversation in conversations]
        return [Completion(text=text or "", fits=text is not None) for text in texts]

    def forget(self, key: str) -> None:
        """Nothing is kept."""


def recorded(texts: Mapping[str, Sequence[str]], name: str = "recorded") -> ScriptedPolicy:
    """A policy that says `texts[task id]`, one after the other, in every episode of that task."""

    def script(conversation: Conversation) -> str | None:
        task_id, _, _ = conversation.key.rpartition("#")
        left = texts[task_id][len(conversation.turns) :]
        return left[0] if left else None

    return ScriptedPolicy(script, name)
