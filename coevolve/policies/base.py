"""The interfaces of a policy: one that completes a batch at a time, and one whose completions finish on their own.

An engine that plays is a module that is imported by name: a job's code digest covers its own engine alone.
"""

import hashlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from coevolve import seeds
from coevolve.policies.settings import VLLM_DEVICES, EndpointConfig, VllmDevices
from coevolve.records.episodes import Message, PolicyRef, Sampling, StopReason, Turn, turn_messages
from coevolve.settings.protocol import LongPrompt

_MODULES = {"transformers": "hf", "vllm": "vllm", "endpoint": "openai", "scripted": "base"}


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


@dataclass(frozen=True)
class ScriptedPolicy:
    """A policy of scripted exploration: acts with the text of `script(conversation)`; None ends the episode."""

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


@dataclass(frozen=True)
class EngineSettings:
    """The settings of a policy that plays.

    `context` is in tokens. `workers`: the environments that there can be. `usage`: the journal of an
    endpoint's token counts. `dtype`: of weights and activations (None: bfloat16 on a GPU, float32 on a CPU).
    """

    context: int
    long_prompt: LongPrompt
    workers: int
    usage: Path
    dtype: str | None = None
    endpoint: EndpointConfig | None = None
    devices: VllmDevices = VLLM_DEVICES


def engine_module(engine: str) -> str:
    """The name of an engine's module."""
    return f"coevolve.policies.{_MODULES[engine]}"


def engine_player(engine: str, folder: Path | None, settings: EngineSettings) -> tuple[Policy, int]:
    """The policy in a directory, loaded by the engine's `player`, and how many environments it keeps busy."""
    loaded: tuple[Policy, int] = importlib.import_module(engine_module(engine)).player(folder, settings)
    return loaded
