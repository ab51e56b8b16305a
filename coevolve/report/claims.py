"""The paper's numbers and statements: `configs/claims.yaml`, strictly typed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from coevolve.settings.protocol import Protocol
from coevolve.settings.section import Strict
from coevolve.settings.validation import validated
from coevolve.settings.yaml_files import read_yaml

Threshold = Annotated[float, Field(gt=0.0, le=1.0)]


class ClaimColumn(Strict):
    """A column and its evaluation on `tasks` instructions in the paper; without `env`, the mean of the others."""

    label: str
    env: str | None = None
    split: str | None = None
    tasks: int | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> ClaimColumn:
        if (self.env is None) != (self.split is None):
            raise ValueError("give `env` and `split`, or neither (the mean of the other columns)")
        return self


class ClaimRow(Strict):
    """A row: its place in the paper, its cells x 100 by column, and its `model` if it is not that of the file.

    `rival`: the row whose cells a run must tell from these; without one the row is printed and not judged.
    """

    label: str
    place: str
    model: str | None = None
    rival: str | None = None
    cells: dict[str, float] = Field(min_length=1)


class Fact(Strict):
    """A remark on the paper's numbers, its source, and the cells (row: columns) it concerns.

    In `text`, `{row.column}` stands for a number of `rows`, `ablations` or `published`; `equal` has pairs of numbers
    that must be equal for the text to be true.
    """

    text: str
    place: str
    cells: dict[str, list[str]]
    equal: dict[str, str] = Field(default_factory=dict)


class Statement(Strict):
    """A sentence of the paper that states a number or an order, and its place; `model` as in a row.

    `caution`: a remark on every verdict on it. `unverified`: of a secondary source, judged and counted separately.
    """

    text: str
    place: str
    model: str | None = None
    caution: str = ""
    unverified: bool = False

    @property
    def methods(self) -> set[str]:
        """The methods that it is about."""
        names = (getattr(self, name, None) for name in ("better", "than", "method", "row"))
        return {name for name in names if name}

    @property
    def columns(self) -> list[str]:
        """The columns of the paper's table that it is about."""
        return [*filter(None, [getattr(self, "column", None)]), *getattr(self, "among", [])]


class SizeClaim(Statement):
    """It states a size: `value`, in points or per cent, the number of one run, or a range.

    `rival`: what one run would have to give if the claim were false, such as the baseline's number, or no difference.
    Instead of a rival, a range has a `tolerance`.
    """

    value: float
    rival: float | None = None
    tolerance: Annotated[float, Field(gt=0.0)] | None = None

    @model_validator(mode="after")
    def _rival_or_tolerance(self) -> Self:
        if (self.rival is None) == (self.tolerance is None):
            raise ValueError("give either `rival` or `tolerance`")
        return self

    @property
    def limits(self) -> tuple[float, float]:
        """The ends of a range, which belong to it; none at 0 or 100, where a share ends anyway."""
        low, high = self.value - (self.tolerance or 0.0), self.value + (self.tolerance or 0.0)
        return (-math.inf if low <= 0.0 else low), (math.inf if high >= 100.0 else high)


class CellClaim(SizeClaim):
    """One cell of the paper: average reward x 100."""

    kind: Literal["cell"] = "cell"
    row: str
    column: str


class OrderingClaim(Statement):
    """`better` has the larger average reward in a column, after the last iteration or after `iteration`."""

    kind: Literal["ordering"]
    better: str
    than: str
    column: str
    iteration: int | None = None


class DifferenceClaim(SizeClaim):
    """`better` is `value` points above `than` in a column."""

    kind: Literal["difference"]
    better: str
    than: str
    column: str


class LargestGainClaim(Statement):
    """The gain of `better` over `than` is larger in this column than in each column of `among`."""

    kind: Literal["largest_gain"]
    better: str
    than: str
    column: str
    among: list[str] = Field(min_length=1)


class ShareClaim(SizeClaim):
    """`value` per cent of a method's rollouts in an environment end in `outcome`.

    Success (r = 1), hard negative (`threshold` <= r < 1) and failure add up to 100; `extreme`: r = 0 or r = 1.
    """

    kind: Literal["share"]
    method: str
    env: str
    outcome: Literal["success", "hard_negative", "failure", "extreme"]
    threshold: Threshold


class ShareDifferenceClaim(SizeClaim):
    """The share of rollouts that end in `outcome` is `value` points larger with `better` than with `than`."""

    kind: Literal["share_difference"]
    better: str
    than: str
    env: str
    outcome: Literal["success", "hard_negative", "failure"]
    threshold: Threshold


class FailuresClaim(Statement):
    """Figure 2: where the SFT policy fails, `better` has more failures than `than`, or failures of higher reward."""

    kind: Literal["failures"]
    better: str
    than: str
    env: str
    quantity: Literal["number", "shared_reward"]


AnyStatement = Annotated[
    OrderingClaim | DifferenceClaim | LargestGainClaim | ShareClaim | ShareDifferenceClaim | FailuresClaim,
    Field(discriminator="kind"),
]

Claim = CellClaim | AnyStatement


class SuccessColumn(Strict):
    """An evaluation by success rate on `tasks` tasks, and its environment here; `unavailable`: why there is none."""

    label: str
    tasks: int = Field(gt=0)
    env: str = ""
    split: str = ""
    unavailable: str = ""


class SuccessRow(Strict):
    """Success rates in per cent by column; `method` is the recipe here, `against` the row that the paper compares with.

    `status`: `read` in a full text or in code, or from a `note` about it.
    """

    label: str
    status: Literal["read", "note"]
    method: str = ""
    against: str = ""
    remark: str = ""
    cells: dict[str, Annotated[float, Field(ge=0.0, le=100.0)]] = Field(min_length=1)


class SuccessTable(Strict):
    """A table of another paper by success rates, printed beside ours; none of its cells is judged."""

    label: str
    source: str
    columns: dict[str, SuccessColumn]
    rows: dict[str, SuccessRow]
    remarks: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names_are_known(self) -> SuccessTable:
        for name, row in self.rows.items():
            if row.against and row.against not in self.rows:
                raise ValueError(f"`{name}.against`: `{row.against}` is not a row")
            if unknown := row.cells.keys() - self.columns.keys():
                raise ValueError(f"`{name}.cells`: `{unknown.pop()}` is not a column")
        return self


class Claims(Strict):
    """The paper's table, in its order, and its statements by name.

    `model` and `protocol` are those of the paper's experiments, `hard_negative` the reward thresholds for shares (the
    paper's first), `explored` the number of training instructions. `success_tables` are those of other papers.
    """

    source: str
    model: str = ""
    protocol: Protocol = "paper"
    hard_negative: list[Threshold] = Field(default_factory=list)
    explored: dict[str, int] = Field(default_factory=dict)
    columns: dict[str, ClaimColumn]
    rows: dict[str, ClaimRow]
    ablations: dict[str, ClaimRow] = Field(default_factory=dict)
    published: dict[str, dict[str, float]] = Field(default_factory=dict)
    facts: list[Fact] = Field(max_length=26)  # one letter each
    statements: dict[str, AnyStatement] = Field(default_factory=dict)
    success_tables: dict[str, SuccessTable] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_keys(self) -> Claims:
        used = [(row, list(spec.cells)) for row, spec in (self.rows | self.ablations).items()]
        used += [concerned for fact in self.facts for concerned in fact.cells.items()]
        if unknown := [row for row, _ in used if row not in self.rows | self.ablations]:
            raise ValueError(f"`{unknown[0]}` is not a key of `rows`")
        rows = self.rows | self.ablations
        if unknown := [row.rival for row in rows.values() if row.rival and row.rival not in rows]:
            raise ValueError(f"`rival`: `{unknown[0]}` is not a key of `rows`")
        used += [(name, statement.columns) for name, statement in self.statements.items()]
        for name, columns in used:
            for column in columns:
                if column not in self.columns:
                    raise ValueError(f"`{name}`: `{column}` is not a key of `columns`")
        return self

    @model_validator(mode="after")
    def _facts_from_numbers(self) -> Claims:
        for fact in self.facts:
            for left, right in fact.equal.items():
                if self._number(left) != self._number(right):
                    raise ValueError(f"`{left}` and `{right}` differ, but `facts` requires them to be equal")
        texts = [re.sub(r"\{([\w.]+)\}", lambda name: f"{self._number(name[1]):.1f}", fact.text) for fact in self.facts]
        facts = [fact.model_copy(update={"text": text}) for fact, text in zip(self.facts, texts, strict=True)]
        return self.model_copy(update={"facts": facts})

    def cells(self) -> list[CellClaim]:
        """The cells that have a rival's number, row by row, those of the ablations last."""
        return [
            CellClaim(
                row=key,
                column=column,
                value=value,
                rival=rival,
                text=f"average reward {value:g}",
                place=f"{row.place}, {self.columns[column].label}",
                model=row.model,
            )
            for key, row in (self.rows | self.ablations).items()
            for column, value in row.cells.items()
            if row.rival and (rival := self.value(row.rival, column)) is not None
        ]

    def by_name(self) -> dict[str, Claim]:
        """Every claim by the name that its verdict has: the cells, then the statements."""
        return {f"{cell.row}_{cell.column}": cell for cell in self.cells()} | self.statements

    def value(self, row: str, column: str) -> float | None:
        """The paper's number in a cell, x 100; None without such a cell."""
        spec = (self.rows | self.ablations).get(row)
        return spec.cells.get(column) if spec else None

    def methods(self) -> set[str]:
        """All rows and methods that have a claim."""
        return {*self.rows, *self.ablations}.union(*(statement.methods for statement in self.statements.values()))

    def parts(self, column: str) -> list[str]:
        """The columns that a column averages: itself, or all columns with an evaluation."""
        if self.columns[column].env is not None:
            return [column]
        return [key for key, other in self.columns.items() if other.env is not None]

    def _number(self, name: str) -> float:
        row, _, column = name.partition(".")
        number = self.published.get(row, {}).get(column, self.value(row, column))
        if number is None:
            raise ValueError(f"`{name}` is not a number of `rows`, `ablations` or `published`")
        return number


def load(path: str | Path) -> Claims:
    """The claims in a YAML file; raises `UserError` with file and key if it is missing, unreadable or ill-typed."""
    return validated(Claims, Path(path), read_yaml(Path(path)))
