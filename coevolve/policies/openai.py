"""A policy behind an OpenAI-compatible endpoint: concurrent chat completions, with the token usage of each response.

`OPENAI_BASE_URL` (default: OpenAI's) and `OPENAI_API_KEY` are environment variables; the key is sent with requests and
never written. OpenAI's client retries connection errors, time-outs, 408, 409, 429 and 5xx after the server's
`Retry-After`, or with exponential backoff. It takes most of a second to import, so only what calls it imports it.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve import seeds
from coevolve.chat.prompts import without_surrogates
from coevolve.errors import UserError, brief
from coevolve.policies.base import Completion, ContinuousPolicy, Conversation, EngineSettings
from coevolve.policies.endpoint import Usage, base_url, check_ref, endpoint_host, endpoint_ref, is_plain
from coevolve.policies.settings import EndpointConfig
from coevolve.records.episodes import PolicyRef, Sampling, StopReason, turn_messages
from coevolve.storage.jsonl import Journal

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion

LONGEST_PAUSE_SECONDS = 8.0
#: The longest wait for a response before conversations whose environments have stepped can be submitted.
POLL_SECONDS = 0.02
#: What a request has in place of an empty message.
EMPTY_ANSWER = "..."
#: How servers say that a conversation exceeds the context: OpenAI's code and LiteLLM's class, then the words of vLLM,
#: llama.cpp, Anthropic, Bedrock, older vLLM, Gemini and TGI.
_TOO_LONG = re.compile(
    r"context_length_exceeded|contextwindowexceeded|context (length|size)|prompt is too long|input is too long"
    r"|too long and exceeds limit|exceeds the maximum number of tokens|tokens \+ `?max_new_tokens`? must be"
)
#: How servers say that a filter refused a conversation or its answer: codes of OpenAI and Azure and LiteLLM's class,
#: then the words of Azure, Anthropic, OpenAI, Bedrock and LiteLLM's guardrails, Gemini, OpenRouter, DeepSeek and Qwen.
_FILTERED = re.compile(
    r"content_filter|content_policy_violation|contentpolicyviolation|responsibleaipolicyviolation"
    r"|content management policy|content filter(s|ing)\b|violating our usage policy|guardrail|prohibited_content"
    r"|input was flagged|content exists risk|data_inspection_failed|datainspectionfailed"
)
#: `finish_reason` of an answer that a filter ended; Gemini has its own words.
_FILTERED_ANSWER = re.compile("content_filter|guardrail|safety|recitation|blocklist|prohibited_content|spii")
#: `finish_reason` of an answer that reached the limit of tokens: OpenAI's, Mistral's, Gemini's.
_CUT_ANSWER = ("length", "model_length", "max_tokens")
#: `finish_reason` of an answer during which the server failed: OpenRouter's and Mistral's, vLLM's and SGLang's.
_FAILED_ANSWER = ("error", "abort")
#: Characters from which on a key is hidden inside of words too.
SECRET_LENGTH = 8

_log = logging.getLogger(__name__)


class FailedAnswerError(ValueError):
    """A response of status 200 in which the server says that it failed."""


def read_response(response: ChatCompletion, key: str, limit: int) -> tuple[Completion, Usage]:
    """The action and the usage in a response to a request for at most `limit` tokens.

    Raises `FailedAnswerError` if the server says that it failed; ValueError, TypeError, AttributeError or LookupError
    for a malformed one.
    """
    if not response.choices and (error := getattr(response, "error", None)):
        message = str(error["message"])
        if stop := _refusal(message.lower()):
            return Completion("", stop=stop), Usage(key=key, prompt_tokens=0, completion_tokens=0)
        raise FailedAnswerError(message)
    choice, *_ = response.choices
    usage = response.usage
    prompted, written = (usage.prompt_tokens or 0, usage.completion_tokens or 0) if usage else (0, 0)
    reason = str(choice.finish_reason).lower()
    if reason in _FAILED_ANSWER:
        raise FailedAnswerError(f"finish_reason `{reason}`")
    if _FILTERED_ANSWER.match(reason):
        completion = Completion("", stop=StopReason.CONTENT_FILTER)
    else:
        cut = reason in _CUT_ANSWER or (choice.finish_reason is None and written >= limit)
        completion = Completion(_text(choice.message.content), truncated=cut)
    served = " ".join(_text(str(name)) for name in (response.model, response.system_fingerprint) if name)
    return completion, Usage(key=key, served=served, prompt_tokens=prompted, completion_tokens=written)


def _text(content: Any) -> str:
    """The text of a message without the API key; some servers send it in parts, thoughts among them."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type", "text") == "text")
    action = without_surrogates("" if content is None else content).strip()
    # A short key is no secret, and may be a word of the answer.
    return _without_key(action) if len(_api_key()) >= SECRET_LENGTH else action


def player(folder: Path | None, settings: EngineSettings) -> tuple[OpenAIPolicy, int]:
    """The endpoint's model, for all workers; `UserError` if a directory refers to another one."""
    assert settings.endpoint is not None, "the engine `endpoint` is that of models with one"
    if folder:
        check_ref(folder, settings.endpoint.model)
    journal = Journal(settings.usage, Usage)
    return OpenAIPolicy(settings.endpoint, context=settings.context, journal=journal), settings.workers


class OpenAIPolicy(ContinuousPolicy):
    """Sends the whole conversation to the endpoint's model each turn; completions have no token ids.

    A conversation does not fit if the endpoint rejects it as too long, or counts more than context - max_new_tokens
    prompt tokens. The usage of each response is appended to `journal` at once. Raises `UserError` if the endpoint
    rejects the key, the model or the request, or does not answer with a chat completion.
    """

    def __init__(self, endpoint: EndpointConfig, *, context: int, journal: Journal[Usage]) -> None:
        import openai

        self._endpoint, self._context = endpoint, context
        self._threads = ThreadPoolExecutor(max_workers=endpoint.concurrency)
        self._requests: dict[str, Future[Completion]] = {}
        self._journal, self._journal_lock = journal, threading.Lock()
        self._counted: dict[str, tuple[int, int]] = {}  # turns and prompt tokens of each episode
        self._warned = False
        self._client = openai.OpenAI(
            api_key=_api_key(),
            base_url=base_url(),
            timeout=endpoint.timeout_seconds,
            max_retries=endpoint.retries,
        )

    @property
    def ref(self) -> PolicyRef:
        """The model's name, and a hash of it and of the endpoint's host."""
        return endpoint_ref(self._endpoint.model)

    def submit(self, conversations: Sequence[Conversation], sampling: Sampling) -> None:
        """Queue a request for each conversation; `concurrency` of them are sent at a time."""
        for conversation in conversations:
            self._requests[conversation.key] = self._threads.submit(self._complete, conversation, sampling)

    def poll(self) -> dict[str, Completion]:
        """The completions whose responses have come, by episode."""
        wait(self._requests.values(), POLL_SECONDS, FIRST_COMPLETED)
        done = [key for key, request in self._requests.items() if request.done()]
        return {key: self._requests.pop(key).result() for key in done}

    def forget(self, key: str) -> None:
        """Cancel a request that has not been sent; the endpoint keeps no conversations."""
        self._counted.pop(key, None)
        if request := self._requests.pop(key, None):
            request.cancel()

    def _complete(self, conversation: Conversation, sampling: Sampling) -> Completion:
        import openai

        request = self._request(conversation, sampling)
        try:
            completion, usage = self._answer(request, conversation.key, sampling.max_new_tokens)
        except openai.OpenAIError as error:
            if stop := _stop(error):
                return Completion(text="", stop=stop)
            raise UserError(self._error_message(error)) from None
        with self._journal_lock:
            self._journal.append(usage)
            self._notice_cut(conversation, usage.prompt_tokens)
        if not completion.stop and usage.prompt_tokens + sampling.max_new_tokens > self._context:
            return Completion(text="", stop=StopReason.CONTEXT)
        return completion

    def _notice_cut(self, conversation: Conversation, tokens: int) -> None:
        """Warn, once, if a later turn's prompt has no more tokens than an earlier one's: a server may cut prompts."""
        turns = len(conversation.turns)
        earlier, most = self._counted.get(conversation.key, (turns, 0))
        self._counted[conversation.key] = (turns, tokens)
        if turns > earlier and 0 < tokens <= most and not self._warned:
            self._warned = True
            _log.warning(
                "%s: it counts %d prompt tokens in turn %d of an episode and %d in turn %d; if it cuts long"
                " conversations, raise its context or lower the model's `context`.",
                *(endpoint_host(), most, earlier + 1, tokens, turns + 1),
            )

    def _answer(self, request: dict[str, Any], key: str, limit: int) -> tuple[Completion, Usage]:
        """The answer to a request, which is repeated after a malformed one; raises `UserError` after the last."""
        attempts, failure = self._endpoint.retries + 1, ""
        for attempt in range(attempts):
            try:
                return read_response(self._client.chat.completions.create(**request), key, limit)
            except FailedAnswerError as error:
                failure = brief(_without_key(str(error)))
            except (ValueError, TypeError, AttributeError, LookupError, RecursionError):  # no JSON, or of another shape
                failure = ""
            if attempt + 1 < attempts:
                time.sleep(min(2.0**attempt / 2, LONGEST_PAUSE_SECONDS))
        if failure:
            problem = f"the server failed while it answered ({failure})"
            raise UserError(f"{endpoint_host()}: {problem}, {attempts} times; run again: finished episodes are kept.")
        raise UserError(
            f"{endpoint_host()}: the response is not a chat completion, {attempts} times;"
            " OPENAI_BASE_URL usually ends with /v1."
        )

    def _request(self, conversation: Conversation, sampling: Sampling) -> dict[str, Any]:
        messages = (*conversation.prompt, *turn_messages(conversation.turns))
        request: dict[str, Any] = {
            "model": self._endpoint.model,
            # An empty answer is refused by some servers when it is sent back.
            "messages": [{"role": each.role, "content": each.content or EMPTY_ANSWER} for each in messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._endpoint.length: sampling.max_new_tokens,
        }
        for name in self._endpoint.omit or ():
            del request[name]
        if self._endpoint.seeds:
            # Some servers store a seed as a signed 32-bit number.
            request["seed"] = seeds.derive(conversation.seed, "turn", len(conversation.turns)) % 2**31
        return request

    def _error_message(self, error: openai.OpenAIError) -> str:
        """The problem and its remedy in one sentence, without the API key."""
        status = getattr(error, "status_code", None)
        detail = brief(_without_key(str(error)))
        again = "then run again: finished episodes are kept"
        name = self._endpoint.model
        problem = {
            None: f"no response after {self._endpoint.retries} retries ({detail}); check that the server runs, {again}",
            401: f"OPENAI_API_KEY is not accepted (401); export a valid one, {again}",
            403: f"this key has no access to model `{name}` (403); use another model or key, {again}",
            404: f"model `{name}` was not found ({detail}); correct `endpoint.model` or OPENAI_BASE_URL",
            413: f"the request is too large for the key's limit ({detail}); lower `concurrency`, {again}",
            429: f"too many requests after {self._endpoint.retries} retries ({detail}); lower `concurrency`, {again}",
        }
        refused = re.search(r"['`](temperature|top_p)['`]", detail)
        fix = f"add `{refused[1]}` to its key `omit`" if refused else "correct it"
        rejected = f"the request was rejected ({detail}); in the model's `endpoint` section {fix}"
        failing = f"still failing after {self._endpoint.retries} retries ({detail}); wait, {again}"
        return f"{endpoint_host()}: {problem.get(status, failing if status and status >= 500 else rejected)}."


def _stop(error: openai.OpenAIError) -> StopReason | None:
    """Why a refusal ends the episode, by the error's code or the server's message; None: it ends the job."""
    import openai

    message = f"{getattr(error, 'code', None)} {error}".lower()
    if isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError):
        return _refusal(message)
    forbidden = isinstance(error, openai.PermissionDeniedError) and _FILTERED.search(message)
    return StopReason.CONTENT_FILTER if forbidden else None


def _refusal(message: str) -> StopReason | None:
    """Why a server refuses a conversation, by its words in lower case; None: for another reason."""
    if _TOO_LONG.search(message):
        return StopReason.CONTEXT
    return StopReason.CONTENT_FILTER if _FILTERED.search(message) else None


def _api_key() -> str:
    key = os.environ.get("OPENAI_API_KEY")
    if not key:
        raise UserError("OPENAI_API_KEY: not set; export the endpoint's key, or any word if it needs none.")
    if not is_plain(key):
        raise UserError("OPENAI_API_KEY: holds a blank, a line break or a letter that is not ASCII; export it again.")
    return key


def _without_key(text: str) -> str:
    """The text with `***` for the API key; a key of a few letters, such as `x`, may be part of other words."""
    key = re.escape(_api_key())
    return re.sub(key if len(_api_key()) >= SECRET_LENGTH else rf"(?<!\w){key}(?!\w)", "***", text)
