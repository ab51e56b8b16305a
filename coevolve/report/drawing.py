"""Images of figures: matplotlib with its default settings, loaded only where a figure is drawn."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.storage import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours of text and page in both schemes. Glyphs without a colour of their own are drawn in that of the text.
SCHEMES = b"""  <style type="text/css">
   svg { color-scheme: light dark; --page: #ffffff; color: #1b1b1b; fill: currentColor }
   @media (prefers-color-scheme: dark) { svg { --page: #161718; color: #e6e6e6 } }
  </style>
"""


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; sizes in inches at 150 dots per inch."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def legend_below(figure: Figure, columns: int) -> None:
    """One legend below all panels, with each labelled line once; none without labelled lines."""
    lines = {str(line.get_label()): line for axes in figure.axes for line in axes.lines}
    # A line that was given no label has one of matplotlib's, which begins with an underscore.
    if handles := [line for label, line in lines.items() if not label.startswith("_")]:
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize="small")


def write(path: Path, draw: Callable[[], Figure]) -> None:
    """Write the drawn figure as PNG and as SVG; `path` without a suffix."""
    files.write_bytes(path.with_suffix(".png"), png(draw))
    files.write_bytes(path.with_suffix(".svg"), svg(draw))


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
    """The drawn figure as an SVG image that follows a dark colour scheme; equal figures give equal bytes.

    Black becomes `currentColor`, and white the colour of the page.
    """
    import matplotlib as mpl

    buffer = io.BytesIO()
    # By default, the file contains the date and random ids.
    with mpl.rc_context({**mpl.rcParamsDefault, "svg.hashsalt": "coevolve"}):
        draw().savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    content = re.sub(rb"#000000|(?<=: )black", b"currentColor", buffer.getvalue())
    content = re.sub(rb"#ffffff", b"var(--page)", content)
    return content.replace(b" <defs>\n", b" <defs>\n" + SCHEMES, 1)
