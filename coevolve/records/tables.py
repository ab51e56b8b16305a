"""The numbers of tables: a mean with its interval, and the cell that holds it."""

from __future__ import annotations

from pydantic import Field

from coevolve.records.base import Record, is_none
from coevolve.settings.protocol import Protocol


class Estimate(Record):
    """A mean with its interval over tasks and trainings, in the measured quantity's units.

    `seed_means`: the mean of each training, by its seed. The variance of the mean over S seeds is
    `of_tasks + of_seeds / S`, in the squared unit; None: not known, as `of_seeds` of one seed.
    """

    mean: float
    low: float
    high: float
    n: int
    n_tasks: int
    n_seeds: int
    of_tasks: float | None = Field(default=None, exclude_if=is_none)
    of_seeds: float | None = Field(default=None, exclude_if=is_none)
    seed_means: dict[int, float] = Field(default_factory=dict)

    def times(self, factor: float) -> Estimate:
        """The estimate of a positive multiple of the quantity."""
        scaled = {name: factor * getattr(self, name) for name in ("mean", "low", "high")}
        variances = {name: getattr(self, name) for name in ("of_tasks", "of_seeds")}
        squared = {name: None if value is None else factor**2 * value for name, value in variances.items()}
        means = {seed: factor * mean for seed, mean in self.seed_means.items()}
        return self.model_copy(update=scaled | squared | {"seed_means": means})


class Cell(Record):
    """One cell of a table: the estimate (None: not run) and the paper's number (None: not printed)."""

    row: str
    column: str
    estimate: Estimate | None
    paper: float | None
    protocol: Protocol
    sources: tuple[str, ...] = ()
