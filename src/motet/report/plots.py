"""Which metrics of a run are drawn together, how, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from motet.report.curves import Chart, Point, Series

Record = Mapping[str, Any]
"""One line of `metrics.jsonl`."""


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    names: tuple[str, ...]
    """Metrics; a name that ends in `/` stands for all below it that no plot names."""
    scale: Literal["linear", "log"] = "linear"
    unit: Literal["number", "percent"] = "number"
    limits: tuple[float, float] | None = None


SHARE: tuple[float, float] = (0.0, 1.0)
PLOTS = (
    Plot("Held-out accuracy", ("eval/accuracy",), unit="percent", limits=SHARE),
    Plot("Held-out accuracy by modality", ("eval/modality/",), unit="percent", limits=SHARE),
    Plot("Reward", ("reward/mean", "reward/")),
    Plot("Reward spread within a group (std)", ("reward/std",)),
    Plot("Groups without spread", ("group/no_spread",), unit="percent", limits=SHARE),
    Plot("Groups skipped", ("groups/skipped/",)),
    Plot("Entropy (nats per token)", ("entropy",)),
    Plot("Gradient norm", ("grad_norm",)),
    Plot("|new - old| log-probability", ("mismatch/mean", "mismatch/max"), scale="log"),
    Plot("Clipped tokens", ("clip_low", "clip_high"), unit="percent"),
    Plot("Completion length (tokens)", ("completion/length_tokens",)),
    Plot("Completions cut at the limit", ("completion/truncated",), unit="percent", limits=SHARE),
    Plot("Data age (weight versions)", ("data/age",)),
    Plot("Seconds per stage", ("seconds/",)),
    Plot("Tokens per second", ("tokens_per_second",)),
    Plot("Learning rate", ("lr",)),
)
NAMED = {name for plot in PLOTS for name in plot.names}
ELSEWHERE = ("step", "unix_seconds", "eval/accuracy_low", "eval/accuracy_high", "eval/kind/")
"""No plots of their own: the band of a curve, and the table of kinds."""


def charts(records: Sequence[Record]) -> list[Chart]:
    """The plots that there are values for."""
    logged = list(dict.fromkeys(name for record in records for name in record))
    found = []
    for plot in PLOTS:
        names = [name for pattern in plot.names for name in _matching(pattern, logged)]
        curves = [Series(label=name.rpartition("/")[2], points=points(records, name)) for name in dict.fromkeys(names)]
        if curves:
            found.append(Chart(title=plot.title, series=curves, scale=plot.scale, unit=plot.unit, limits=plot.limits))
    return found


def other_charts(records: Sequence[Record]) -> list[Chart]:
    """A chart for each metric that no plot names, by name: nothing that was logged is hidden."""
    logged = sorted({name for record in records for name in record})
    drawn = {name for pattern in (*NAMED, *ELSEWHERE) for name in _matching(pattern, logged)}
    return [
        Chart(title=name, series=[Series(label=name, points=points(records, name))])
        for name in logged
        if name not in drawn
    ]


def points(records: Sequence[Record], name: str) -> list[Point]:
    """A metric over the steps that have it, with the interval that is logged beside it, if any."""
    return [
        Point(record["step"], record[name], record.get(f"{name}_low"), record.get(f"{name}_high"))
        for record in records
        if name in record
    ]


def _matching(pattern: str, logged: Sequence[str]) -> Iterator[str]:
    for name in logged:
        if name == pattern or (pattern.endswith("/") and name.startswith(pattern) and name not in NAMED):
            yield name
