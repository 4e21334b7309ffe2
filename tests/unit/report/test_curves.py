from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from motet.report.curves import Chart, Point, Series, figure, number, percent, sparkline, thin


def series(*values: float | None, label: str = "x") -> Series:
    return Series(label=label, points=[Point(step, value) for step, value in enumerate(values)])


def y_ticks(html: str) -> list[str]:
    return re.findall(r'text-anchor="end">([^<]*)<', html)


def x_ticks(html: str) -> list[str]:
    return re.findall(r'text-anchor="middle">([^<]*)<', html)


def lines(html: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'<polyline class="line" points="([^"]*)"', html)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in found]


def titles(html: str) -> list[str]:
    return re.findall(r"<title>([^<]*)</title>", html)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (0.45678, "0.457"),
        (0.001, "0.001"),
        (0.00099, "9.9e-4"),
        (999.4, "999"),
        (1000, "1,000"),
        (99_999, "99,999"),
        (100_000, "1e5"),
        (-1.5e-7, "-1.5e-7"),
    ],
)
def test_numbers_are_short(value: float, expected: str) -> None:
    assert number(value) == expected


def test_percent() -> None:
    assert percent(0.4567) == "45.7%"


def test_a_line_runs_from_edge_to_edge() -> None:
    html = figure(Chart(title="t", series=[series(0, 5, 10)]), last_step=2)
    assert lines(html) == [[(44, 150), (197, 79), (350, 8)]]  # the area spans 44 to 350 and, upwards, 150 to 8
    assert y_ticks(html) == ["0", "2", "4", "6", "8", "10"]
    assert x_ticks(html) == ["0", "1", "2"]


def test_a_run_that_is_half_over_is_drawn_up_to_its_step() -> None:
    html = figure(Chart(title="t", series=[series(0, 5, 10)]), last_step=4)
    assert [x for x, _ in lines(html)[0]] == [44, 120.5, 197]
    assert x_ticks(figure(Chart(title="t", series=[series(0)]), last_step=130)) == ["0", "50", "100"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0, 0), ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ((3, 3), ["0", "1", "2", "3"]),
        ((-2, -2), ["-2", "-1.5", "-1", "-0.5", "0"]),
        ((4.9, 10), ["0", "2", "4", "6", "8", "10"]),  # below half of the highest: from 0
        ((5.1, 10), ["5", "6", "7", "8", "9", "10"]),
        ((-1, 1), ["-1", "-0.5", "0", "0.5", "1"]),
        ((None, None), ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
    ],
)
def test_ticks_are_round(values: Sequence[float | None], expected: list[str]) -> None:
    assert y_ticks(figure(Chart(title="t", series=[series(*values)]), last_step=1)) == expected


def test_limits_stand_and_shares_are_percent() -> None:
    chart = Chart(title="t", series=[series(0.55, 0.6)], unit="percent", limits=(0, 1))
    html = figure(chart, last_step=1)
    assert y_ticks(html) == ["0%", "20%", "40%", "60%", "80%", "100%"]
    assert titles(html) == ["step 0: x 55.0%", "step 1: x 60.0%"]


def test_a_log_axis_puts_zero_on_the_floor() -> None:
    html = figure(Chart(title="t", series=[series(1e-7, 1e-5, 0)], scale="log"), last_step=2)
    assert y_ticks(html) == ["1e-7", "1e-6", "1e-5"]
    assert lines(html) == [[(44, 150), (197, 8), (350, 150)]]
    assert titles(html)[2] == "step 2: x 0"


def test_a_log_axis_without_positive_values_is_linear() -> None:
    assert y_ticks(figure(Chart(title="t", series=[series(0, 0)], scale="log"), last_step=1))[-1] == "1"


def test_a_missing_value_breaks_the_line() -> None:
    html = figure(Chart(title="t", series=[series(1, 2, None, 4, None)]), last_step=4)
    assert [len(line) for line in lines(html)] == [2, 1]
    assert titles(html) == ["step 0: x 1", "step 1: x 2", "step 3: x 4"]
    assert "<output>4</output>" in html  # the last value that there is


def test_an_interval_is_a_band_around_the_line() -> None:
    points = [Point(0, 0.5, 0.4, 0.6), Point(1, 1.0, 0.8, 1.0)]
    html = figure(Chart(title="t", series=[Series(label="x", points=points)], limits=(0, 1)), last_step=1)
    # There along the upper ends, back along the lower: y = 150 - 142 * value.
    assert re.findall('class="band" points="([^"]*)"', html) == ["44.0,64.8 350.0,8.0 350.0,36.4 44.0,93.2"]
    assert titles(html)[0] == "step 0: x 0.5 (95% interval 0.4 to 0.6)"


def test_several_series_have_a_legend_and_colours() -> None:
    chart = Chart(title="t", series=[series(1, label="a<b"), series(2, None, label="c"), series(None, label="d")])
    html = figure(chart, last_step=1)
    legend = re.findall(r'<li class="(s\d)"><i></i>([^<]*) <output>([^<]*)</output>', html)
    assert legend == [("s0", "a&lt;b", "1"), ("s1", "c", "2"), ("s2", "d", "–")]


@pytest.mark.parametrize(("num_points", "kind"), [(30, "dot"), (31, "spot")])
def test_dots_give_way_to_a_line_when_they_are_many(num_points: int, kind: str) -> None:
    html = figure(Chart(title="t", series=[series(*[1.0] * num_points)]), last_step=num_points)
    assert html.count(f'<circle class="{kind}"') == num_points


def test_thinning_keeps_every_spike() -> None:
    values: list[float | None] = [0.0] * 1000
    values[333], values[777], values[500] = 9.0, -9.0, None
    kept = thin(series(*values).points, most=100)
    assert len(kept) <= 100
    assert Point(333, 9.0) in kept
    assert Point(777, -9.0) in kept
    assert [p.step for p in kept] == sorted(p.step for p in kept)


def test_thinning_leaves_short_curves_alone_and_keeps_gaps() -> None:
    assert thin(series(1, 2, 3).points, most=3) == list(series(1, 2, 3).points)
    assert thin(series(*[None] * 8).points, most=4) == [Point(0, None), Point(4, None)]


def test_a_sparkline_spans_the_run_and_all_shares() -> None:
    html = sparkline(series(0.0, None, 1.0), last_step=4)
    assert re.findall('points="([^"]*)"', html) == ["4.0,26.0 60.0,2.0"]
    assert titles(html) == ["step 0: 0.0%", "step 2: 100.0%"]


def test_titles_are_escaped() -> None:
    html = figure(Chart(title="<script>", series=[series(1, label="<b>")]), last_step=1)
    assert "<script>" not in html
    assert "<b>&lt;script&gt;</b>" in html
    assert titles(html) == ["step 0: &lt;b&gt; 1"]
