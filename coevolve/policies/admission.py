"""Which conversations an engine completes now, so that its KV cache holds them between turns."""

import itertools
from typing import Generic, TypeVar

Request = TypeVar("Request")


class AdmissionQueue(Generic[Request]):
    """Requests for the next turns of conversations that share a cache of `capacity` tokens.

    The conversations of the oldest episodes are held, as many as the cache has room for; a later one waits until it is
    among them. If all took turns in a cache that is too small, an engine that evicts what was least recently used
    would evict each before its next turn. What runs already may go on when an older conversation grows.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tokens: dict[str, int] = {}  # the oldest episode first
        self._waiting: dict[str, Request] = {}

    def add(self, key: str, tokens: int, request: Request) -> None:
        """Add the request of the episode `key`, whose conversation takes up to `tokens` tokens of the cache with it."""
        self._tokens[key] = tokens
        self._waiting[key] = request

    def admit(self, *, idle: bool) -> list[tuple[str, Request]]:
        """The requests that may start now, by episode; if the engine is `idle`, at least one of those that wait."""
        totals = zip(self._tokens, itertools.accumulate(self._tokens.values()), strict=True)
        held = itertools.takewhile(lambda total: total[1] <= self._capacity, totals)
        keys = [key for key, _ in held if key in self._waiting]
        if idle and not keys:
            keys = [key for key in self._tokens if key in self._waiting][:1]
        return [(key, self._waiting.pop(key)) for key in keys]

    def release(self, key: str) -> None:
        """Forget the episode `key` and its request."""
        self._tokens.pop(key, None)
        self._waiting.pop(key, None)
