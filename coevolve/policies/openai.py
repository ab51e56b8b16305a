"""A policy behind an OpenAI-compatible endpoint: concurrent chat completions, with the token usage of each response.

`OPENAI_BASE_URL` (default: OpenAI's) and `OPENAI_API_KEY` are environment variables; the key is sent with requests and
never written. OpenAI's client retries connection errors, time-outs, 408, 409, 429 and 5xx after the server's
`Retry-After`, or with exponential backoff. It takes most of a second to import, so only what calls it imports it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from coevolve import seeds
from coevolve.chat.prompts import without_surrogates
from coevolve.config.sections import EndpointConfig
from coevolve.errors import UserError
from coevolve.policies.base import Completion, Conversation
from coevolve.storage.jsonl import Journal
from coevolve.storage.policy_dir import REF_NAME, read_ref
from coevolve.types import PolicyRef, Record, Sampling, turn_messages

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion

LONGEST_PAUSE_SECONDS = 8.0
#: Characters from which on a key is hidden inside of words too.
SECRET_LENGTH = 8


class Usage(Record):
    """Tokens of one response as the endpoint counts them, both 0 if it does not; `key` identifies the episode."""

    key: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Answer:
    """What the kit reads of a chat completion. OpenAI's client does not check the types of a response."""

    text: str
    truncated: bool
    prompt_tokens: int
    completion_tokens: int

    @classmethod
    def of(cls, response: ChatCompletion) -> Answer:
        """The answer in a response; raises ValueError, TypeError or AttributeError if it is malformed."""
        choice, *_ = response.choices
        text, usage = choice.message.content, response.usage
        counts = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
        if not isinstance(text, str | None) or not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError("a field of the chat completion has another type")
        return cls(without_surrogates(text or ""), choice.finish_reason == "length", *counts)


class OpenAIPolicy:
    """Sends the whole conversation to the endpoint's model each turn; completions have no token ids.

    A conversation does not fit if the endpoint rejects it as too long, or counts more than context - max_new_tokens
    prompt tokens. The usage of each response is appended to `journal` at once. Raises `UserError` if the endpoint
    rejects the key, the model or the request, or does not answer with a chat completion.
    """

    def __init__(self, endpoint: EndpointConfig, *, context: int, journal: Journal[Usage]) -> None:
        import openai

        self.ref = endpoint_ref(endpoint.model)
        self._endpoint, self._context = endpoint, context
        self._journal, self._journal_lock = journal, threading.Lock()
        self._client = openai.OpenAI(
            api_key=_api_key(),
            base_url=_base_url(),
            timeout=endpoint.timeout_seconds,
            max_retries=endpoint.retries,
        )

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """The next action of each conversation, in order."""
        with ThreadPoolExecutor(max_workers=self._endpoint.concurrency) as threads:
            return list(threads.map(lambda conversation: self._complete(conversation, sampling), conversations))

    def forget(self, key: str) -> None:
        """Does nothing: the endpoint keeps no conversations."""

    def _complete(self, conversation: Conversation, sampling: Sampling) -> Completion:
        import openai

        request = self._request(conversation, sampling)
        try:
            answer = self._answer(request)
        except openai.OpenAIError as error:
            if _too_long(error):
                return Completion(text="", fits=False)
            raise UserError(self._error_message(error)) from None
        counts = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
        with self._journal_lock:
            self._journal.append(Usage(key=conversation.key, **counts))
        if answer.prompt_tokens + sampling.max_new_tokens > self._context:
            return Completion(text="", fits=False)
        return Completion(answer.text.strip(), truncated=answer.truncated)

    def _answer(self, request: dict[str, Any]) -> Answer:
        """The answer to a request, which is repeated after a malformed one; raises `UserError` after the last."""
        attempts = self._endpoint.retries + 1
        for attempt in range(attempts):
            try:
                return Answer.of(self._client.chat.completions.create(**request))
            except (ValueError, TypeError, AttributeError, RecursionError):  # no JSON, or JSON of another shape
                if attempt + 1 < attempts:
                    time.sleep(min(2.0**attempt / 2, LONGEST_PAUSE_SECONDS))
        raise UserError(
            f"{_endpoint_host()}: the response is not a chat completion, {attempts} times;"
            " OPENAI_BASE_URL usually ends with /v1."
        )

    def _request(self, conversation: Conversation, sampling: Sampling) -> dict[str, Any]:
        messages = (*conversation.prompt, *turn_messages(conversation.turns))
        request: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": [message.model_dump() for message in messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._endpoint.length: sampling.max_new_tokens,
        }
        if self._endpoint.seeds:
            # Some servers store a seed as a signed 32-bit number.
            request["seed"] = seeds.derive(conversation.seed, "turn", len(conversation.turns)) % 2**31
        return request

    def _error_message(self, error: openai.OpenAIError) -> str:
        """The problem and its remedy in one sentence, without the API key."""
        status = getattr(error, "status_code", None)
        detail = " ".join(_without_key(str(error)).split())[:300]
        again = "then run again: finished episodes are kept"
        name = self._endpoint.model
        problem = {
            None: f"no response after {self._endpoint.retries} retries ({detail}); check that the server runs, {again}",
            401: f"OPENAI_API_KEY is not accepted (401); export a valid one, {again}",
            403: f"this key has no access to model `{name}` (403); use another model or key, {again}",
            404: f"model `{name}` was not found ({detail}); correct `endpoint.model` or OPENAI_BASE_URL",
            429: f"too many requests after {self._endpoint.retries} retries ({detail}); lower `concurrency`, {again}",
        }
        rejected = f"the request was rejected ({detail}); correct the model's `endpoint` section"
        failing = f"still failing after {self._endpoint.retries} retries ({detail}); wait, {again}"
        return f"{_endpoint_host()}: {problem.get(status, failing if status and status >= 500 else rejected)}."


def endpoint_ref(model: str) -> PolicyRef:
    """The reference of a model behind the endpoint: its hash is over host and model name, not over weights."""
    return PolicyRef(name=model, sha256=hashlib.sha256(f"{_endpoint_host()} {model}".encode()).hexdigest(), base=model)


def check_ref(path: Path, model: str) -> None:
    """Raises `UserError` unless the policy directory `path` holds the reference of this model at this endpoint."""
    ref = read_ref(path / REF_NAME)
    if ref != endpoint_ref(model):
        raise UserError(
            f"{path / REF_NAME}: it is of model `{ref.name}` at another endpoint than {_endpoint_host()}; "
            "restore OPENAI_BASE_URL, or delete the file and what was made from it."
        )


def spending(usages: Iterable[Usage], price_in: float, price_out: float) -> dict[str, Any]:
    """Responses, tokens and cost, in total and by episode; prices are per million tokens, cost in their currency.

    Responses that a killed run received are included: they were paid for.
    """
    by_episode: dict[str, list[Usage]] = {}
    for usage in usages:
        by_episode.setdefault(usage.key, []).append(usage)
    everything = [usage for group in by_episode.values() for usage in group]
    episodes = {key: _totals(group, price_in, price_out) for key, group in sorted(by_episode.items())}
    return {**_totals(everything, price_in, price_out), "prices": [price_in, price_out], "episodes": episodes}


def _totals(usages: Sequence[Usage], price_in: float, price_out: float) -> dict[str, Any]:
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    return {
        "answers": len(usages),
        "uncounted": sum(not (usage.prompt_tokens or usage.completion_tokens) for usage in usages),
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "cost": round((prompt_tokens * price_in + completion_tokens * price_out) / 1e6, 6),
    }


def _too_long(error: openai.OpenAIError) -> bool:
    """Whether the conversation exceeds the model's context: by OpenAI's error code, or by other servers' message."""
    import openai

    if not isinstance(error, openai.BadRequestError):
        return False
    # "context length" is vLLM's word, "context size" llama.cpp's.
    message = str(error).lower()
    return error.code == "context_length_exceeded" or "context length" in message or "context size" in message


def _base_url() -> str:
    """The endpoint's address, by default OpenAI's; raises `UserError` if it is not a URL with a host."""
    address = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    with contextlib.suppress(ValueError):
        url = urlsplit(address)
        if _is_plain(address) and url.scheme in ("http", "https") and url.hostname and url.port != 0:
            url.hostname.encode("idna")  # has no empty label and no long one
            return address
    raise UserError("OPENAI_BASE_URL: not an address such as `http://127.0.0.1:8000/v1`; correct or unset it.")


def _endpoint_host() -> str:
    """The endpoint's host and port, without the user and password that a URL may hold."""
    url = urlsplit(_base_url())
    return f"{url.hostname}:{url.port}" if url.port else str(url.hostname)


def _api_key() -> str:
    key = os.environ.get("OPENAI_API_KEY")
    if not key:
        raise UserError("OPENAI_API_KEY: not set; export the endpoint's key, or any word if it needs none.")
    if not _is_plain(key):
        raise UserError("OPENAI_API_KEY: holds a blank, a line break or a letter that is not ASCII; export it again.")
    return key


def _without_key(text: str) -> str:
    """The text with `***` for the API key; a key of a few letters, such as `x`, may be part of other words."""
    key = re.escape(_api_key())
    return re.sub(key if len(_api_key()) >= SECRET_LENGTH else rf"(?<!\w){key}(?!\w)", "***", text)


def _is_plain(text: str) -> bool:
    """Whether a header or an address can hold `text`: ASCII letters, digits and signs."""
    return text.isascii() and text.isprintable() and " " not in text
