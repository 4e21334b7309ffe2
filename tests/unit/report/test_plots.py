from __future__ import annotations

from typing import Any

from motet.report.curves import Chart, Point
from motet.report.plots import charts, other_charts, points


def named(found: list[Chart]) -> dict[str, list[str]]:
    return {chart.title: [series.label for series in chart.series] for chart in found}


def step(number: int, **metrics: Any) -> dict[str, Any]:
    return {"step": number, "unix_seconds": 0.0, **metrics}


def test_only_what_was_logged_is_drawn_in_a_fixed_order() -> None:
    records = [step(1, **{"grad_norm": 1.0, "entropy": 2.0, "eval/accuracy": 0.5})]
    assert named(charts(records)) == {
        "Held-out accuracy": ["accuracy"],
        "Entropy (nats per token)": ["entropy"],
        "Gradient norm": ["grad_norm"],
    }


def test_a_prefix_stands_for_what_no_plot_names() -> None:
    metrics = {"reward/format": 1.0, "reward/std": 0.2, "reward/mean": 0.5, "groups/skipped/no_spread": 3.0}
    assert named(charts([step(1, **metrics)])) == {
        "Reward": ["mean", "format"],
        "Reward spread within a group (std)": ["std"],
        "Groups skipped": ["no_spread"],
    }


def test_what_no_plot_names_is_drawn_on_its_own() -> None:
    metrics = {"ratio": 1.0, "a/b": 2.0, "entropy": 1.0, "eval/kind/text": 0.5, "eval/accuracy_low": 0.1, "lr": 1.0}
    assert named(other_charts([step(1, **metrics)])) == {"a/b": ["a/b"], "ratio": ["ratio"]}


def test_points_are_of_the_steps_that_have_the_metric() -> None:
    records = [step(0, x=1.0, x_low=0.5, x_high=2.0), step(1, y=1.0), step(2, x=None)]
    assert points(records, "x") == [Point(0, 1.0, 0.5, 2.0), Point(2, None)]


def test_mismatch_is_on_a_log_axis() -> None:
    (chart,) = charts([step(1, **{"mismatch/max": 1e-5, "mismatch/mean": 1e-7})])
    assert (chart.scale, named([chart])) == ("log", {"|new - old| log-probability": ["mean", "max"]})
