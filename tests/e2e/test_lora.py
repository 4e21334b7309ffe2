"""Adapters alone learn the toy rows, and what is exported answers as the run did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny-lora.toml"


def test_adapters_learn_and_are_exported_merged(settings_for: Any, motet: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _, *overrides = settings_for(run)
    done = motet("train", RECIPE, *overrides)
    assert done.returncode == 0, done.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert summary["eval_after"]["accuracy"] - summary["eval_before"]["accuracy"] >= 0.3

    assert motet("export", run, tmp_path / "merged").returncode == 0
    done = motet("eval", run, "--model", tmp_path / "merged")
    assert done.returncode == 0, done.stderr
    merged = float(done.stdout.splitlines()[0].split()[1])
    assert merged == pytest.approx(summary["eval_after"]["accuracy"], abs=0.003)
