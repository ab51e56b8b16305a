"""What the paper printed and what it says of it: `configs/claims.yaml`, strictly typed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from coevolve.config.sections import Strict
from coevolve.errors import UserError
from coevolve.types import Protocol

Threshold = Annotated[float, Field(gt=0.0, le=1.0)]


class Column(Strict):
    """A column of the table and the evaluation it holds; without `env`, the mean of the other columns.

    `tasks`: instructions the paper evaluates on; results on fewer are not about its claims.
    """

    label: str
    env: str | None = None
    split: str | None = None
    tasks: int | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Column:
        if (self.env is None) != (self.split is None):
            raise ValueError("give `env` and `split`, or neither (the mean of the other columns)")
        return self


class Row(Strict):
    """A row of the table, where the paper prints it, and its cells by column key, average reward x 100.

    `model`: what it is about, where that is not the file's own model.
    """

    label: str
    place: str
    model: str | None = None
    cells: dict[str, float] = Field(min_length=1)


class Fact(Strict):
    """Something to know about the paper's numbers, where it comes from, and the cells (row: columns) it concerns.

    In `text`, `{row.column}` stands for a number of `rows`, `ablations` or `published`; `equal` names numbers that have
    to be the same for the text to be true.
    """

    text: str
    place: str
    cells: dict[str, list[str]]
    equal: dict[str, str] = Field(default_factory=dict)


class Claim(Strict):
    """One cell as the paper prints it: average reward x 100, and the place."""

    row: str
    column: str
    value: float
    place: str


class Statement(Strict):
    """A sentence with a number or an order in it: what it says, and where. `model` as in a row.

    `caution`: what to know about any verdict on it. `unverified`: read in a secondary source alone, so it is judged
    apart and never counts as the paper's.
    """

    text: str
    place: str
    model: str | None = None
    caution: str = ""
    unverified: bool = False


class Ordering(Statement):
    """`better` has the larger average reward in a column, after the last iteration or after `iteration`."""

    kind: Literal["ordering"]
    better: str
    than: str
    column: str
    iteration: int | None = None


class Difference(Statement):
    """`better` is `value` points above `than` in a column, give or take `tolerance`."""

    kind: Literal["difference"]
    better: str
    than: str
    column: str
    value: float
    tolerance: float = Field(gt=0.0)


class LargestGain(Statement):
    """`better` gains more on `than` in this column than in any of the `among` others."""

    kind: Literal["largest_gain"]
    better: str
    than: str
    column: str
    among: list[str] = Field(min_length=1)


class Share(Statement):
    """`value` per cent, give or take `tolerance`, of a method's rollouts on an environment end in `outcome`.

    Success, hard negative (`threshold` <= r < 1) and failure (less) add up to 100; `extreme` is 0 or 1.
    """

    kind: Literal["share"]
    method: str
    env: str
    outcome: Literal["success", "hard_negative", "failure", "extreme"]
    value: float
    tolerance: float = Field(gt=0.0)
    threshold: Threshold


class Failures(Statement):
    """Figure 2: on instructions that the SFT policy fails, `better` has more failures than `than`, or better ones."""

    kind: Literal["failures"]
    better: str
    than: str
    env: str
    quantity: Literal["number", "shared_reward"]


AnyStatement = Annotated[Ordering | Difference | LargestGain | Share | Failures, Field(discriminator="kind")]


class Claims(Strict):
    """The paper's table, in its own order, and its statements by name.

    `model` and `protocol` are what they are about, `tolerance` is that of cells in points, `hard_negative` the
    thresholds that shares are counted with (the paper's first), `explored` the paper's number of training instructions.
    """

    source: str
    model: str = ""
    protocol: Protocol = "paper"
    tolerance: float = 0.0
    hard_negative: list[Threshold] = Field(default_factory=list)
    explored: dict[str, int] = Field(default_factory=dict)
    columns: dict[str, Column]
    rows: dict[str, Row]
    ablations: dict[str, Row] = Field(default_factory=dict)
    published: dict[str, dict[str, float]] = Field(default_factory=dict)
    facts: list[Fact] = Field(max_length=26)  # one letter each
    statements: dict[str, AnyStatement] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_keys(self) -> Claims:
        used = [(row, list(spec.cells)) for row, spec in (self.rows | self.ablations).items()]
        used += [concerned for fact in self.facts for concerned in fact.cells.items()]
        for row, _ in used:
            if row not in self.rows | self.ablations:
                raise ValueError(f"`{row}` is no key of `rows`")
        for name, columns in [*used, *((name, list(_columns(said))) for name, said in self.statements.items())]:
            for column in columns:
                if column not in self.columns:
                    raise ValueError(f"`{name}`: `{column}` is no key of `columns`")
        return self

    @model_validator(mode="after")
    def _facts_from_numbers(self) -> Claims:
        """The same with every fact's numbers in its text."""
        for fact in self.facts:
            for one, other in fact.equal.items():
                if self._number(one) != self._number(other):
                    raise ValueError(f"`{one}` and `{other}` differ, which `facts` says they do not")
        texts = [re.sub(r"\{([\w.]+)\}", lambda name: f"{self._number(name[1]):.1f}", fact.text) for fact in self.facts]
        facts = [fact.model_copy(update={"text": text}) for fact, text in zip(self.facts, texts, strict=True)]
        return self.model_copy(update={"facts": facts})

    def claims(self) -> list[Claim]:
        """All cells of the table, row by row."""
        return [claim for claim in self.cells() if claim.row in self.rows]

    def cells(self) -> list[Claim]:
        """All cells, row by row, those of the ablations last."""
        return [
            Claim(row=key, column=column, value=value, place=f"{row.place}, {self.columns[column].label}")
            for key, row in (self.rows | self.ablations).items()
            for column, value in row.cells.items()
        ]

    def value(self, row: str, column: str) -> float | None:
        """What the paper prints in a cell, x 100; None where it has no such cell."""
        spec = (self.rows | self.ablations).get(row)
        return spec.cells.get(column) if spec else None

    def methods(self) -> set[str]:
        """Every row and method that is claimed something of."""
        sides = [
            getattr(said, name, None) for said in self.statements.values() for name in ("better", "than", "method")
        ]
        return {*self.rows, *self.ablations, *(side for side in sides if side)}

    def parts(self, column: str) -> list[str]:
        """The columns that a column is the mean of: itself, or all with an evaluation of their own."""
        if self.columns[column].env is not None:
            return [column]
        return [key for key, other in self.columns.items() if other.env is not None]

    def _number(self, name: str) -> float:
        row, _, column = name.partition(".")
        number = self.published.get(row, {}).get(column, self.value(row, column))
        if number is None:
            raise ValueError(f"`{name}` is no number of `rows`, `ablations` or `published`")
        return number


def _columns(statement: AnyStatement) -> Iterator[str]:
    match statement:
        case Ordering() | Difference():
            yield statement.column
        case LargestGain():
            yield from (statement.column, *statement.among)


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
