"""What is known of an endpoint's model without a request: its reference, and the usage and cost of its responses."""

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from coevolve.errors import UserError
from coevolve.records.base import Record
from coevolve.records.episodes import PolicyRef
from coevolve.storage.policy_dir import REF_NAME, read_ref

#: No context is as long: an endpoint that counts more does not answer with a chat completion.
MAX_TOKENS = 10**9


class Usage(Record):
    """Tokens of one response as the endpoint counts them, both 0 if it does not; `key` identifies the episode.

    `served` is the name of the model that wrote it, as the response says, with the fingerprint of its backend.
    """

    key: str
    served: str = ""
    prompt_tokens: int = Field(strict=True, ge=0, le=MAX_TOKENS)
    completion_tokens: int = Field(strict=True, ge=0, le=MAX_TOKENS)


def endpoint_ref(model: str) -> PolicyRef:
    """The reference of a model behind the endpoint: its hash is over host and model name, not over weights."""
    return PolicyRef(name=model, sha256=hashlib.sha256(f"{endpoint_host()} {model}".encode()).hexdigest(), base=model)


def check_ref(path: Path, model: str) -> None:
    """Raises `UserError` unless the policy directory `path` holds the reference of this model at this endpoint."""
    ref = read_ref(path / REF_NAME)
    if ref != endpoint_ref(model):
        raise UserError(
            f"{path / REF_NAME}: it is of model `{ref.name}` at another endpoint than {endpoint_host()}; "
            "restore OPENAI_BASE_URL, or delete the file and what was made from it."
        )


def spending(usages: Iterable[Usage], price_in: float, price_out: float) -> dict[str, Any]:
    """Responses, tokens and cost, also of killed runs, in total and by episode; prices are per million tokens.

    `served` counts the responses by the model that wrote them; an alias such as `gpt-4o` may stand for several.
    """
    by_episode: dict[str, list[Usage]] = {}
    for usage in usages:
        by_episode.setdefault(usage.key, []).append(usage)
    everything = [usage for group in by_episode.values() for usage in group]
    episodes = {key: _totals(group, price_in, price_out) for key, group in sorted(by_episode.items())}
    served = dict(sorted(Counter(usage.served for usage in everything).items()))
    totals = _totals(everything, price_in, price_out)
    return {**totals, "prices": [price_in, price_out], "served": served, "episodes": episodes}


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


def base_url() -> str:
    """The endpoint's address, by default OpenAI's; raises `UserError` if it is not a URL with a host."""
    address = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    with contextlib.suppress(ValueError):
        url = urlsplit(address)
        if is_plain(address) and url.scheme in ("http", "https") and url.hostname and url.port != 0:
            url.hostname.encode("idna")  # has no empty label and no long one
            return address
    raise UserError("OPENAI_BASE_URL: not an address such as `http://127.0.0.1:8000/v1`; correct or unset it.")


def endpoint_host() -> str:
    """The endpoint's host and port, without the user and password that a URL may hold."""
    url = urlsplit(base_url())
    return f"{url.hostname}:{url.port}" if url.port else str(url.hostname)


def is_plain(text: str) -> bool:
    """Whether a header or an address can hold `text`: ASCII letters, digits and signs."""
    return text.isascii() and text.isprintable() and " " not in text
