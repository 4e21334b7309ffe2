"""The main job, through the command line: it learns from every kind of row, on-policy and off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from motet.checkpoint import dcp


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(settings_for: Any, tmp_path_factory: pytest.TempPathFactory, motet: Any) -> Path:
    """The recipe as it stands."""
    folder = tmp_path_factory.mktemp("training") / "run"
    done = motet("train", *settings_for(folder))
    assert done.returncode == 0, done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    return folder


def test_accuracy_rises_by_thirty_points_and_every_kind_gains(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    before, after = summary["eval_before"], summary["eval_after"]
    assert before["num_rows"] == 450
    assert 0.36 <= before["accuracy"] <= 0.6
    assert after["accuracy"] - before["accuracy"] >= 0.3
    for kind, entry in before["by_kind"].items():
        assert after["by_kind"][kind]["accuracy"] > entry["accuracy"], kind


def test_console_ends_with_the_verdict_and_the_paths(run: Path) -> None:
    lines = (run / "stdout.txt").read_text().splitlines()
    assert lines[-4].startswith("held-out accuracy 0.")
    assert lines[-4].endswith(" points)")
    assert [line.split()[0] for line in lines[-3:]] == ["checkpoint", "report", "summary"]
    assert all(Path(line.split()[1]).exists() for line in lines[-3:])


def test_without_lag_every_step_is_on_policy_in_every_modality(run: Path) -> None:
    worst: dict[str, float] = {}
    for step in _metrics(run)[1:]:
        for name in step:
            if name.startswith("mismatch/max/"):
                modality = name.rpartition("/")[2]
                worst[modality] = max(worst.get(modality, 0.0), step[name])
        assert step["ratio"] == pytest.approx(1, abs=1e-5)
        assert step["clip_low"] == step["clip_high"] == 0
    assert worst.keys() == {"text", "image", "audio", "video", "video+audio", "image+audio"}
    assert max(worst.values()) < 3e-5
    assert max(_metrics(run)[1][name] for name in _metrics(run)[1] if name.startswith("mismatch/max")) < 1e-5


def test_every_clip_went_through_its_tower_once(run: Path) -> None:
    """40 steps of at least 16 groups of 8, and five evaluations: far more uses than clips."""
    summary = json.loads((run / "summary.json").read_text())
    clips = 0
    for name in ("train", "heldout"):
        rows = Path(summary["config"]["data"][name]).read_text().splitlines()
        for row in map(json.loads, rows):
            parts = [p for p in row["messages"][0]["content"] if p["type"] != "text"]
            clips += len(parts) + sum(p.get("use_audio", False) for p in parts)
    assert 0 < summary["num_towers_run"] <= clips


def test_text_alone_stays_at_chance_after_training(run: Path, motet: Any, tmp_path: Path) -> None:
    done = motet("export", run, tmp_path / "trained")
    assert done.returncode == 0, done.stderr
    done = motet("eval", run, "--model", tmp_path / "trained", "--blind")
    assert done.returncode == 0, done.stderr
    name, accuracy, *_ = done.stdout.splitlines()[0].split()
    assert name == "all"
    # Five kinds have 4 options, one has 3, two have 2: chance is (5/4 + 1/3 + 2/2) / 8 = 0.32, +-0.07 (3 sigma).
    assert 0.25 <= float(accuracy) <= 0.39


def test_the_exported_folder_has_the_accuracy_of_the_run(run: Path, motet: Any, tmp_path: Path) -> None:
    assert motet("export", run, tmp_path / "trained").returncode == 0
    done = motet("eval", run, "--model", tmp_path / "trained")
    summary = json.loads((run / "summary.json").read_text())
    assert float(done.stdout.splitlines()[0].split()[1]) == pytest.approx(summary["eval_after"]["accuracy"], abs=0.003)


@pytest.mark.parametrize("max_lag", [1, 3])
def test_data_is_never_older_than_max_lag(settings: list[str], tmp_path: Path, motet: Any, max_lag: int) -> None:
    done = motet("train", *settings, f"max_lag={max_lag}", "steps=15", "eval.every_steps=15")
    assert done.returncode == 0, done.stderr
    metrics = _metrics(tmp_path / "run")
    ages = [m["data/age"] for m in metrics if "data/age" in m]
    assert len(ages) == 15
    assert 0 < max(ages) <= max_lag  # groups that teach nothing hand their slots on, so the bound need not be reached
    assert metrics[-1]["eval/accuracy"] - metrics[0]["eval/accuracy"] >= 0.15


def test_on_policy_data_has_age_zero(run: Path) -> None:
    assert {m["data/age"] for m in _metrics(run) if "data/age" in m} == {0.0}


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(settings: list[str], tmp_path: Path, motet: Any) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    common = [*settings, "trainer.optimizer.warmup_steps=1", "checkpoint.every_steps=2", "eval.max_rows=9"]
    assert motet("train", *common, f"run_dir={whole}", "steps=4").returncode == 0
    assert motet("train", *common, f"run_dir={cut}", "steps=2").returncode == 0
    done = motet("train", *common, f"run_dir={cut}", "steps=4", "--resume")
    assert done.returncode == 0, done.stderr
    assert "resuming after step 2" in done.stdout
    ends = [dict(dcp.stream(r / "checkpoints" / "step-000004", lambda name: True)) for r in (whole, cut)]
    assert ends[0].keys() == ends[1].keys()
    assert all(ends[0][name].equal(ends[1][name]) for name in ends[0])
