"""spaCy's English tokenizer without spaCy, and the tagger with which WebShop's answers were recorded.

The tokens of any text are the same, from the tokenizer's rules stored as data.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from coevolve.envs.webshop.tagger import Tagger

_RULES = Path(__file__).parent / "recorded" / "tokens_en.json"


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text; `spaced` if it is followed by a space that is not a token."""

    text: str
    spaced: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerRules:
    """spaCy's rules: prefixes, suffixes, infixes, URLs that are not split, and exceptions with fixed tokens."""

    source: str
    prefix: re.Pattern[str]
    suffix: re.Pattern[str]
    infix: re.Pattern[str]
    url: re.Pattern[str]
    exceptions: dict[str, tuple[str, ...]]
    stop_words: frozenset[str]


def recorded_tagger() -> Tagger:
    """The tagger of the recorded traces: all alphabetic words except stop words are nouns."""
    return Tagger("recorded", tokenizer_rules().source, False, _alphabetic_words)


def _alphabetic_words(title: str) -> list[str]:
    words = [token.text.lower() for token in tokenize(title) if token.text.isalpha()]
    return [word for word in words if word not in tokenizer_rules().stop_words]


def tokenize(text: str) -> list[Token]:
    """The tokens of a text, in order; white space is a token, except a single space after a word."""
    tokens = [
        token
        for chunk, spaced in _chunks(text)
        for token in _with_spacing(_split(chunk, tokenizer_rules().exceptions), spaced)
    ]
    return _restore_exceptions(tokens)


@functools.cache
def tokenizer_rules() -> TokenizerRules:
    """SpaCy's rules for English."""
    data = json.loads(_RULES.read_text(encoding="utf-8"))
    prefix, suffix, infix, url = (re.compile(data[name]) for name in ("prefix", "suffix", "infix", "url"))
    exceptions = {"".join(parts): tuple(parts) for parts in data["exceptions"]}
    return TokenizerRules(data["source"], prefix, suffix, infix, url, exceptions, frozenset(data["stop_words"].split()))


@functools.cache
def _split_exceptions() -> frozenset[tuple[str, ...]]:
    """The tokens into which the affix rules would split each exception."""
    rules = tokenizer_rules()
    affixes = (rules.prefix, rules.suffix, rules.infix)
    split = (text for text in rules.exceptions if text == " " or any(affix.search(text) for affix in affixes))
    return frozenset(tuple(_split(text, {})) for text in split)


def _chunks(text: str) -> Iterator[tuple[str, bool]]:
    """Runs of white space and of other characters, each with whether a space follows that belongs to it.

    The first space of a run after a word belongs to the word.
    """
    runs = ["".join(run) for _, run in groupby(text, str.isspace)]
    for before, run, after in zip(["", *runs], runs, [*runs[1:], ""], strict=False):
        if run[0] == " " and before:
            run = run[1:]
        if run:
            yield run, not run.isspace() and after.startswith(" ")


def _with_spacing(parts: Sequence[str], spaced: bool) -> list[Token]:
    return [*map(Token, parts[:-1]), Token(parts[-1], spaced)]


def _split(chunk: str, exceptions: dict[str, tuple[str, ...]]) -> list[str]:
    """The tokens of a chunk: affixes are removed from outside in, and the rest is split at infixes."""
    rules = tokenizer_rules()
    prefixes: list[str] = []
    suffixes: list[str] = []
    while chunk and chunk not in exceptions:
        prefix = _first_match(rules.prefix, chunk)
        rest = chunk[len(prefix) :]
        if prefix and rest in exceptions:
            prefixes.append(prefix)
            chunk = rest
            break
        suffix = _first_match(rules.suffix, rest)
        if suffix and chunk[: -len(suffix)] in exceptions:
            suffixes.append(suffix)
            chunk = chunk[: -len(suffix)]
            break
        if not prefix and not suffix:
            break
        prefixes += [prefix] if prefix else []
        suffixes += [suffix] if suffix else []
        chunk = rest[: len(rest) - len(suffix)]
    return [*prefixes, *_split_infixes(chunk, exceptions), *reversed(suffixes)]


def _first_match(pattern: re.Pattern[str], chunk: str) -> str:
    match = pattern.search(chunk)
    return match[0] if match else ""


def _split_infixes(chunk: str, exceptions: dict[str, tuple[str, ...]]) -> Sequence[str]:
    """The tokens between the affixes."""
    rules = tokenizer_rules()
    if chunk in exceptions:
        return exceptions[chunk]
    if not chunk or rules.url.match(chunk):
        return [chunk] if chunk else []
    parts, end = [], 0
    for infix in rules.infix.finditer(chunk):
        if infix.start():
            parts += [chunk[end : infix.start()], infix[0]]
            end = infix.end()
    return [part for part in (*parts, chunk[end:]) if part]


def _restore_exceptions(tokens: list[Token]) -> list[Token]:
    """The tokens, with every exception restored that was split at affixes or infixes."""
    result, end = [], 0
    for start, stop in _split_exception_spans(tokens):
        text = "".join(token.text + " " * token.spaced for token in tokens[start:stop]).removesuffix(" ")
        parts = tokenizer_rules().exceptions.get(text)
        result += tokens[end:start]
        result += _with_spacing(parts, tokens[stop - 1].spaced) if parts else tokens[start:stop]
        end = stop
    return result + tokens[end:]


def _split_exception_spans(tokens: Sequence[Token]) -> list[tuple[int, int]]:
    """Spans of tokens that may be a split exception; of overlapping spans the longest is kept. Ignores spacing."""
    texts = [token.text for token in tokens]
    longest = max(map(len, _split_exceptions()))
    spans = [
        (start, stop)
        for start in range(len(texts))
        for stop in range(start + 1, min(start + longest, len(texts)) + 1)
        if tuple(texts[start:stop]) in _split_exceptions()
    ]
    covered: set[int] = set()
    kept = []
    for start, stop in sorted(spans, key=lambda span: (span[0] - span[1], span[0])):
        if start not in covered and stop - 1 not in covered:
            kept.append((start, stop))
        covered.update(range(start, stop))
    return sorted(kept)
