"""A policy behind an OpenAI-compatible endpoint: chat completions, several at a time, every answer's tokens counted.

`OPENAI_BASE_URL` (unset: OpenAI's own) and `OPENAI_API_KEY` come from the environment; the key goes into requests and
nowhere else. OpenAI's client retries connection errors, time-outs, 408, 409, 429 and 5xx after the server's
`Retry-After`, or after pauses that double.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletion
from pydantic import ValidationError

from coevolve import seeds
from coevolve.errors import UserError
from coevolve.policies.base import Completion, Conversation
from coevolve.storage.jsonl import Journal
from coevolve.storage.policy_dir import REF_NAME
from coevolve.types import Message, PolicyRef, Record, Sampling

LengthKey = Literal["max_tokens", "max_completion_tokens"]


class Usage(Record):
    """Tokens of one answer, as the endpoint counts them; `key` names the episode. 0 of both: it did not say."""

    key: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Habits:
    """How an endpoint is asked: requests at once, seconds until one has failed, and how often it is then repeated.

    `seeds`: whether it takes a `seed`. `length`: what it calls the most tokens of an answer.
    """

    concurrency: int
    timeout: float
    retries: int
    seeds: bool
    length: LengthKey


class OpenAIPolicy:
    """Asks `model` with the whole conversation each turn; completions have no token ids.

    A conversation that the endpoint refuses as too long, or counts as more tokens than `context` leaves beside
    `max_new_tokens`, does not fit. Raises `UserError` where the endpoint refuses the key, the model or the request, and
    where it stays silent. What each answer cost goes to `journal` at once.
    """

    def __init__(self, model: str, habits: Habits, *, context: int, journal: Journal[Usage]) -> None:
        self.ref = name(model)
        self._model, self._habits, self._context = model, habits, context
        self._journal, self._turnstile = journal, threading.Lock()
        self._client = openai.OpenAI(api_key=_key(), timeout=habits.timeout, max_retries=habits.retries)

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """The next action of each conversation, in order."""
        with ThreadPoolExecutor(max_workers=self._habits.concurrency) as threads:
            return list(threads.map(lambda conversation: self._complete(conversation, sampling), conversations))

    def forget(self, key: str) -> None:
        """Nothing is kept."""

    def _complete(self, conversation: Conversation, sampling: Sampling) -> Completion:
        answer: object = None
        try:
            answer = self._client.chat.completions.create(**self._request(conversation, sampling))
        except json.JSONDecodeError:
            pass
        except openai.OpenAIError as error:
            if _too_long(error):
                return Completion(text="", fits=False)
            raise UserError(self._sentence(error)) from None
        if not isinstance(answer, ChatCompletion) or not answer.choices:
            raise UserError(f"{_host()}: its answer is no chat completion; OPENAI_BASE_URL usually ends with /v1.")
        usage = self._count(conversation.key, answer)
        if usage.prompt_tokens + sampling.max_new_tokens > self._context:
            return Completion(text="", fits=False)
        choice = answer.choices[0]
        return Completion((choice.message.content or "").strip(), truncated=choice.finish_reason == "length")

    def _request(self, conversation: Conversation, sampling: Sampling) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": said.role, "content": said.content} for said in _messages(conversation)],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._habits.length: sampling.max_new_tokens,
        }
        if self._habits.seeds:
            # Some servers hold a seed in 32 bits, with a sign.
            request["seed"] = seeds.derive(conversation.seed, "turn", len(conversation.turns)) % 2**31
        return request

    def _count(self, key: str, answer: ChatCompletion) -> Usage:
        counted = answer.usage
        usage = Usage(
            key=key,
            prompt_tokens=counted.prompt_tokens if counted else 0,
            completion_tokens=counted.completion_tokens if counted else 0,
        )
        with self._turnstile:
            self._journal.append(usage)
        return usage

    def _sentence(self, error: openai.OpenAIError) -> str:
        """What went wrong, and what helps."""
        status, said = getattr(error, "status_code", None), " ".join(str(error).replace(_key(), "***").split())[:300]
        again = "then run again: finished episodes are kept"
        problem = {
            None: f"no answer after {self._habits.retries} retries ({said}); see that it runs, {again}",
            401: f"OPENAI_API_KEY is not accepted (401); export a valid one, {again}",
            403: f"this key may not use model `{self._model}` (403); take another model or key, {again}",
            404: f"model `{self._model}` is not there ({said}); correct `endpoint.model` or OPENAI_BASE_URL",
            429: f"too many requests after {self._habits.retries} retries ({said}); lower `concurrency`, {again}",
        }
        refused = f"the request was refused ({said}); correct the model's `endpoint` section"
        broken = f"still failing after {self._habits.retries} retries ({said}); wait, {again}"
        return f"{_host()}: {problem.get(status, broken if status and status >= 500 else refused)}."


def name(model: str) -> PolicyRef:
    """The name of a model behind the endpoint: a hash of both their names, as the weights are out of sight."""
    return PolicyRef(name=model, sha256=hashlib.sha256(f"{_host()} {model}".encode()).hexdigest(), base=model)


def check(path: Path, model: str) -> None:
    """Raises `UserError` unless the policy directory `path` names this model at this endpoint."""
    try:
        found = PolicyRef.from_json((path / REF_NAME).read_bytes())
    except (FileNotFoundError, ValidationError):
        raise UserError(f"{path / REF_NAME}: missing or unreadable; rerun the stage that made the policy.") from None
    if found != name(model):
        raise UserError(
            f"{path / REF_NAME}: it names `{found.name}` of another endpoint than {_host()}; "
            "set OPENAI_BASE_URL as it was, or delete the file and what was made from it."
        )


def bill(answers: Iterable[Usage], price_in: float, price_out: float) -> dict[str, Any]:
    """Answers, tokens and cost in total and by episode; prices are per million tokens, the cost in their currency.

    What was answered before a kill counts too: it was paid for.
    """
    by_episode: dict[str, list[Usage]] = {}
    for answer in answers:
        by_episode.setdefault(answer.key, []).append(answer)
    everything = [answer for own in by_episode.values() for answer in own]
    episodes = {key: _sums(own, price_in, price_out) for key, own in sorted(by_episode.items())}
    return {**_sums(everything, price_in, price_out), "prices": [price_in, price_out], "episodes": episodes}


def _sums(answers: Sequence[Usage], price_in: float, price_out: float) -> dict[str, Any]:
    read, written = sum(a.prompt_tokens for a in answers), sum(a.completion_tokens for a in answers)
    return {
        "answers": len(answers),
        "uncounted": sum(not (a.prompt_tokens or a.completion_tokens) for a in answers),
        "prompt_tokens": read,
        "completion_tokens": written,
        "cost": round((read * price_in + written * price_out) / 1e6, 6),
    }


def _messages(conversation: Conversation) -> Iterator[Message]:
    yield from conversation.prompt
    for turn in conversation.turns:
        yield Message(role="assistant", content=turn.text)
        yield Message(role="user", content=turn.observation)


def _too_long(error: openai.OpenAIError) -> bool:
    """Whether the conversation exceeds the model's context, in the words of OpenAI or of others."""
    if not isinstance(error, openai.BadRequestError):
        return False
    return error.code == "context_length_exceeded" or "context length" in str(error).lower()


def _host() -> str:
    """The endpoint's host and port; a URL may also hold a password."""
    url = urlsplit(os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1")
    return f"{url.hostname}:{url.port}" if url.port else str(url.hostname)


def _key() -> str:
    key = os.environ.get("OPENAI_API_KEY")
    if not key:
        raise UserError("OPENAI_API_KEY: not set; export the endpoint's key, or any word if it asks for none.")
    return key
