"""Curves as inline SVG: no script, no library. A point tells its value when the pointer rests on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import ceil, floor, log10
from typing import Literal, NamedTuple

WIDTH, HEIGHT = 360, 170
LEFT, RIGHT, TOP, BOTTOM = 44, 350, 8, 150
"""Edges of the plotting area, in units of the view box."""
MAX_POINTS = 160
"""Of a curve; more could not be told apart."""
MAX_DOTS = 30
"""A curve of more points is drawn as a line alone."""


class Point(NamedTuple):
    step: int
    value: float | None
    """None, which stands for NaN or infinity, breaks the line."""
    low: float | None = None
    high: float | None = None
    """The interval around the value, where one is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    label: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    series: Sequence[Series]
    scale: Literal["linear", "log"] = "linear"
    unit: Literal["number", "percent"] = "number"
    limits: tuple[float, float] | None = None
    """Ends of the y axis. Unset: as the values need."""


def number(value: float) -> str:
    """Three digits, the way a person writes them.

    >>> [number(v) for v in (0, 0.4567, 812.4, 12345.6, 1.5e-7, 2e6)]
    ['0', '0.457', '812', '12,346', '1.5e-7', '2e6']
    """
    if value == 0 or 1e-3 <= abs(value) < 1000:
        return f"{value:.3g}"
    if 1000 <= abs(value) < 1e5:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def percent(value: float) -> str:
    return f"{value:.1%}"


def figure(chart: Chart, *, last_step: int) -> str:
    """The chart with its title, its last values and, where it has several series, their legend.

    The x axis runs from step 0 to `last_step`, so that charts of a run can be read against each other. On a log axis
    what is not positive lies on the floor.
    """
    write = percent if chart.unit == "percent" else number
    lasts = [next((p.value for p in reversed(s.points) if p.value is not None), None) for s in chart.series]
    lasts_text = ["–" if value is None else write(value) for value in lasts]
    head = f"<b>{escape(chart.title)}</b>"
    legend = ""
    if len(chart.series) == 1:
        head += f"<output>{lasts_text[0]}</output>"
    else:
        items = (
            f'<li class="s{k % 8}"><i></i>{escape(series.label)} <output>{text}</output></li>'
            for k, (series, text) in enumerate(zip(chart.series, lasts_text, strict=True))
        )
        legend = f'<ul class="legend">{"".join(items)}</ul>'
    return f'<figure class="chart"><figcaption>{head}</figcaption>{_svg(chart, last_step, write)}{legend}</figure>'


def sparkline(series: Series, *, last_step: int) -> str:
    """A curve of shares, from 0 to 1, small enough for a table."""
    dots = [
        (4 + 112 * p.step / max(last_step, 1), 26 - 24 * p.value, p) for p in thin(series.points) if p.value is not None
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in dots)
    circles = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.5"><title>step {p.step}: {percent(p.value or 0)}</title></circle>'
        for x, y, p in dots
    )
    return f'<svg class="spark s0" viewBox="0 0 120 28"><polyline points="{line}"/>{circles}</svg>'


def thin(points: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """At most `most` points, about: the lowest and the highest of every stretch, so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    size = ceil(2 * len(points) / most)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        finite = [p for p in stretch if p.value is not None] or stretch[:1]
        ends = {min(finite, key=lambda p: p.value or 0), max(finite, key=lambda p: p.value or 0)}
        kept += sorted(ends, key=lambda p: p.step)
    return kept


# ---- axes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    ticks: Sequence[float]
    place: Callable[[float], float] = lambda value: value

    def share(self, value: float) -> float:
        """Where a value lies between the ends: 0 to 1."""
        start, end = self.place(self.low), self.place(self.high)
        return (self.place(max(value, self.low)) - start) / (end - start)


def _y_axis(chart: Chart) -> _Axis:
    values = [v for s in chart.series for p in s.points for v in p[1:] if v is not None]
    if chart.limits is not None:
        return _linear(*chart.limits)
    positive = [value for value in values if value > 0]
    if chart.scale == "log" and positive:
        return _log(min(positive), max(positive))
    return _linear(min(values, default=0), max(values, default=0))


def _linear(low: float, high: float) -> _Axis:
    """Round ticks. The axis begins at 0 unless the values keep well away from it."""
    if low < high / 2 or low == high:
        low, high = min(low, 0), max(high, 0)
    if low == high:
        high = low + 1
    step = _round_up((high - low) / 5)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    ticks = [k * step for k in range(first, last + 1)]
    return _Axis(ticks[0], ticks[-1], ticks)


def _log(low: float, high: float) -> _Axis:
    first, last = floor(log10(low)), ceil(log10(high))
    last = max(last, first + 1)
    ticks = [10.0**k for k in range(first, last + 1, ceil((last - first) / 5))]
    return _Axis(10.0**first, 10.0**last, ticks, log10)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    power = 10.0 ** floor(log10(value))
    return next(m * power for m in (1, 2, 5, 10) if value <= m * power * (1 + 1e-9))


# ---- drawing -----------------------------------------------------------------------------------


def _svg(chart: Chart, last_step: int, write: Callable[[float], str]) -> str:
    y_axis = _y_axis(chart)

    def x(step: float) -> float:
        return LEFT + (RIGHT - LEFT) * step / max(last_step, 1)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * y_axis.share(value)

    tick_text = (lambda v: f"{100 * v:g}%") if chart.unit == "percent" else number
    drawn = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">']
    for tick in y_axis.ticks:
        drawn.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{RIGHT}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{tick_text(tick)}</text>')
    step_size = max(1, _round_up(max(last_step, 1) / 5))
    for tick in range(0, last_step + 1, int(step_size)):
        drawn.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - 5}" text-anchor="middle">{tick}</text>')
    for k, series in enumerate(chart.series):
        drawn += [f'<g class="s{k % 8}">', *_curve(series, x, y, write), "</g>"]
    return "".join([*drawn, "</svg>"])


def _curve(
    series: Series, x: Callable[[float], float], y: Callable[[float], float], write: Callable[[float], str]
) -> Iterator[str]:
    points = thin(series.points)
    runs = [list(run) for is_drawn, run in groupby(points, key=lambda p: p.value is not None) if is_drawn]
    for run in runs:
        upper = [f"{x(p.step):.1f},{y(p.high):.1f}" for p in run if p.high is not None]
        lower = [f"{x(p.step):.1f},{y(p.low):.1f}" for p in run if p.low is not None]
        if upper:
            yield f'<polygon class="band" points="{" ".join(upper + lower[::-1])}"/>'
        line = " ".join(f"{x(p.step):.1f},{y(p.value):.1f}" for p in run if p.value is not None)
        yield f'<polyline class="line" points="{line}"/>'
    for run in runs:
        kind = "dot" if len(points) <= MAX_DOTS or len(run) == 1 else "spot"
        for p in run:
            assert p.value is not None
            text = f"step {p.step}: {series.label} {write(p.value)}"
            if p.low is not None and p.high is not None:
                text += f" (95% interval {write(p.low)} to {write(p.high)})"
            place = f'cx="{x(p.step):.1f}" cy="{y(p.value):.1f}"'
            yield f'<circle class="{kind}" {place} r="2.5"><title>{escape(text)}</title></circle>'
