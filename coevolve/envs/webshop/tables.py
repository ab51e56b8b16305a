"""Memory-mapped tables from texts to product numbers, small enough to open in milliseconds at a million products."""

from __future__ import annotations

import bisect
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int32]


class Collector:
    """Gathers which products have which key."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._pairs = array("i"), array("i")

    def add(self, key: str, number: int) -> None:
        """Product `number`, not lower than any before, has `key`."""
        codes, numbers = self._pairs
        codes.append(self._codes.setdefault(key, len(self._codes)))
        numbers.append(number)

    def write(self, folder: Path) -> None:
        """Write the table; keys are sorted by their bytes."""
        folder.mkdir()
        keys = sorted((encoded(key), code) for key, code in self._codes.items())
        place = np.empty(len(keys), dtype=np.int32)
        place[[code for _, code in keys]] = np.arange(len(keys), dtype=np.int32)
        codes, numbers = (np.frombuffer(column, dtype=np.int32) for column in self._pairs)
        places = place[codes]
        np.save(folder / "keys.npy", np.frombuffer(b"".join(key for key, _ in keys), dtype=np.uint8))
        np.save(folder / "ends.npy", np.cumsum([len(key) for key, _ in keys], dtype=np.int64))
        np.save(folder / "numbers.npy", numbers[np.argsort(places, kind="stable")])
        np.save(folder / "stops.npy", np.cumsum(np.bincount(places, minlength=len(keys)), dtype=np.int64))


class Keys:
    """Byte strings in ascending order, end to end in one array; `ends` says where each ends."""

    def __init__(self, content: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._content, self._ends = content, ends

    def __len__(self) -> int:
        return len(self._ends)

    def place(self, key: bytes) -> int | None:
        """Where a key stands, from 0 on; None if it is not there."""
        place = bisect.bisect_left(range(len(self)), key, key=self._key)
        return place if place < len(self) and self._key(place) == key else None

    def _key(self, place: int) -> bytes:
        return self._content[span(self._ends, place)].tobytes()


class Table:
    """A table in a folder that `Collector.write` made."""

    def __init__(self, folder: Path) -> None:
        content, ends, self._numbers, self._stops = (
            mapped(folder / f"{name}.npy") for name in ("keys", "ends", "numbers", "stops")
        )
        self._keys = Keys(content, ends)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, key: str) -> Numbers:
        """Numbers of the products with `key`, ascending; none if no product has it."""
        place = self._keys.place(encoded(key))
        return self._numbers[:0] if place is None else self._numbers[span(self._stops, place)]

    @property
    def numbers(self) -> Numbers:
        """All product numbers in the order of their keys."""
        return self._numbers


def span(ends: NDArray[np.int64], place: int) -> slice:
    """Where the entry at `place` lies in an array whose entries end at `ends`."""
    return slice(int(ends[place - 1]) if place else 0, int(ends[place]))


def encoded(text: str) -> bytes:
    """Bytes of a text, which upstream's JSON escapes can make no valid UTF-8 of."""
    return text.encode("utf-8", "surrogatepass")


def decoded(line: bytes) -> str:
    """The text with these bytes."""
    return line.decode("utf-8", "surrogatepass")


def mapped(path: Path) -> NDArray[Any]:
    """An array file as read-only memory that processes share."""
    return np.asarray(np.load(path, mmap_mode="r"))
