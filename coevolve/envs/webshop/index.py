"""Search as upstream's Lucene 8.11 does it, to the last bit: BM25 over a bag of words, in memory-mapped arrays.

A term adds `w - w / (1 + tf * norm)` to a document's score, in 32-bit floats; `w` is the term's idf times how often the
query has it, and `norm` comes from the document's length, of which Lucene keeps four significant bits. The sum is
rounded to 32 bits once, at the end.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import threading
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from coevolve.envs.webshop import analysis
from coevolve.envs.webshop.tables import Keys, mapped, span
from coevolve.errors import UserError
from coevolve.storage import files

FORMAT = 1
K1, B = np.float32(0.9), np.float32(0.4)
#: Shorter documents keep their exact length.
EXACT = 24
#: Documents analysed at a time; what is built does not depend on it.
BLOCK = 1 << 13
#: Documents of which only the best one's score is looked at, as long as others may be better.
GROUP = 1 << 9
#: The terms in order of their bytes, and where each ends; where the postings of each end; and of each posting the
#: document and `1 + tf * norm`.
ARRAYS = ("terms", "term_ends", "ends", "documents", "saturations")

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]


class Index:
    """An index in a folder, read only; processes that open the same one share its memory."""

    def __init__(self, folder: Path) -> None:
        """See `open`."""
        try:
            meta = json.loads((folder / "meta.json").read_bytes())
        except FileNotFoundError:
            raise UserError(f"{folder}: no search index; build it.") from None
        if meta["format"] != FORMAT:
            raise UserError(f"{folder}: search index of format {meta['format']}, not {FORMAT}; build it again.")
        self._count, self._filled = meta["documents"], meta["filled"]
        terms, term_ends, self._ends, self._documents, self._saturations = (
            mapped(folder / f"{name}.npy") for name in ARRAYS
        )
        self._terms = Keys(terms, term_ends)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The index built in `folder`; raises `UserError` if there is none or one of another format."""
        return cls(folder)

    def __len__(self) -> int:
        return int(self._count)

    def search(self, query: str, hits: int = 50) -> list[int]:
        """Numbers of the documents that fit best, best first; of equal ones the lower number comes first.

        A query without a known term finds nothing. Lucene refuses more than 1,024 different terms, and upstream ends
        with its exception; here such a query is answered like any other.
        """
        return [document for document, _ in self.scored(query, hits)]

    def scored(self, query: str, hits: int = 50) -> list[tuple[int, float]]:
        """What `search` finds, with its scores."""
        sums = np.zeros(len(self))
        for term, times in Counter(analysis.terms(query)).items():
            postings = self._postings(term)
            documents, saturations = self._documents[postings], self._saturations[postings]
            weight = np.float32(times) * self._idf(len(documents))
            np.add.at(sums, documents.astype(np.intp), (weight - weight / saturations).astype(np.float64))
        scores = sums.astype(np.float32)
        best = _best(scores, hits)
        return list(zip(best.tolist(), scores[best].tolist(), strict=True))

    def _postings(self, term: str) -> slice:
        """Where the postings of a term are; nowhere if it is unknown."""
        number = self._terms.place(term.encode())
        return slice(0, 0) if number is None else span(self._ends, number)

    def _idf(self, frequency: int) -> np.float32:
        return np.float32(math.log(1 + (self._filled - frequency + 0.5) / (frequency + 0.5)))


def _best(scores: Floats, hits: int) -> Integers:
    """The `hits` documents of the highest scores above 0, best first."""
    highest = np.maximum.reduceat(scores, np.arange(0, len(scores), GROUP)) if len(scores) else scores
    least = np.partition(highest, -hits)[-hits] if len(highest) > hits else 0
    found = np.flatnonzero((scores >= least) & (scores > 0))
    return found[np.argsort(-scores[found], kind="stable")[:hits]]


def build(texts: Iterable[str], folder: Path, workers: int = 1) -> None:
    """Write the index of `texts` to `folder`, where it appears whole or not at all; document i is the i-th text.

    `texts` is read once, no faster than the `workers` processes take it, and may be larger than memory. The same texts
    give the same bytes, however many workers there are.
    """
    with files.directory(folder) as aside:
        _merge(list(_analysed(texts, aside / "blocks", workers)), aside)
        shutil.rmtree(aside / "blocks")


def _analysed(texts: Iterable[str], folder: Path, workers: int) -> Iterator[Path]:
    """A file for each block of texts, in order."""
    folder.mkdir()
    remaining, waiting = iter(texts), deque[Future[Path]]()
    with ProcessPoolExecutor(workers, initializer=_end_with_parent) as pool:
        for number, block in enumerate(iter(lambda: list(islice(remaining, BLOCK)), [])):
            waiting.append(pool.submit(_write_block, block, number * BLOCK, folder / f"{number}.npz"))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()


def _end_with_parent() -> None:
    """End this worker when the process that started it is killed; it would wait for a block for ever."""
    threading.Thread(target=_follow, args=(multiprocessing.parent_process(),), daemon=True).start()


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _write_block(texts: Sequence[str], first: int, path: Path) -> Path:
    """Write which documents, numbered from `first` on, have which terms how often, and how long they are."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    occurrences, lengths = array("q"), array("q")
    for text in texts:
        before = len(occurrences)
        occurrences.extend(map(numbers.__getitem__, analysis.terms(text)))
        lengths.append(len(occurrences) - before)
    terms = sorted(numbers, key=str.encode)
    places = np.empty(len(terms), dtype=np.int64)
    places[[numbers[term] for term in terms]] = np.arange(len(terms))
    holders = np.repeat(np.arange(len(texts)), lengths)
    keys, frequencies = np.unique(places[np.array(occurrences)] * len(texts) + holders, return_counts=True)
    postings, documents = divmod(keys, len(texts))
    np.savez(
        path,
        terms=np.frombuffer("\n".join(terms).encode(), dtype=np.uint8),
        counts=np.bincount(postings, minlength=len(terms)),
        documents=(first + documents).astype(np.uint32),
        frequencies=frequencies.astype(np.float32),
        lengths=np.array(lengths),
    )
    return path


def _merge(blocks: Sequence[Path], folder: Path) -> None:
    """Write an index's files from its blocks."""
    terms = sorted(set(chain.from_iterable(map(_block_terms, blocks))))
    number = {term: i for i, term in enumerate(terms)}
    places = [np.array([number[term] for term in _block_terms(block)], dtype=np.int64) for block in blocks]
    totals = np.zeros(len(terms), dtype=np.int64)
    for block, place in zip(blocks, places, strict=True):
        totals[place] += np.load(block)["counts"]
    ends = np.cumsum(totals)
    lengths = np.concatenate([np.zeros(0, dtype=np.int64), *(np.load(block)["lengths"] for block in blocks)])
    np.save(folder / "terms.npy", np.frombuffer(b"".join(terms), dtype=np.uint8))
    np.save(folder / "term_ends.npy", np.cumsum([len(term) for term in terms], dtype=np.int64))
    np.save(folder / "ends.npy", ends)
    _write_postings(blocks, places, ends - totals, _norms(lengths), folder)
    meta = {"format": FORMAT, "documents": len(lengths), "filled": int(np.count_nonzero(lengths))}
    files.write_bytes(folder / "meta.json", json.dumps(meta).encode())


def _write_postings(
    blocks: Sequence[Path], places: Sequence[Integers], starts: Integers, norms: Floats, folder: Path
) -> None:
    """Write the postings of each block behind those that the same terms have in earlier blocks."""
    total = sum(len(np.load(block)["documents"]) for block in blocks)
    documents = np.lib.format.open_memmap(folder / "documents.npy", "w+", np.uint32, (total,))
    saturations = np.lib.format.open_memmap(folder / "saturations.npy", "w+", np.float32, (total,))
    free = starts.copy()
    for block, place in zip(blocks, places, strict=True):
        content = np.load(block)
        counts, holders = content["counts"], content["documents"]
        to = np.repeat(free[place] - np.cumsum(counts) + counts, counts) + np.arange(len(holders))
        documents[to] = holders
        saturations[to] = np.float32(1) + content["frequencies"] * norms[holders]
        free[place] += counts
    documents.flush()
    saturations.flush()


def _norms(lengths: Integers) -> Floats:
    """What a term's frequency is multiplied with in documents of these lengths, rounded step by step as by Lucene."""
    rest = np.maximum(lengths - EXACT, 0)
    cut = np.maximum(np.frexp(rest)[1] - 4, 0)
    kept = np.where(lengths < EXACT, lengths, EXACT + (rest >> cut << cut)).astype(np.float32)
    average = np.float32(max(lengths.sum(), 1) / max(np.count_nonzero(lengths), 1))
    one = np.float32(1)
    return one / (K1 * ((one - B) + B * kept / average))


def _block_terms(block: Path) -> list[bytes]:
    return bytes(np.load(block)["terms"]).splitlines()
