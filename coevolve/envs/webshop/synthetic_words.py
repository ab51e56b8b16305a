"""Vocabulary of generated catalogues: function words and synthetic words, with the frequencies of a real shop."""

from __future__ import annotations

import functools
import random

import numpy as np
from numpy.typing import NDArray

from coevolve import seeds

CATEGORIES = "beauty", "garden", "grocery", "electronics", "fashion"
COLOURS = (
    "Red|Tan|Navy|Dark Blue|Light Grey|Washed Denim|Olive Green|Black/White|Rose Gold|Teal|Off White|Multicolor|"
    "Burnt Orange|Plum|Mint|Charcoal"
)
MEASURES = (
    "Small|Medium|Large|X-Large|XX-Large|One Size|3/4 inch|12 Ounce (Pack of 2)|"
    "6.5 Wide|10x12 ft|500 ml|Pack of 6|Queen"
)
STYLES = "Plain|Striped|With Lid|Without Lid|Left|Right|Set A|Set B|Gift Box|2 Count"
GROUPS = {"Color": COLOURS.split("|"), "Size": MEASURES.split("|"), "Style Name": STYLES.split("|")}
TRAITS = [
    f"{how} {what}"
    for how in ("easy", "quick", "hand", "double", "extra", "long", "non", "super")
    for what in ("fold", "clean", "made", "lasting", "grip", "seal", "woven", "dry")
]
REQUESTS = (
    "i am looking for a {noun} that is {traits}{options}.",
    "i need a {traits} {noun}{options}",
    "find me a {noun} which should be {traits}{options}.",
    "please show me some {noun}, {traits}{options}",
    "i want to buy a {noun}. it has to be {traits}{options}",
)

#: Number of synthetic words.
VOCABULARY_SIZE = 50_000
#: Function words, the most frequent words of the vocabulary.
FUNCTION_WORDS = """
the and for with of to in a is your you it this are on that be can or as from not our have will all an by more we if
use up no so at when any out which one has they also very other just into only than but make its their time them after
most over these each made keep do while well two about every without easy like there great new first through perfect
please give what get used such some then where both way who him her own day between even much many before under off
until because during still around good need best been may here same might never against those how enough another again
being less always three few along upon back down too long next since would should could above
"""
ONSETS = "b c d f g h j k l m n p r s t v w z br cl dr fl gr kr pl sk st tr"
NUCLEI = "a e i o u a e i o u ai ea ou ar el in or un ist emp ond ark"
#: Word forms with suffixes, hyphens, apostrophes and digits, which exercise the analyzer.
FORMS = "{0} {0} {0} {0} {0}s {0}ed {0}ing {0}er {0}ly {0}ness {0}ation {0}able {0}-{0} {0}'s {1}{0} {1}-{0} {1}"


class WordStream:
    """An infinite stream of words that follow Zipf's law; equal seeds give equal streams."""

    def __init__(self, seed: int) -> None:
        self._rng = seeds.generator(seed, "webshop words")
        self._table = _zipf_table()
        self._buffer: list[str] = []

    def take(self, count: int) -> list[str]:
        """The next `count` words."""
        if len(self._buffer) < count:
            self._buffer = self._table[self._rng.integers(0, len(self._table), count + (1 << 16))].tolist()
        taken = self._buffer[-count:]
        del self._buffer[-count:]
        return taken

    def prose(self, count: int) -> str:
        """Sentences of `count` words in total."""
        words = self.take(count)
        return " ".join(f"{' '.join(words[at : at + 11]).capitalize()}." for at in range(0, count, 11))


@functools.cache
def synthetic_vocabulary() -> tuple[str, ...]:
    """The synthetic words, the same in all catalogues, in order of decreasing frequency."""
    rng = random.Random(seeds.derive(0, "webshop vocabulary"))
    onsets, nuclei, forms = ONSETS.split(), NUCLEI.split(), FORMS.split()
    words: dict[str, None] = {}
    while len(words) < VOCABULARY_SIZE:
        stem = "".join(rng.choice(onsets) + rng.choice(nuclei) for _ in range(rng.randint(1, 3)))
        words[rng.choice(forms).format(stem, rng.randint(2, 999))] = None
    return tuple(words)


@functools.cache
def _zipf_table() -> NDArray[np.object_]:
    """A million words, each repeated in proportion to its frequency under Zipf's law."""
    ranked = np.array([*FUNCTION_WORDS.split(), *synthetic_vocabulary()], dtype=object)
    mass = np.cumsum(1.0 / (np.arange(len(ranked)) + 2.7))
    ranks = np.searchsorted(mass, (np.arange(1 << 20) + 0.5) / (1 << 20) * mass[-1])
    table: NDArray[np.object_] = ranked[ranks]
    return table
