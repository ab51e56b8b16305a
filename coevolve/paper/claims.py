"""What the paper printed: `configs/claims.yaml`, strictly typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, model_validator

from coevolve.config import Strict
from coevolve.errors import UserError


class Column(Strict):
    """A column of the table and the evaluation it holds; without `env`, the mean of the other columns."""

    label: str
    env: str | None = None
    split: str | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Column:
        if (self.env is None) != (self.split is None):
            raise ValueError("give `env` and `split`, or neither (the mean of the other columns)")
        return self


class Row(Strict):
    """A row of the table, where the paper prints it, and its cells by column key, average reward x 100."""

    label: str
    place: str
    cells: dict[str, float] = Field(min_length=1)


class Fact(Strict):
    """Something to know about the paper's numbers, where it comes from, and the cells (row: columns) it concerns."""

    text: str
    place: str
    cells: dict[str, list[str]]


class Claim(Strict):
    """One cell as the paper prints it: average reward x 100, and the place."""

    row: str
    column: str
    value: float
    place: str


class Claims(Strict):
    """The paper's table, in its own order."""

    source: str
    columns: dict[str, Column]
    rows: dict[str, Row]
    facts: list[Fact] = Field(max_length=26)  # one letter each

    @model_validator(mode="after")
    def _known_keys(self) -> Claims:
        used = [(row, list(spec.cells)) for row, spec in self.rows.items()]
        used += [concerned for fact in self.facts for concerned in fact.cells.items()]
        for row, columns in used:
            if row not in self.rows:
                raise ValueError(f"`{row}` is no key of `rows`")
            for column in columns:
                if column not in self.columns:
                    raise ValueError(f"`{row}`: `{column}` is no key of `columns`")
        return self

    def claims(self) -> list[Claim]:
        """All cells, row by row."""
        return [
            Claim(row=key, column=column, value=value, place=f"{row.place}, {self.columns[column].label}")
            for key, row in self.rows.items()
            for column, value in row.cells.items()
        ]

    def value(self, row: str, column: str) -> float | None:
        """What the paper prints in a cell, x 100; None where it has no such cell."""
        return self.rows[row].cells.get(column) if row in self.rows else None


def load(path: str | Path) -> Claims:
    """The claims a YAML file holds; raises `UserError` naming file and key if it is absent, unreadable or ill-typed."""
    path = Path(path)
    try:
        raw: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Claims.model_validate(raw)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file of claims; give configs/claims.yaml.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable as YAML ({' '.join(str(error).split())}).") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "(top level)"
        raise UserError(f"{path}: key `{key}`: {first['msg'].removeprefix('Value error, ')}; correct it.") from None
