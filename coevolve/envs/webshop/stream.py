"""A JSON array of objects of any size, read object by object in a few megabytes of memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from coevolve.errors import UserError

Json = dict[str, Any]

#: Bytes read at a time, and how many characters an object may have before the file counts as malformed.
CHUNK = 1 << 22
LONGEST = 1 << 24


def objects(path: Path) -> Iterator[tuple[int, Json]]:
    """Each object with the bytes of the file read so far; numbers, escapes and repeated keys as `json.load` has them.

    Raises `UserError` that names the byte where the file turns out to be no JSON array of objects, or to be cut off.
    """
    with path.open("rb") as file:
        window = _Window(file, path)
        window.take("[")
        while window.peek() != "]":
            yield file.tell(), window.object()
            if window.peek() != "]":
                window.take(",")
        window.take("]")
        if window.peek():
            raise window.fault("the array has ended")


class _Window:
    """The part of a file of JSON that is in memory, and a place in it."""

    _space = re.compile(r"[ \t\n\r]*")
    _decoder = json.JSONDecoder()

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at, self._ended = "", 0, False

    def peek(self) -> str:
        """The next character that is no white space, which stays; "" at the end of the file."""
        while True:
            space = self._space.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._extend()

    def take(self, expected: str) -> None:
        """Move past the next character, which must be the expected one."""
        if self.peek() != expected:
            raise self.fault(f"`{expected}` is expected")
        self._at += 1

    def object(self) -> Json:
        """The object that begins at the next character; moves past it."""
        if self.peek() != "{":
            raise self.fault("an object is expected")
        while True:
            try:
                value: Json
                value, self._at = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._ended or len(self._text) - self._at > LONGEST:
                    self._at = error.pos
                    raise self.fault(error.msg) from None
                self._extend()
            else:
                return value

    def fault(self, problem: str) -> UserError:
        """What is wrong at the present place."""
        ahead = len(self._text[self._at :].encode()) + len(self._utf8.getstate()[0])
        return self._malformed(self._file.tell() - ahead, problem)

    def _extend(self) -> None:
        before = self._file.tell() - len(self._utf8.getstate()[0])
        chunk = self._file.read(CHUNK)
        self._ended = not chunk
        try:
            text = self._utf8.decode(chunk, final=self._ended)
        except UnicodeDecodeError as error:
            raise self._malformed(before + error.start, "a byte is no UTF-8") from None
        self._text, self._at = self._text[self._at :] + text, 0

    def _malformed(self, byte: int, problem: str) -> UserError:
        state = "is cut off" if self._ended else "is damaged"
        return UserError(f"{self._path}: {state} at byte {byte} ({problem}); fetch the file again.")
