"""Which words of a title count as nouns: the reward asks how many of the wanted title's the bought one shares."""

from __future__ import annotations

import functools
import importlib
import re
import threading
from collections.abc import Callable
from typing import Any, Literal, Protocol

from coevolve.envs.webshop import tokens
from coevolve.errors import UserError

Name = Literal["spacy", "stand_in", "approximate"]
#: The model that ETO-era code uses; upstream's own last commit installs it too.
MODEL = "en_core_web_lg"
#: Titles whose nouns a tagger keeps.
REMEMBERED = 1 << 14

_NOUN_TAGS = frozenset({"NOUN", "PROPN"})
_WORD = re.compile(r"[^\W\d_]+")
#: Words that are never nouns, as far as titles have them.
_FUNCTION_WORDS = """
    a an the this that these those my your his her its our their all any both each every few more most no other
    some such and but or nor so yet if as than of at by for from in into near off on onto out over per to under up
    upon via with within without i me we us you he him she it they them who what which whose when where why how is
    are was were be been being am do does did has have had can could may might must shall should will would not
    only own same too very just also plus non
"""
_CLOSED = frozenset(_FUNCTION_WORDS.split())
#: Endings of most adjectives, adverbs and participles that titles have, and of few nouns.
_NO_NOUN = re.compile(r"\w{3,}(?:able|ible|ful|less|ous|ive|ical|ally|ndly|ed)$")


class Tagger(Protocol):
    """Finds nouns; may be shared between threads."""

    @property
    def id(self) -> str:
        """What it is, stored with results."""
        ...

    @property
    def version(self) -> str:
        """Of the rules or the model."""
        ...

    @property
    def exact(self) -> bool:
        """Whether it is upstream's own: if not, rewards are not comparable with published ones."""
        ...

    def nouns(self, title: str) -> list[str]:
        """The nouns of a title, lower-cased, in order and as often as they occur."""
        ...


class CachedTagger:
    """A tagger around a function, which is asked once for each title."""

    def __init__(self, name: str, version: str, exact: bool, find: Callable[[str], list[str]]) -> None:
        self.id, self.version, self.exact = name, version, exact
        self.nouns = functools.lru_cache(maxsize=REMEMBERED)(find)


def tagger(name: Name) -> Tagger:
    """The tagger of a name; raises `UserError` if it is spaCy's and that is not installed."""
    if name == "spacy":
        return _spacy()
    if name == "stand_in":
        return CachedTagger("stand_in", tokens.rules().source, False, _letters)
    return CachedTagger("approximate", "1", False, _approximate)


def _spacy() -> Tagger:
    """Upstream's tagger."""
    try:
        spacy = importlib.import_module("spacy")
        model: Any = spacy.load(MODEL)
    except (ImportError, OSError):
        raise UserError(
            f"key `tagger`: `spacy` needs the package spacy and its model {MODEL}; install both, or use `approximate`."
        ) from None
    lock = threading.Lock()

    def find(title: str) -> list[str]:
        with lock:
            return [token.text.lower() for token in model(title) if token.pos_ in _NOUN_TAGS]

    return CachedTagger(f"spacy {MODEL}", f"{spacy.__version__}, model {model.meta['version']}", True, find)


def _letters(title: str) -> list[str]:
    """Every word of letters that is no stop word, as in the recorded conformance traces."""
    return [token.text.lower() for token in tokens.tokenize(title) if token.is_alpha and not token.is_stop]


def _approximate(title: str) -> list[str]:
    """Words of letters that are neither function words nor end like an adjective, an adverb or a participle."""
    words = _WORD.findall(title.lower())
    return [word for word in words if word not in _CLOSED and not _NO_NOUN.match(word)]
