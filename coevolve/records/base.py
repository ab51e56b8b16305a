"""The base of all records.

Records with equal content are equal and have equal digests. Files of records are JSON lines, one record per line
(`coevolve.storage.jsonl`).
"""

import functools
import hashlib
import operator
from collections.abc import Hashable
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION: Literal[1] = 1
#: As `exclude_if` it leaves a field out of JSON that most records lack.
is_none = functools.partial(operator.is_, None)


class Record(BaseModel):
    """Base of all records: immutable, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    #: Fields that describe the measurement and not the content; excluded from the digest.
    measured: ClassVar[frozenset[str]] = frozenset()

    def digest(self) -> str:
        """First 16 hex digits of the sha256 over the record's JSON without measured fields."""
        content = self.model_dump_json(exclude=set(self.measured))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def unique_key(self) -> Hashable:
        """What only one record of a file may have; None if a file may repeat a record."""
        return None

    def to_json(self) -> str:
        """One line of JSON."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """The record in a line of JSON; raises `pydantic.ValidationError` if it is not valid."""
        return cls.model_validate_json(line)
