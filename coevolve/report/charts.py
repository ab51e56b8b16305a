"""Charts as inline SVG or HTML: colours are CSS variables of the page, and every mark has its value as text.

The attributes `data-x` and `data-y` of a curve, and `data-value` of a bar, hold the drawn numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from coevolve.report.number_text import readable

#: Colours that the page defines as `--c0`, `--c1`, ...; more series than colours repeat them.
COLOURS = 8
WIDTH, HEIGHT = 320, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 16, 8, 36


@dataclass(frozen=True)
class Curve:
    """Points (x, y) of one series. `style` is a CSS class: `mean` (thick), `seed` (thin) or `mean dashed`.

    `intervals` (x, low, high) are vertical lines.
    """

    name: str
    colour: int
    points: Sequence[tuple[float, float]]
    style: str = "mean"
    intervals: Sequence[tuple[float, float, float]] = ()
    markers: bool = False


def seed_curves(name: str, colour: int, seeds: Mapping[int, Sequence[tuple[float, float]]]) -> list[Curve]:
    """A thin curve of each seed's points, where there are several."""
    ordered = sorted(seeds.items()) if len(seeds) > 1 else []
    return [Curve(f"{name}, seed {seed}", colour, points, "seed") for seed, points in ordered]


@dataclass(frozen=True)
class Segment:
    """A part of a bar."""

    name: str
    colour: int
    value: float


@dataclass(frozen=True)
class BarRow:
    """A labelled line of a bar chart: bars one below the other, each of segments, and their numbers as text."""

    label: str
    bars: Sequence[Sequence[Segment]]
    text: str


def line_chart(
    title: str,
    curves: Sequence[Curve],
    x_label: str,
    y_label: str,
    *,
    breaks: Iterable[float] = (),
) -> str:
    """An SVG chart with both axes; `breaks` are vertical lines. Empty without points."""
    curves = [curve for curve in curves if curve.points]
    points = [point for curve in curves for point in curve.points]
    if not points:
        return ""
    heights = [y for _, y in points] + [end for curve in curves for _, *ends in curve.intervals for end in ends]
    across, up = _ticks([x for x, _ in points], integer=True), _ticks(heights)
    axes = _Axes((across[0], across[-1]), (up[0], up[-1]))
    marks = "".join(_curve(curve, axes) for curve in sorted(curves, key=lambda curve: curve.style != "seed"))
    lines = "".join(f'<path class="break" d="M{axes.x(x):.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>' for x in breaks)
    return _svg(title, f"{_grid(axes, across, up, x_label, y_label)}{lines}{marks}")


def histogram(title: str, counts: Sequence[float], colour: int, top: float) -> str:
    """An SVG of bars, failures by reward in equal bins of [0, 1]; `top`: the value of the full height."""
    up = _ticks([0.0, top])
    axes = _Axes((0.0, 1.0), (0.0, up[-1]))
    bars = "".join(
        f'<rect class="c{colour % COLOURS}" x="{axes.x(index / len(counts)) + 1:.1f}" y="{axes.y(count):.1f}" '
        f'width="{(axes.x(1) - axes.x(0)) / len(counts) - 2:.1f}" height="{axes.y(0) - axes.y(count):.1f}" '
        f'data-value="{count:g}"><title>{readable(index / len(counts))} to {readable((index + 1) / len(counts))}: '
        f"{readable(count)}</title></rect>"
        for index, count in enumerate(counts)
    )
    return _svg(title, f"{_grid(axes, [0.0, 0.5, 1.0], up, 'reward', 'failures')}{bars}")


def bar_rows(rows: Sequence[BarRow], full: float | None = None) -> str:
    """Horizontal bars as an HTML list; `full` is the value of the whole width (None: that of the longest bar).

    A negative value has no bar.
    """
    longest = full or max([0.0, *(sum(part.value for part in bar) for row in rows for bar in row.bars)]) or 1.0
    return f'<ul class="bars">{"".join(_bar_row(row, longest) for row in rows)}</ul>' if rows else ""


def legend(names: Iterable[tuple[str, int, str]]) -> str:
    """The names of series, each (name, colour, style) beside a sample of its line."""
    items = (
        f'<li><svg class="key" viewBox="0 0 20 8" aria-hidden="true"><path class="c{colour % COLOURS} {style}" '
        f'd="M0 4H20"/></svg>{escape(name)}</li>'
        for name, colour, style in names
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


@dataclass(frozen=True)
class _Axes:
    """Positions in the SVG of values between the ends of both axes."""

    across: tuple[float, float]
    up: tuple[float, float]

    def x(self, value: float) -> float:
        return _LEFT + _share(value, self.across) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - _share(value, self.up) * (HEIGHT - _TOP - _BOTTOM)


def _share(value: float, ends: tuple[float, float]) -> float:
    return (value - ends[0]) / (ends[1] - ends[0])


def _ticks(values: Sequence[float], integer: bool = False) -> list[float]:
    """Round values from at most the smallest to at least the largest one."""
    from matplotlib.ticker import MaxNLocator

    low, high = min(values), max(values)
    if low == high:
        low, high = (low, high + 1) if low >= 0 else (low - 1, high)
    ticks = MaxNLocator(nbins=4, integer=integer, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [round(float(tick), 12) for tick in ticks]


def _svg(title: str, content: str) -> str:
    label = escape(title)
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{content}</svg>'


def _grid(axes: _Axes, across: Sequence[float], up: Sequence[float], x_label: str, y_label: str) -> str:
    bottom, middle, centre = HEIGHT - _BOTTOM, (HEIGHT - _BOTTOM + _TOP) / 2, (_LEFT + WIDTH - _RIGHT) / 2
    lines = "".join(
        f'<path class="grid" d="M{_LEFT} {axes.y(tick):.1f}H{WIDTH - _RIGHT}"/>'
        f'<text x="{_LEFT - 4}" y="{axes.y(tick) + 4:.1f}" text-anchor="end">{readable(tick)}</text>'
        for tick in up
    )
    numbers = "".join(
        f'<text x="{axes.x(tick):.1f}" y="{bottom + 14}" text-anchor="middle">{readable(tick)}</text>'
        for tick in across
    )
    return (
        f'{lines}{numbers}<text x="{centre}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>'
        f'<text x="10" y="{middle}" text-anchor="middle" transform="rotate(-90 10 {middle})">{escape(y_label)}</text>'
    )


def _curve(curve: Curve, axes: _Axes) -> str:
    colour = f"c{curve.colour % COLOURS}"
    line = "L".join(f"{axes.x(x):.1f} {axes.y(y):.1f}" for x, y in curve.points)
    xs, ys = (" ".join(f"{value:.6g}" for value in values) for values in zip(*curve.points, strict=True))
    intervals = "".join(
        f'<path class="{colour} interval" d="M{axes.x(x):.1f} {axes.y(low):.1f}V{axes.y(high):.1f}"/>'
        for x, low, high in curve.intervals
    )
    ends = {x: f" [{readable(low)}, {readable(high)}]" for x, low, high in curve.intervals}
    markers = "".join(
        f'<circle class="{colour}" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="3"><title>{escape(curve.name)}, '
        f"{readable(x)}: {readable(y)}{ends.get(x, '')}</title></circle>"
        for x, y in (curve.points if curve.markers else ())
    )
    path = (
        f'<path class="{colour} {curve.style}" d="M{line}" data-name="{escape(curve.name)}" data-x="{xs}" '
        f'data-y="{ys}"><title>{escape(curve.name)}</title></path>'
    )
    return f"{intervals}{path}{markers}"


def _bar_row(row: BarRow, longest: float) -> str:
    rectangles = []
    for number, bar in enumerate(row.bars):
        start = 0.0
        for part in bar:
            width = 100 * max(0.0, part.value) / longest
            rectangles.append(
                f'<rect class="c{part.colour % COLOURS}" x="{start:.3f}" y="{number}" width="{width:.3f}" height="0.9" '
                f'data-value="{part.value:.6g}"><title>{escape(part.name)}: {readable(part.value)}</title></rect>'
            )
            start += width
    box = f'class="rows{len(row.bars)}" viewBox="0 0 100 {len(row.bars)}" preserveAspectRatio="none"'
    return (
        f'<li><span>{escape(row.label)}</span><svg {box} aria-hidden="true">{"".join(rectangles)}</svg>'
        f'<span class="quiet">{escape(row.text)}</span></li>'
    )
