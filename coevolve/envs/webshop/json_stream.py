"""Reader of a JSON array of objects, one at a time, in a memory-mapped file of any size."""

import codecs
import json
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coevolve.errors import UserError

Json = dict[str, Any]

#: Bytes that are decoded to find an object, tried in turn; a longer object is an error.
WINDOW_BYTES = (1 << 14, 1 << 18, 1 << 24)
_SPACE = re.compile(rb"[ \t\n\r]*")
_decoder = json.JSONDecoder()


def read_objects(path: Path) -> Iterator[tuple[int, Json]]:
    """Each object with the byte after its end; objects are decoded as by `json.load`.

    Raises `UserError` naming the byte at which the file is truncated or is not a JSON array of objects.
    """
    if not path.stat().st_size:
        raise _malformed(path, 0, "`[` is expected")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        position = _take(path, content, 0, b"[")
        while content[position : position + 1] != b"]":
            value, position = _object(path, content, position)
            yield position, value
            position = _after_space(content, position)
            if content[position : position + 1] != b"]":
                position = _take(path, content, position, b",")
        if (end := _after_space(content, position + 1)) < len(content):
            raise _malformed(path, end, "the array has ended")


def _after_space(content: mmap.mmap, position: int) -> int:
    space = _SPACE.match(content, position)
    return space.end() if space else position


def _take(path: Path, content: mmap.mmap, position: int, expected: bytes) -> int:
    """The position after `expected` and the white space around it."""
    position = _after_space(content, position)
    if content[position : position + 1] != expected:
        raise _malformed(path, position, f"`{expected.decode()}` is expected")
    return _after_space(content, position + 1)


def _object(path: Path, content: mmap.mmap, start: int) -> tuple[Json, int]:
    if content[start : start + 1] != b"{":
        raise _malformed(path, start, "an object is expected")
    problem = start, ""
    for size in WINDOW_BYTES:
        window = content[start : start + size]
        try:
            text, _ = codecs.utf_8_decode(window, "strict", len(window) < size)
            value, end = _decoder.raw_decode(text)
            return value, start + len(text[:end].encode())
        except UnicodeDecodeError as error:
            problem = start + error.start, "a byte is not valid UTF-8"
        except json.JSONDecodeError as error:
            problem = start + len(text[: error.pos].encode()), error.msg
    raise _malformed(path, *problem)


def _malformed(path: Path, byte: int, problem: str) -> UserError:
    return UserError(f"{path}: is damaged or truncated at byte {byte} ({problem}); fetch the file again.")
