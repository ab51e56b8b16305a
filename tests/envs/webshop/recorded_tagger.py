"""The tagger with which WebShop's answers were recorded: alphabetic tokens that are no stop words are nouns."""

import json
import re
from pathlib import Path

from coevolve.envs.webshop.tagger import Tagger

RULES = json.loads((Path(__file__).parent / "recorded" / "tokens_en.json").read_text(encoding="utf-8"))
PREFIX, SUFFIX, INFIX = (re.compile(RULES[name]) for name in ("prefix", "suffix", "infix"))
STOP_WORDS = frozenset(RULES["stop_words"].split())


def alphabetic_words(title):
    """The nouns of a title. spaCy's exceptions, such as "can't", are left out: no recorded title needs one."""
    parts = [part for chunk in title.split() for part in between_infixes(without_affixes(chunk))]
    return [part.lower() for part in parts if part.isalpha() and part.lower() not in STOP_WORDS]


def without_affixes(chunk):
    while (match := PREFIX.search(chunk)) and match[0]:
        chunk = chunk[match.end() :]
    while (match := SUFFIX.search(chunk)) and match[0]:
        chunk = chunk[: match.start()]
    return chunk


def between_infixes(chunk):
    start = 0
    for infix in INFIX.finditer(chunk):
        if infix.start():
            yield chunk[start : infix.start()]
            start = infix.end()
    yield chunk[start:]


TAGGER = Tagger("recorded", RULES["source"], False, alphabetic_words)
