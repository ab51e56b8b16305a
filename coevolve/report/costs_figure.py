"""The figure of costs: predicted and measured time by stage and by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from coevolve.report import drawing
from coevolve.report.costs import Line
from coevolve.report.drawing import BarRow
from coevolve.report.labels import words
from coevolve.report.number_text import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(tables: Mapping[str, Sequence[Line]], labels: Mapping[str, str]) -> Figure:
    """The figure: predicted and measured hours of the jobs that ran; `labels` name the methods."""
    return drawing.bars(
        "Costs", {f"By {heading}, hours": [_row(line, labels) for line in lines] for heading, lines in tables.items()}
    )


def _row(line: Line, labels: Mapping[str, str]) -> BarRow:
    hours = {"predicted": line.done_predicted_hours, "measured": line.done_measured_hours}
    reused = f", {line.reused:,} reused" if line.reused else ""
    return BarRow(
        f"{labels.get(line.name, words(line.name))}, {line.done:,} of {line.jobs:,} jobs{reused}",
        [[(kind, number, value)] for number, (kind, value) in enumerate(hours.items())],
        ", ".join(f"{kind} {duration(value)}" for kind, value in hours.items()),
    )
