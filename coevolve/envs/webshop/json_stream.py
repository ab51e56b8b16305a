"""Streaming reader of a JSON array of objects: any size, in a few megabytes of memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from coevolve.errors import UserError

Json = dict[str, Any]

#: Bytes read at a time.
CHUNK_BYTES = 1 << 22
#: Most characters of an object; a longer one is an error.
MAX_OBJECT_LENGTH = 1 << 24


def read_objects(path: Path) -> Iterator[tuple[int, Json]]:
    """Each object with the number of bytes read so far; objects are decoded as by `json.load`.

    Raises `UserError` naming the byte at which the file is truncated or is not a JSON array of objects.
    """
    with path.open("rb") as file:
        reader = _Reader(file, path)
        reader.take("[")
        while reader.peek() != "]":
            yield file.tell(), reader.object()
            if reader.peek() != "]":
                reader.take(",")
        reader.take("]")
        if reader.peek():
            raise reader.error("the array has ended")


class _Reader:
    """The part of a JSON file that is in memory, and the current position in it."""

    _space = re.compile(r"[ \t\n\r]*")
    _decoder = json.JSONDecoder()

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text, self._position, self._ended = "", 0, False

    def peek(self) -> str:
        """The next character after white space, without consuming it; "" at the end of the file."""
        while True:
            space = self._space.match(self._text, self._position)
            self._position = space.end() if space else self._position
            if self._position < len(self._text) or self._ended:
                return self._text[self._position : self._position + 1]
            self._extend()

    def take(self, expected: str) -> None:
        """Consume the next character; raises `UserError` if it is not `expected`."""
        if self.peek() != expected:
            raise self.error(f"`{expected}` is expected")
        self._position += 1

    def object(self) -> Json:
        """Consume the object that begins at the next character."""
        if self.peek() != "{":
            raise self.error("an object is expected")
        while True:
            try:
                value: Json
                value, self._position = self._decoder.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                if self._ended or len(self._text) - self._position > MAX_OBJECT_LENGTH:
                    self._position = error.pos
                    raise self.error(error.msg) from None
                self._extend()
            else:
                return value

    def error(self, problem: str) -> UserError:
        """The error that reports `problem` at the current position."""
        ahead = len(self._text[self._position :].encode()) + len(self._utf8.getstate()[0])
        return self._malformed(self._file.tell() - ahead, problem)

    def _extend(self) -> None:
        before = self._file.tell() - len(self._utf8.getstate()[0])
        chunk = self._file.read(CHUNK_BYTES)
        self._ended = not chunk
        try:
            text = self._utf8.decode(chunk, final=self._ended)
        except UnicodeDecodeError as error:
            raise self._malformed(before + error.start, "a byte is not valid UTF-8") from None
        self._text, self._position = self._text[self._position :] + text, 0

    def _malformed(self, byte: int, problem: str) -> UserError:
        state = "is truncated" if self._ended else "is damaged"
        return UserError(f"{self._path}: {state} at byte {byte} ({problem}); fetch the file again.")
