"""The English tokenizer of spaCy without spaCy: the same tokens for any text, from its rules as data."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

_RULES = Path(__file__).resolve().parents[3] / "data" / "webshop" / "tokens_en.json"


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a text; `spaced` if a blank follows that is no token itself."""

    text: str
    spaced: bool = False

    @property
    def is_alpha(self) -> bool:
        """Whether it consists of letters."""
        return self.text.isalpha()

    @property
    def is_stop(self) -> bool:
        """Whether it is one of spaCy's stop words, in any case."""
        return self.text.lower() in rules().stop_words


@dataclass(frozen=True, slots=True)
class Rules:
    """What splits a chunk: affixes, separators inside, addresses kept whole, and texts with a split of their own.

    `patterns` are the exceptions that affixes would tear apart, as the tokens they come in then.
    """

    source: str
    prefix: re.Pattern[str]
    suffix: re.Pattern[str]
    infix: re.Pattern[str]
    url: re.Pattern[str]
    exceptions: dict[str, tuple[str, ...]]
    stop_words: frozenset[str]
    patterns: frozenset[tuple[str, ...]]


def tokenize(text: str) -> list[Token]:
    """The tokens of a text, in order; runs of white space are tokens, but for the blank between two words."""
    tokens = [token for chunk, spaced in _chunks(text) for token in _marked(_split(chunk, rules().exceptions), spaced)]
    return _rejoined(tokens)


@functools.cache
def rules() -> Rules:
    """The rules of spaCy for English."""
    data = json.loads(_RULES.read_text(encoding="utf-8"))
    prefix, suffix, infix, url = (re.compile(data[name]) for name in ("prefix", "suffix", "infix", "url"))
    exceptions = {"".join(parts): tuple(parts) for parts in data["exceptions"]}
    stop_words = frozenset(data["stop_words"].split())
    loose = Rules(data["source"], prefix, suffix, infix, url, exceptions, stop_words, frozenset())
    torn = (text for text in exceptions if text == " " or any(p.search(text) for p in (prefix, suffix, infix)))
    return replace(loose, patterns=frozenset(tuple(_split(text, {}, loose)) for text in torn))


def _chunks(text: str) -> Iterator[tuple[str, bool]]:
    """Runs of white space and of anything else; the first blank of a run after a word belongs to the word."""
    runs = ["".join(run) for _, run in groupby(text, str.isspace)]
    for before, run, after in zip(["", *runs], runs, [*runs[1:], ""], strict=False):
        if run[0] == " " and before:
            run = run[1:]
        if run:
            yield run, not run.isspace() and after.startswith(" ")


def _marked(parts: Sequence[str], spaced: bool) -> list[Token]:
    return [*map(Token, parts[:-1]), Token(parts[-1], spaced)]


def _split(chunk: str, exceptions: dict[str, tuple[str, ...]], given: Rules | None = None) -> list[str]:
    """The tokens of a chunk: affixes taken off from outside in, the rest whole or split at separators."""
    use = given or rules()
    prefixes: list[str] = []
    suffixes: list[str] = []
    while chunk and chunk not in exceptions:
        prefix = _prefix(chunk, use)
        rest = chunk[len(prefix) :]
        if prefix and rest in exceptions:
            prefixes.append(prefix)
            chunk = rest
            break
        suffix = _suffix(rest, use)
        if suffix and chunk[: -len(suffix)] in exceptions:
            suffixes.append(suffix)
            chunk = chunk[: -len(suffix)]
            break
        if not prefix and not suffix:
            break
        prefixes += [prefix] if prefix else []
        suffixes += [suffix] if suffix else []
        chunk = rest[: len(rest) - len(suffix)]
    return [*prefixes, *_core(chunk, exceptions, use), *reversed(suffixes)]


def _prefix(chunk: str, use: Rules) -> str:
    found = use.prefix.search(chunk)
    return found[0] if found else ""


def _suffix(chunk: str, use: Rules) -> str:
    found = use.suffix.search(chunk)
    return found[0] if found else ""


def _core(chunk: str, exceptions: dict[str, tuple[str, ...]], use: Rules) -> Sequence[str]:
    """The tokens of what is left between the affixes."""
    if chunk in exceptions:
        return exceptions[chunk]
    if not chunk or use.url.match(chunk):
        return [chunk] if chunk else []
    parts, end = [], 0
    for found in use.infix.finditer(chunk):
        if found.start():
            parts += [chunk[end : found.start()], found[0]]
            end = found.end()
    return [part for part in (*parts, chunk[end:]) if part]


def _rejoined(tokens: list[Token]) -> list[Token]:
    """The tokens with every exception restored that affixes and separators have torn apart."""
    result, end = [], 0
    for start, stop in _torn(tokens):
        text = "".join(token.text + " " * token.spaced for token in tokens[start:stop]).removesuffix(" ")
        parts = rules().exceptions.get(text)
        result += tokens[end:start]
        result += _marked(parts, tokens[stop - 1].spaced) if parts else tokens[start:stop]
        end = stop
    return result + tokens[end:]


def _torn(tokens: Sequence[Token]) -> list[tuple[int, int]]:
    """Spans that look like a torn exception, longest first where they overlap; white space between is ignored."""
    texts = [token.text for token in tokens]
    longest = max(map(len, rules().patterns))
    spans = [
        (start, stop)
        for start in range(len(texts))
        for stop in range(start + 1, min(start + longest, len(texts)) + 1)
        if tuple(texts[start:stop]) in rules().patterns
    ]
    taken: set[int] = set()
    kept = []
    for start, stop in sorted(spans, key=lambda span: (span[0] - span[1], span[0])):
        if start not in taken and stop - 1 not in taken:
            kept.append((start, stop))
        taken.update(range(start, stop))
    return sorted(kept)
