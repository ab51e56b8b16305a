"""Part-of-speech taggers that return the nouns of a title, which the reward compares between two products."""

import functools
import importlib
import re
import threading
from collections.abc import Callable
from typing import Any, Literal

from coevolve.errors import UserError

TaggerName = Literal["spacy", "approximate"]
#: The spaCy model of upstream's last commit and of ETO's code.
MODEL = "en_core_web_lg"
#: Titles whose nouns a tagger caches.
CACHED_TITLES = 1 << 14

_NOUN_TAGS = frozenset({"NOUN", "PROPN"})
_WORD = re.compile(r"[^\W\d_]+")
#: Function words in titles, which are never nouns.
_FUNCTION_WORD_LIST = """
    a an the this that these those my your his her its our their all any both each every few more most no other
    some such and but or nor so yet if as than of at by for from in into near off on onto out over per to under up
    upon via with within without i me we us you he him she it they them who what which whose when where why how is
    are was were be been being am do does did has have had can could may might must shall should will would not
    only own same too very just also plus non
"""
_FUNCTION_WORDS = frozenset(_FUNCTION_WORD_LIST.split())
#: Suffixes of adjectives, adverbs and participles that few nouns have.
_NON_NOUN = re.compile(r"\w{3,}(?:able|ible|ful|less|ous|ive|ical|ally|ndly|ed)$")


class Tagger:
    """A thread-safe tagger of nouns; `nouns(title)` are a title's in lower case, in order, with repetitions, cached.

    `id` and `version` are stored with results. `exact`: whether it is upstream's tagger; rewards with another one are
    not comparable with published ones.
    """

    def __init__(self, name: str, version: str, exact: bool, find: Callable[[str], list[str]]) -> None:
        self.id, self.version, self.exact = name, version, exact
        self.nouns = functools.lru_cache(maxsize=CACHED_TITLES)(find)

    def __str__(self) -> str:
        return f"{self.id} {self.version}"


def load_tagger(name: TaggerName) -> Tagger:
    """The tagger with this name; raises `UserError` for `spacy` if spaCy or its model is not installed."""
    if name == "spacy":
        return _spacy_tagger()
    return Tagger("approximate", "1", False, _approximate_nouns)


def _spacy_tagger() -> Tagger:
    """Upstream's tagger: spaCy's part-of-speech tags."""
    try:
        spacy = importlib.import_module("spacy")
        model: Any = spacy.load(MODEL)
    except (ImportError, OSError):
        raise UserError(
            f"key `tagger`: `spacy` needs the package spacy and its model {MODEL}; install both, or use `approximate`."
        ) from None
    lock = threading.Lock()

    def nouns(title: str) -> list[str]:
        with lock:
            return [token.text.lower() for token in model(title) if token.pos_ in _NOUN_TAGS]

    return Tagger(f"spacy {MODEL}", f"{spacy.__version__}, model {model.meta['version']}", True, nouns)


def _approximate_nouns(title: str) -> list[str]:
    """Alphabetic words that are not function words and have no suffix of an adjective, adverb or participle."""
    words = _WORD.findall(title.lower())
    return [word for word in words if word not in _FUNCTION_WORDS and not _NON_NOUN.match(word)]
