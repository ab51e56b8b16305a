"""Vocabulary of generated catalogues: function words and synthetic words, with the frequencies of a real shop."""

import functools
import json
import random

import numpy as np
from numpy.typing import NDArray

from coevolve import seeds, shipped

#: Lists of words and of texts for edge cases, by name. `function_words` are the most frequent words of the vocabulary;
#: the others are made of `onsets`, `nuclei` and `forms`, whose suffixes, hyphens and digits exercise the analyzer.
WORD_LISTS = json.loads((shipped.DATA / "webshop" / "synthetic_words.json").read_text(encoding="utf-8"))
TRAITS = [
    f"{how} {what}"
    for how in ("easy", "quick", "hand", "double", "extra", "long", "non", "super")
    for what in ("fold", "clean", "made", "lasting", "grip", "seal", "woven", "dry")
]
#: Number of synthetic words.
VOCABULARY_SIZE = 50_000


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
    onsets, nuclei, forms = (WORD_LISTS[name].split() for name in ("onsets", "nuclei", "forms"))
    words: dict[str, None] = {}
    while len(words) < VOCABULARY_SIZE:
        stem = "".join(rng.choice(onsets) + rng.choice(nuclei) for _ in range(rng.randint(1, 3)))
        words[rng.choice(forms).format(stem, rng.randint(2, 999))] = None
    return tuple(words)


@functools.cache
def _zipf_table() -> NDArray[np.object_]:
    """A million words, each repeated in proportion to its frequency under Zipf's law."""
    ranked = np.array([*WORD_LISTS["function_words"].split(), *synthetic_vocabulary()], dtype=object)
    mass = np.cumsum(1.0 / (np.arange(len(ranked)) + 2.7))
    ranks = np.searchsorted(mass, (np.arange(1 << 20) + 0.5) / (1 << 20) * mass[-1])
    table: NDArray[np.object_] = ranked[ranks]
    return table
