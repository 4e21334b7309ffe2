"""The report of a run: one HTML file to read anywhere, without network or script.

It reads what lies in the run folder, each file only if it is there: `metrics.jsonl`, `alarms.jsonl`, `summary.json`,
`config.toml` and `groups/`. So it can be written while the run goes on. What comes from a row, a model or a setting is
escaped.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from functools import reduce
from html import escape
from pathlib import Path
from typing import Any

from motet.report import groups, plots
from motet.report.curves import Series, figure, percent, sparkline
from motet.report.style import STYLE

Evaluation = Mapping[str, Any]
"""`accuracy`, and where known `num_rows`, `interval` and `by_kind` and `by_modality`, each with the same by name."""

FACTS = (
    ("algorithm", "algorithm.kind"),
    ("groups a step", "rollout.groups_per_step"),
    ("completions a group", "rollout.group_size"),
    ("learning rate", "trainer.optimizer.lr"),
    ("max lag", "max_lag"),
    ("seed", "seed"),
    ("model", "model.path"),
    ("rows", "data.train"),
)
"""Settings that the head of the page shows."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' file: data:; media-src 'self' file: data:"
"""Should anything get past the escaping, the browser runs nothing and calls nobody."""


def write(run: Path) -> Path:
    """Write `report.html` into the folder of a run and return its path.

    Raises ValueError where there is no such folder.
    """
    if not run.is_dir():
        raise ValueError(f"{run}: no such folder; give the folder of a run, its run_dir")
    records = _json_lines(run / "metrics.jsonl")
    summary = json.loads(_text(run / "summary.json") or "{}")
    config_text = _text(run / "config.toml")
    config = tomllib.loads(config_text) or summary.get("config", {})
    last_step = max((record["step"] for record in records), default=0)
    evaluations = _evaluations(summary, records)
    body = (
        _head(run, config, last_step=last_step, is_over=bool(summary)),
        _verdict(evaluations, is_over=bool(summary)),
        _facts(summary, config, evaluations),
        _alarms(_json_lines(run / "alarms.jsonl")),
        _curves(records, last_step),
        _tables(evaluations, records, last_step),
        _groups(run / "groups"),
        _config(config_text or json.dumps(config, indent=2)),
    )
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(run.resolve().name)} · Motet</title>"
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )
    path = run / "report.html"
    draft = run / "report.html.draft"
    draft.write_text(html, encoding="utf-8", errors="xmlcharrefreplace")  # a row may hold half a surrogate pair
    draft.replace(path)
    return path


def _text(path: Path) -> str:
    """Empty where there is no such file, or not yet."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """All lines but one that is still being written."""
    return [json.loads(line) for line in _text(path).splitlines(keepends=True) if line.endswith("\n")]


# ---- evaluations -------------------------------------------------------------------------------


def _evaluations(summary: Mapping[str, Any], records: Sequence[plots.Record]) -> list[Evaluation]:
    """The first and the last: of the summary, or of the metrics while there is none. Fewer where fewer were made."""
    if summary.get("eval_before") and summary.get("eval_after"):
        return [summary["eval_before"], summary["eval_after"]]
    logged = [_evaluation(record) for record in records if record.get("eval/accuracy") is not None]
    return logged[:1] + logged[1:][-1:]


def _evaluation(record: plots.Record) -> Evaluation:
    def below(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): {"accuracy": v} for name, v in record.items() if name.startswith(prefix)}

    evaluation = {
        "accuracy": record["eval/accuracy"],
        "by_kind": below("eval/kind/"),
        "by_modality": below("eval/modality/"),
    }
    if "eval/accuracy_low" in record:
        evaluation["interval"] = [record["eval/accuracy_low"], record["eval/accuracy_high"]]
    return evaluation


def _change(before: Evaluation, after: Evaluation, unit: str = "") -> str:
    points = 100 * (after["accuracy"] - before["accuracy"])
    direction = "up" if points > 0 else "down" if points < 0 else ""
    return f'<output class="{direction}">{points:+.1f}{unit}</output>'


# ---- sections ----------------------------------------------------------------------------------


def _head(run: Path, config: Mapping[str, Any], *, last_step: int, is_over: bool) -> str:
    steps = f"{last_step} of {config['steps']} steps" if "steps" in config else f"{last_step} steps"
    status = steps if is_over else f"{steps}, not finished"
    return f"<h1>{escape(run.resolve().name)} <span>· {status}</span></h1>"


def _verdict(evaluations: Sequence[Evaluation], *, is_over: bool) -> str:
    def measured(evaluation: Evaluation) -> str:
        low, high = evaluation.get("interval", (None, None))
        interval = "" if low is None else f"<small>95% interval {100 * low:.1f} to {percent(high)}</small>"
        return f"<span>{percent(evaluation['accuracy'])}{interval}</span>"

    title = f"<small>held-out accuracy{'' if is_over else ' so far'}</small>"
    values = " <i>→</i> ".join(map(measured, evaluations)) or "<i>not measured</i>"
    gain = _change(evaluations[0], evaluations[1], " points") if len(evaluations) == 2 else ""
    return f'<div class="verdict">{title}{values}{gain}</div>'


def _facts(summary: Mapping[str, Any], config: Mapping[str, Any], evaluations: Sequence[Evaluation]) -> str:
    facts: list[tuple[str, Any]] = []
    if "train_seconds" in summary:
        facts.append(("training time", _duration(summary["train_seconds"])))
    if evaluations and evaluations[-1].get("num_rows"):
        facts.append(("held-out rows", evaluations[-1]["num_rows"]))
    for label, name in FACTS:
        value = reduce(lambda table, key: table.get(key, {}), name.split("."), config)
        if value != {}:
            facts.append((label, value))
    items = "".join(f"<div><dt>{label}</dt><dd>{escape(str(value))}</dd></div>" for label, value in facts)
    return f'<dl class="facts">{items}</dl>' if items else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def _alarms(alarms: Sequence[Mapping[str, Any]]) -> str:
    items = "".join(f"<li><b>step {alarm['step']}</b>{escape(alarm['message'])}</li>" for alarm in alarms)
    return f'<ul class="alarms">{items}</ul>' if items else ""


def _curves(records: Sequence[plots.Record], last_step: int) -> str:
    if not records:
        return '<h2>Curves</h2><p class="note">Nothing has been logged yet.</p>'
    main = "".join(figure(chart, last_step=last_step) for chart in plots.charts(records))
    others = "".join(figure(chart, last_step=last_step) for chart in plots.other_charts(records))
    more = f'<details><summary>other metrics</summary><div class="charts">{others}</div></details>' if others else ""
    return f'<h2>Curves</h2><div class="charts">{main}</div>{more}'


def _tables(evaluations: Sequence[Evaluation], records: Sequence[plots.Record], last_step: int) -> str:
    tables = "".join(
        _table(label, evaluations, records, last_step)
        for label in ("kind", "modality")
        if evaluations and evaluations[-1].get(f"by_{label}")
    )
    return f'<h2>Held-out accuracy</h2><div class="tables">{tables}</div>' if tables else ""


def _table(label: str, evaluations: Sequence[Evaluation], records: Sequence[plots.Record], last_step: int) -> str:
    """One row a kind: how many rows, the accuracies, their change, and the curve between."""
    before, after = (evaluations[k].get(f"by_{label}", {}) for k in (0, -1))

    def row(name: str) -> str:
        is_known = name in before
        curve = Series(label=name, points=plots.points(records, f"eval/{label}/{name}"))
        cells = (
            escape(name),
            str(after[name].get("num_rows", "–")),
            percent(before[name]["accuracy"]) if is_known else "–",
            percent(after[name]["accuracy"]),
            _change(before[name], after[name]) if is_known else "–",
            sparkline(curve, last_step=last_step),
        )
        return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"

    head = "".join(f"<th>{title}</th>" for title in (label, "rows", "before", "after", "points", "over the run"))
    return f'<div class="table"><table><tr>{head}</tr>{"".join(map(row, after))}</table></div>'


def _groups(folder: Path) -> str:
    records = groups.read(folder)
    cards = f'<div class="groups">{groups.cards(records, folder)}</div>'
    return f"<h2>Sampled groups</h2>{cards if records else '<p class=note>No group has been recorded.</p>'}"


def _config(text: str) -> str:
    settings = f'<details><summary>every setting</summary><pre class="config">{escape(text)}</pre></details>'
    return f"<h2>Configuration</h2>{settings}"
