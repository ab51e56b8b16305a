"""What the search engine costs as the catalogue grows: build, size, opening, memory, and searches of two kinds.

Texts are made up: about 200 words each, frequent ones as frequent as in English, and a model number of their own.

    python benchmarks/webshop_search.py --sizes 10000 100000 --workers 2
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tabulate import tabulate

from coevolve.envs.webshop import search_index
from coevolve.envs.webshop.search_index import SearchIndex

FREQUENT = (
    "the and for with of to a in is i you high quality your it easy this use can made from look am price lower than "
    "dollars 50.00 red size color black white cotton set women's women\u2019s day home gift \u2013 \u2022 rice cooker"
)
CONSONANTS = "b c d f g h l m n p r s t v ch sh st tr"
WORDS = 300_000
EXPONENT = 1.02
INSTRUCTION = "i am looking for a {} {} {} that is {} quality, and price lower than {}.00 dollars"
HEADERS = ["documents", "build s", "disk MB", "open ms", "memory MB", "instruction ms", "keywords ms"]


def words() -> list[str]:
    """Invented words, the most frequent first."""
    rng = random.Random(1)
    syllables = [consonant + vowel for consonant in CONSONANTS.split() for vowel in ("a", "e", "i", "o", "u", "ea")]
    endings = ["", "", "n", "r", "s", "ed", "ing", "er", "ness", "ation", "able"]
    rest = ("".join(rng.choices(syllables, k=rng.randint(1, 4))) + rng.choice(endings) for _ in range(WORDS))
    return [*FREQUENT.split(), *rest]


def texts(size: int, vocabulary: list[str]) -> Iterator[str]:
    """`size` texts of 8 to 3,000 words."""
    rng = np.random.default_rng(1)
    shares = np.cumsum(1 / np.arange(3, len(vocabulary) + 3) ** EXPONENT)
    array = np.array(vocabulary, dtype=object)
    for number in range(size):
        length = min(int(rng.lognormal(5.0, 0.7)) + 8, 3000)
        chosen = np.searchsorted(shares, rng.random(length) * shares[-1], side="right")
        yield " ".join(array[chosen]) + f" model b{number:x}"


def queries(vocabulary: list[str], kind: str, count: int = 40) -> list[str]:
    """Instructions as agents paste them, or two to five words."""
    rng = random.Random(2)
    if kind == "keywords":
        return [" ".join(rng.sample(vocabulary[20:2000], rng.randint(2, 5))) for _ in range(count)]
    return [INSTRUCTION.format(*rng.sample(vocabulary[20:400], 4), rng.randrange(10, 99)) for _ in range(count)]


def median_ms(searched: SearchIndex, asked: list[str]) -> float:
    """Median milliseconds of a search, each query once after all were asked once."""
    seconds = []
    for query in asked * 2:
        before = time.perf_counter()
        searched.search(query)
        seconds.append(time.perf_counter() - before)
    return 1000 * statistics.median(seconds[len(asked) :])


def anonymous_mb() -> float:
    """Megabytes of this process that no other can share."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(kilobytes) for kilobytes in re.findall(r"^Anonymous: +(\d+)", rollup, re.MULTILINE)) / 1024


def measure(size: int, folder: Path, workers: int) -> list[float]:
    """A row of the table; the index stays in `folder`."""
    vocabulary = words()
    before = time.perf_counter()
    search_index.build(texts(size, vocabulary), folder, workers)
    built = time.perf_counter()
    memory = anonymous_mb()
    searched, opened = SearchIndex(folder), time.perf_counter()
    instruction, keywords = (median_ms(searched, queries(vocabulary, kind)) for kind in ("instruction", "keywords"))
    disk = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    return [size, built - before, disk, 1000 * (opened - built), anonymous_mb() - memory, instruction, keywords]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(size, Path(folder) / str(size), arguments.workers) for size in arguments.sizes]
    print(tabulate(rows, HEADERS, floatfmt=".1f"))


if __name__ == "__main__":
    main()
