"""BM25 search over bags of words in memory-mapped arrays, bit for bit equal to upstream's Lucene 8.11.

A term adds `w - w / (1 + tf * norm)` to a document's score, in 32-bit floats. `w` is the term's idf times its frequency
in the query. `norm` depends on the document's length, of which Lucene keeps four significant bits. The sum is rounded
to 32 bits once, at the end.
"""

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

import numpy as np
from numpy.typing import NDArray

from coevolve.envs.webshop import lucene_analyzer
from coevolve.envs.webshop.key_table import SortedKeys, entry_slice, memory_map
from coevolve.storage import files

K1, B = np.float32(0.9), np.float32(0.4)
#: Lengths below this are exact; longer ones are rounded.
MAX_EXACT_LENGTH = 24
#: Documents analysed at a time; the index does not depend on it.
BLOCK_SIZE = 1 << 13
#: Documents of a group, of which only the highest score is compared at first.
GROUP_SIZE = 1 << 9
#: Files of the index: terms in order of their bytes, ends of the terms, ends of each term's postings, and for each
#: posting its document and `1 + tf * norm`.
ARRAYS = ("terms", "term_ends", "ends", "documents", "saturations")

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]


class SearchIndex:
    """A read-only index in a folder; processes that open the same folder share its memory."""

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / "meta.json").read_bytes())
        self._count, self._filled = meta["documents"], meta["filled"]
        terms, term_ends, self._ends, self._documents, self._saturations = (
            memory_map(folder / f"{name}.npy") for name in ARRAYS
        )
        self._terms = SortedKeys(terms, term_ends)

    def __len__(self) -> int:
        return int(self._count)

    def search(self, query: str, hits: int = 50) -> list[int]:
        """Numbers of the documents with the highest scores, best first; ties are in ascending order.

        Empty for a query without a known term. Lucene rejects more than 1,024 different terms with an exception; here
        such a query is treated like any other.
        """
        sums = np.zeros(len(self))
        for term, times in Counter(lucene_analyzer.index_terms(query)).items():
            number = self._terms.rank(term.encode())
            if number is None:
                continue
            postings = entry_slice(self._ends, number)
            documents, saturations = self._documents[postings], self._saturations[postings]
            idf = np.float32(math.log(1 + (self._filled - len(documents) + 0.5) / (len(documents) + 0.5)))
            weight = np.float32(times) * idf
            np.add.at(sums, documents.astype(np.intp), (weight - weight / saturations).astype(np.float64))
        return _best(sums.astype(np.float32), hits)


def _best(scores: Floats, hits: int) -> list[int]:
    """Numbers of the `hits` documents with the highest positive scores, best first."""
    group_maxima = np.maximum.reduceat(scores, np.arange(0, len(scores), GROUP_SIZE)) if len(scores) else scores
    # The k-th highest maximum of a group bounds the k-th highest score from below.
    least = np.partition(group_maxima, -hits)[-hits] if len(group_maxima) > hits else 0
    candidates = np.flatnonzero((scores >= least) & (scores > 0))
    best: list[int] = candidates[np.argsort(-scores[candidates], kind="stable")[:hits]].tolist()
    return best


def build(texts: Iterable[str], folder: Path, workers: int = 1) -> None:
    """Write the index of `texts` to the new folder `folder`; document i is the i-th text.

    `texts` is read once, at the speed of the `workers` processes, and may be larger than memory. The bytes written do
    not depend on the number of workers.
    """
    folder.mkdir()
    _merge(list(_write_blocks(texts, folder / "blocks", workers)), folder)
    shutil.rmtree(folder / "blocks")


def _write_blocks(texts: Iterable[str], folder: Path, workers: int) -> Iterator[Path]:
    """Analyse `texts` in worker processes; yields a file for each block, in order."""
    folder.mkdir()
    remaining, pending = iter(texts), deque[Future[Path]]()
    with ProcessPoolExecutor(workers, initializer=_end_with_parent) as pool:
        for number, block in enumerate(iter(lambda: list(islice(remaining, BLOCK_SIZE)), [])):
            pending.append(pool.submit(_write_block, block, number * BLOCK_SIZE, folder / f"{number}.npz"))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        for future in pending:
            yield future.result()


def _end_with_parent() -> None:
    """Make this worker exit when its parent process is killed; it would otherwise wait for a block forever."""
    threading.Thread(target=_exit_after, args=(multiprocessing.parent_process(),), daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _write_block(texts: Sequence[str], first: int, path: Path) -> Path:
    """Write the terms, postings, term frequencies and lengths of documents that are numbered from `first` on."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    occurrences, lengths = array("q"), array("q")
    for text in texts:
        before = len(occurrences)
        occurrences.extend(map(numbers.__getitem__, lucene_analyzer.index_terms(text)))
        lengths.append(len(occurrences) - before)
    terms = sorted(numbers, key=str.encode)
    rank_of_number = np.empty(len(terms), dtype=np.int64)
    rank_of_number[[numbers[term] for term in terms]] = np.arange(len(terms))
    holders = np.repeat(np.arange(len(texts)), lengths)
    keys, frequencies = np.unique(rank_of_number[np.array(occurrences)] * len(texts) + holders, return_counts=True)
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
    terms = sorted(set(chain.from_iterable(map(_block_terms, blocks))))
    rank = {term: i for i, term in enumerate(terms)}
    ranks = [np.array([rank[term] for term in _block_terms(block)], dtype=np.int64) for block in blocks]
    totals = np.zeros(len(terms), dtype=np.int64)
    for block, block_ranks in zip(blocks, ranks, strict=True):
        totals[block_ranks] += np.load(block)["counts"]
    ends = np.cumsum(totals)
    lengths = np.concatenate([np.zeros(0, dtype=np.int64), *(np.load(block)["lengths"] for block in blocks)])
    np.save(folder / "terms.npy", np.frombuffer(b"".join(terms), dtype=np.uint8))
    np.save(folder / "term_ends.npy", np.cumsum([len(term) for term in terms], dtype=np.int64))
    np.save(folder / "ends.npy", ends)
    _write_postings(blocks, ranks, ends - totals, _norms(lengths), folder)
    meta = {"format": 1, "documents": len(lengths), "filled": int(np.count_nonzero(lengths))}
    files.write_bytes(folder / "meta.json", json.dumps(meta).encode())


def _write_postings(
    blocks: Sequence[Path], ranks: Sequence[Integers], starts: Integers, norms: Floats, folder: Path
) -> None:
    """Write the postings of all blocks; each term's postings are in the order of the blocks."""
    total = sum(len(np.load(block)["documents"]) for block in blocks)
    documents = np.lib.format.open_memmap(folder / "documents.npy", "w+", np.uint32, (total,))
    saturations = np.lib.format.open_memmap(folder / "saturations.npy", "w+", np.float32, (total,))
    next_posting = starts.copy()
    for block, block_ranks in zip(blocks, ranks, strict=True):
        content = np.load(block)
        counts, block_documents = content["counts"], content["documents"]
        positions = np.repeat(next_posting[block_ranks] - np.cumsum(counts) + counts, counts) + np.arange(
            len(block_documents)
        )
        documents[positions] = block_documents
        saturations[positions] = np.float32(1) + content["frequencies"] * norms[block_documents]
        next_posting[block_ranks] += counts
    documents.flush()
    saturations.flush()


def _norms(lengths: Integers) -> Floats:
    """BM25's length normalisation for documents of these lengths, rounded step by step as in Lucene."""
    excess = np.maximum(lengths - MAX_EXACT_LENGTH, 0)
    dropped_bits = np.maximum(np.frexp(excess)[1] - 4, 0)
    rounded = excess >> dropped_bits << dropped_bits
    kept = np.where(lengths < MAX_EXACT_LENGTH, lengths, MAX_EXACT_LENGTH + rounded).astype(np.float32)
    average = np.float32(max(lengths.sum(), 1) / max(np.count_nonzero(lengths), 1))
    return np.float32(1) / (K1 * ((np.float32(1) - B) + B * kept / average))


def _block_terms(block: Path) -> list[bytes]:
    return bytes(np.load(block)["terms"]).splitlines()
