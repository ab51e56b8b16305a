"""Images of figures: matplotlib with its default settings, loaded only where a figure is drawn."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; sizes in inches at 150 dots per inch."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def png(draw: Callable[[], Figure]) -> bytes:
    """The drawn figure as a PNG image; equal figures give equal bytes."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    with mpl.rc_context(mpl.rcParamsDefault):
        # By default, the file contains the version of matplotlib.
        FigureCanvasAgg(draw()).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def svg(draw: Callable[[], Figure]) -> bytes:
    """The drawn figure as an SVG image; equal figures give equal bytes."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    # By default, the file contains the date and random ids.
    with mpl.rc_context({**mpl.rcParamsDefault, "svg.hashsalt": "coevolve"}):
        draw().savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
