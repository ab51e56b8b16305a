"""Figures: matplotlib, loaded only where a figure is drawn, with one style; written as SVG for any page."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coevolve.report.number_text import readable
from coevolve.storage import files

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]
#: Colours of series on a light and on a dark page; more series than colours repeat them.
SERIES = {
    "#0b66c3": "#6cb0ff", "#c4560a": "#ff9d5c", "#1c7c3f": "#66c78a", "#a3267f": "#f08ad0",
    "#6b4fbb": "#b5a1ff", "#8a6d00": "#dcc04e", "#00818a": "#5cd0d8", "#b3261e": "#ff8a80",
}  # fmt: skip
#: On a dark page, other colours than those that stand in the file, which programs without this rule show.
_DARK = "\n".join(
    f'  .drawn [style*="{of}: {light}"] {{ {of}: {dark} !important }}'
    for light, dark in {**SERIES, "#ffffff": "#161718"}.items()
    for of in ("fill", "stroke")
)
#: Rules of an SVG's class, which hold in a file of its own and inside a page. Marks are named when pointed at.
_RULES = f"""<style>
.drawn {{ color-scheme: light dark; color: #1b1b1b; fill: currentColor; font-family: system-ui, sans-serif;
  stroke-linejoin: round }}
@media (prefers-color-scheme: dark) {{
  .drawn {{ color: #e6e6e6 }}
{_DARK}
}}
</style>"""
_TIP = "tip:"


@dataclass(frozen=True)
class BarRow:
    """A labelled row of a bar chart: bars one below the other, of parts (name, colour, value), and a text beside."""

    label: str
    bars: Sequence[Sequence[tuple[str, int, float]]]
    text: str


def series_colour(number: int) -> str:
    """The colour of a series."""
    return list(SERIES)[number % len(SERIES)]


def panels(
    title: str, count: int, *, columns: int = 3, share_y: bool = False, empty: str = "Nothing was measured."
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels in rows of at most `columns`; four are as wide as three, none is the text `empty`."""
    rows, width = -(-count // columns) if count else 1, min(4.0, 12.0 / max(1, columns))
    figure = _figure(title, width * min(count or 1, max(1, columns)), 0.75 * width * rows)
    if not count:
        figure.text(0.5, 0.5, empty, ha="center", wrap=True)
        return figure, []
    every = figure.subplots(rows, min(count, columns), squeeze=False, sharey=share_y).ravel()
    for axes in every[count:]:
        axes.remove()
    return figure, list(every[:count])


def _figure(title: str, width: float, height: float) -> Figure:
    """An empty figure; sizes in inches at 150 dots per inch. An SVG file begins with the title."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    figure.set_label(title)
    return figure


def label(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    """Give a panel its title, in lines that do not reach the next panel, and the names of its axes."""
    width = axes.figure.get_figwidth() / axes.get_gridspec().ncols  # type: ignore[union-attr]
    axes.set(title=textwrap.fill(title, int(10 * width), break_on_hyphens=False), xlabel=x, ylabel=y)


def curves(
    axes: Axes, name: str, colour: int, means: Points, seeds: Mapping[int, Points], style: str = "-", tip: str = ""
) -> None:
    """Draw the means as a thick, named line, and each of several seeds as a thin one; `tip` is shown for the means."""
    for seed, points in sorted(seeds.items()) if len(seeds) > 1 else []:
        line(axes, f"{name}, seed {seed}", colour, points, style.strip("o."), linewidth=0.8, alpha=0.7)
    values = "; ".join(f"{readable(x)}: {readable(y)}" for x, y in means) if "o" in style else ""
    line(axes, tip or f"{name}: {values}".removesuffix(": "), colour, means, style, label=name)


def line(axes: Axes, tip: str, colour: int, points: Points, style: str, **options: object) -> None:
    """Draw a line through (x, y) that can be drawn, if there are any; `tip` is shown when it is pointed at."""
    if points := [point for point in points if all(map(_is_drawable, point))]:
        style = style if len(points) > 1 or "o" in style else "o"
        (drawn,) = axes.plot(*zip(*points, strict=True), style, color=series_colour(colour), **options)  # type: ignore[arg-type]
        explain(drawn, tip)


def bars(title: str, charts: Mapping[str, Sequence[BarRow]], full: Mapping[str, float] = {}) -> Figure:
    """Charts of horizontal bars by title, none for a negative value; `full`: what a chart's whole width stands for."""
    heights = [1.5 + sum(map(_lines, rows)) for rows in charts.values()]
    if not heights:
        return panels(title, 0)[0]
    figure = _figure(title, 12.0, sum(heights) / 6 + 0.4)
    column = figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, rows) in zip(column, charts.items(), strict=True):
        top = full.get(name) or max([0.0, *(sum(map(_width, bar)) for row in rows for bar in row.bars)]) or 1.0
        ends = [*accumulate(map(_lines, rows), initial=0)]
        axes.set(title=name, xlim=(0, top), yticks=[], ylim=(ends[-1] or 1, 0))
        for row, start, end in zip(rows, ends, ends[1:], strict=False):
            _draw_row(axes, row, start, end)
    legend(figure)
    return figure


def _lines(row: BarRow) -> float:
    """The height of a row in lines of text."""
    return 0.5 + max(map(len, map(_wrapped, (row.label, row.text))))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 58, break_on_hyphens=False)


def _draw_row(axes: Axes, row: BarRow, start: float, end: float) -> None:
    height = 0.7 * (end - start) / len(row.bars)
    for number, bar in enumerate(row.bars):
        y, left = start + 0.15 * (end - start) + number * height, 0.0
        for name, colour, value in bar:
            width = _width((name, colour, value))
            (patch,) = axes.barh(y, width, 0.9 * height, left, align="edge", color=series_colour(colour), label=name)
            explain(patch, f"{name}: {readable(value)}")
            left += width
    for x, side, text in ((-0.02, "right", row.label), (1.02, "left", row.text)):
        middle, lines = (start + end) / 2, "\n".join(_wrapped(text))
        axes.text(x, middle, lines, transform=axes.get_yaxis_transform(), ha=side, va="center", fontsize="small")


def _width(part: tuple[str, int, float]) -> float:
    return max(0.0, part[2]) if _is_drawable(part[2]) else 0.0


def _is_drawable(value: float) -> bool:
    """Whether matplotlib can place a value: not NaN, infinity or what overflows in its sums."""
    return abs(value) < 1e100


def explain(mark: Artist, text: str) -> None:
    """Show a text when the mark is pointed at, in an SVG file."""
    mark.set_gid(_TIP + text)


def legend(figure: Figure) -> None:
    """One legend above all panels, for which the figure becomes higher, with each labelled mark once."""
    # A mark that was given no label has one of matplotlib's, which begins with an underscore.
    handles = {text: mark for axes in figure.axes for mark, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        columns = int(figure.get_figwidth() / (0.6 + 0.075 * max(map(len, handles)))) or 1
        figure.set_figheight(figure.get_figheight() + 0.17 * -(-len(handles) // columns))
        figure.legend(handles.values(), handles, loc="outside upper left", ncols=columns, fontsize="small")


def write(path: Path, draw: Callable[[], Figure]) -> None:
    """Write the drawn figure to an SVG file."""
    files.write_bytes(path, svg(drawn(draw)))


def drawn(draw: Callable[[], Figure]) -> Figure:
    """The figure in the style of all figures, with its layout fixed, without panels whose curves have one point."""
    with _style():
        figure = draw()
        _drop_single_points(figure)
        figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _drop_single_points(figure: Figure) -> None:
    """Remove panels whose curves have one point, the value of which stands in the numbers; the others move up."""
    kept = [axes for axes in figure.axes if not _is_single_point(axes)]
    if len(kept) == len(figure.axes):
        return
    rows, columns = figure.axes[0].get_gridspec().get_geometry()  # type: ignore[union-attr]
    for axes in set(figure.axes) - set(kept):
        axes.remove()
    needed = -(-len(kept) // columns)
    figure.set_figheight(figure.get_figheight() * max(1, needed) / rows)
    grid = figure.add_gridspec(max(1, needed), columns)
    for number, axes in enumerate(kept):
        axes.set_subplotspec(grid[divmod(number, columns)])
    if not kept:
        figure.text(0.5, 0.5, "One iteration, so there are no curves; the numbers have its values.", ha="center")


def _is_single_point(axes: Axes) -> bool:
    x_values = {round(x) for line in axes.lines for x in np.asarray(line.get_xdata(), dtype=float).tolist()}
    return len(x_values) == 1 and not axes.patches


def _style(**options: str) -> AbstractContextManager[None]:
    """Matplotlib's defaults, whatever the user's are, and the style of all figures."""
    import matplotlib as mpl

    lines = {"axes.spines.right": False, "axes.spines.top": False, "axes.axisbelow": True, "legend.frameon": False}
    grid = {"axes.grid": True, "axes.grid.axis": "y", "grid.color": "black", "grid.alpha": 0.15}
    texts = {"axes.titlesize": "medium", "axes.formatter.useoffset": False, "font.size": 9, "text.parse_math": False}
    return mpl.rc_context({**mpl.rcParamsDefault, **lines, **grid, **texts, "svg.fonttype": "none", **options})


def svg(figure: Figure) -> bytes:
    """The figure as an SVG image with texts as text, for light and dark pages; equal figures give equal bytes.

    Black becomes `currentColor`. The only ids are digests of what they name, so that images can stand together in one
    page.
    """
    title, buffer = str(figure.get_label()), io.StringIO()
    # By default, the file contains the date and random ids.
    with _style(**{"svg.hashsalt": title}):
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    inside = "(?=[^<>]*>)"  # a tag, and not in a text
    content = re.sub(rf"<g id=([\"']){_TIP}(.*?)\1>", r"<g><title>\2</title>", buffer.getvalue())
    content = re.sub(f"(#000000|(?<=: )black){inside}", "currentColor", content)
    content = re.sub(r'(?<=<g) id="[^"]*"|(?<= )font-family: [^;"]*; | transform="rotate\(-0 [^"]*\)"', "", content)
    content = re.sub(rf"(\d\.\d\d)\d+{inside}", r"\1", content)
    head = f'<svg class="drawn" role="img"\\1><title>{escape(title)}</title>{_RULES}'
    return re.sub(r"<svg([^>]*)>\s*<defs>\s*<style.*?</style>\s*</defs>", head, content, flags=re.DOTALL).encode()
