"""Terms are Lucene's: the hashes below are of what its 8.11 analyzer makes of the same texts."""

import hashlib
import itertools
import json
import random

import pytest

from coevolve.envs.webshop import lucene_analyzer

#: Where characters of all kinds are: ASCII, Latin and marks, Hebrew, Arabic, South-East Asian, Georgian and Hangul,
#: punctuation, symbols, Kana and Han, Yi to private use, forms, other scripts, emoji, tags and selectors, anything.
RANGES = [
    (0x20, 0x7F), (0x80, 0x370), (0x590, 0x5F5), (0x600, 0x780), (0xE00, 0x1050), (0x10A0, 0x1200), (0x2000, 0x2070),
    (0x20D0, 0x2C00), (0x2E80, 0x3400), (0xA000, 0xFA70), (0xFB00, 0x10000), (0x10000, 0x12000), (0x1F000, 0x1FA00),
    (0xE0000, 0xE0200), (0, 0x110000),
]  # fmt: skip
PIECES = (
    *"aeinrstxyz0129.,:;'\"_ -#*/",
    "\u2019", "\uff07", "\u00ad", "\u200b", "\u200d", "\ufe0e", "\ufe0f", "\u20e3", "\u05d0", "\u0e01", "\u3042",
    "\u30a2", "\u65e5", "\uac00", "\u0130", "\u03a3", "\u2139", "\u2764", "\U0001f170", "\U0001f1e9", "\U0001f1ea",
    "\U0001f3fd", "\U0001f468", "\U0001f469", "\U0001f525", "\U000e0067", "\U000e007f", "\ud83d", "\udc4d", "'s",
    "\u2019S", "ing", "ational", "women", " the ", "7.5", "U.S.A.",
)  # fmt: skip
ROOTS = (
    "", "b", "ee", "y", "cr", "hop", "fall", "fizz", "agree", "relat", "yield", "gen", "electr", "trouble", "ski",
    "oscill", "controll", "d\u00e9j", "\U0001d616", "a\U0001d616\U0001d616",
)  # fmt: skip
ENDINGS = (
    "", "s", "es", "sses", "ies", "ss", "ed", "ing", "eed", "at", "bl", "iz", "e", "y", "l", "ll", "ational", "tional",
    "enci", "anci", "izer", "bli", "alli", "entli", "eli", "ousli", "ization", "ation", "ator", "alism", "iveness",
    "fulness", "ousness", "aliti", "iviti", "biliti", "logi", "icate", "ative", "alize", "iciti", "ical", "ful", "ness",
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "sion", "tion", "ou", "ism",
    "ate", "iti", "ous", "ive", "ize",
)  # fmt: skip


def probes():
    """Each code point of the first two planes, and some others, between letters, between digits and alone."""
    points = [*range(0x20000), *range(0x20000, 0x110000, 97)]
    return [f"a{chr(point)}b 1{chr(point)}2 {chr(point)}." for point in points]


def mixtures():
    """Texts of all scripts; some have very long words, some repeat few characters."""
    rng = random.Random(8)
    return [_mixture(rng) for _ in range(20_000)]


def _mixture(rng):
    pool = [_character(rng) for _ in range(rng.randrange(1, 12))]
    longest = 900 if rng.random() < 0.02 else 30
    text = "".join(rng.choice(pool) for _ in range(rng.randrange(longest)))
    # Whether a pair of surrogates is one character is no question for strings that come from JSON or a terminal, and
    # half a character at the very end is the one thing in which Lucene is not followed.
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass").rstrip("\ud83d")


def _character(rng):
    if rng.random() < 0.6:
        return rng.choice(PIECES)
    character = chr(rng.randrange(*rng.choice(RANGES)))
    return "?" if "\ud800" <= character < "\ue000" else character


def inflections():
    return ["".join(parts) for parts in itertools.product(ROOTS, ENDINGS, ENDINGS)]


def digest(terms):
    return hashlib.sha256("\n".join(" ".join(each) for each in terms).encode()).hexdigest()


def test_terms_of_the_conformance_texts(upstream):
    vectors = json.loads((upstream / "webshop/analyzer_vectors.json").read_text())
    assert len(vectors) > 50
    assert [(text, lucene_analyzer.index_terms(text)) for text, _ in vectors] == [
        (text, terms) for text, terms in vectors
    ]


def test_stop_words_have_no_term():
    words = "a an and are as at be but by for if in into is it no not of on or such that the their then there these"
    assert lucene_analyzer.index_terms(f"{words} they this to was will with cup") == ["cup"]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (probes, "8c0cebcf603aa887eece90fb601180f4292a8a49b29d954d0f86c2f5a286c863"),
        (mixtures, "49802b045b107c81103c37e16871b33737d414119ffc63c4039f4f7b9afa4dc8"),
        (inflections, "5e677f994c10ef855551b2138d1493e6d47aa2913b958390bd9beb6e2fe1867f"),
    ],
    ids=["code points", "mixtures", "inflections"],
)
def test_terms_are_lucenes(texts, expected):
    assert digest([lucene_analyzer.index_terms(text) for text in texts()]) == expected
