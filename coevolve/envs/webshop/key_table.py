"""Memory-mapped tables from texts to product numbers, opened in milliseconds for a million products."""

import bisect
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int32]


def write_key_table(folder: Path, table: Mapping[str, Sequence[int]]) -> None:
    """Write the product numbers of each key, ascending, with the keys sorted by their bytes."""
    folder.mkdir()
    entries = sorted((encode_text(key), numbers) for key, numbers in table.items())
    joined = itertools.chain.from_iterable(numbers for _, numbers in entries)
    np.save(folder / "keys.npy", np.frombuffer(b"".join(key for key, _ in entries), dtype=np.uint8))
    np.save(folder / "ends.npy", np.cumsum([len(key) for key, _ in entries], dtype=np.int64))
    np.save(folder / "numbers.npy", np.fromiter(joined, dtype=np.int32))
    np.save(folder / "stops.npy", np.cumsum([len(numbers) for _, numbers in entries], dtype=np.int64))


class SortedKeys:
    """Byte strings in ascending order, concatenated in one array; `ends` holds the end of each."""

    def __init__(self, content: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._content, self._ends = content, ends

    def rank(self, key: bytes) -> int | None:
        """Position of a key, counted from 0; None if it is absent."""
        rank = bisect.bisect_left(range(len(self._ends)), key, key=self._key)
        return rank if rank < len(self._ends) and self._key(rank) == key else None

    def _key(self, rank: int) -> bytes:
        return self._content[entry_slice(self._ends, rank)].tobytes()


class KeyTable:
    """A table in a folder written by `write_key_table`; `numbers` are all product numbers, in the keys' order."""

    def __init__(self, folder: Path) -> None:
        content, ends, self.numbers, self._stops = (
            memory_map(folder / f"{name}.npy") for name in ("keys", "ends", "numbers", "stops")
        )
        self._keys = SortedKeys(content, ends)

    def __getitem__(self, key: str) -> Numbers:
        """Numbers of the products with `key`, ascending; empty if no product has it."""
        rank = self._keys.rank(encode_text(key))
        return self.numbers[:0] if rank is None else self.numbers[entry_slice(self._stops, rank)]


def entry_slice(ends: NDArray[np.int64], number: int) -> slice:
    """Slice of entry `number` in an array whose entries end at `ends`."""
    return slice(int(ends[number - 1]) if number else 0, int(ends[number]))


def encode_text(text: str) -> bytes:
    """UTF-8 bytes of a text, which may contain lone surrogates: upstream's JSON has escapes of these."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(content: bytes) -> str:
    """The text that `encode_text` encoded."""
    return content.decode("utf-8", "surrogatepass")


def memory_map(path: Path) -> NDArray[Any]:
    """An array file as read-only memory that processes share."""
    return np.asarray(np.load(path, mmap_mode="r"))
