"""Low-rank adapters, through the command line: they learn, resume exactly, and leave as weights or as themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from motet import compat
from motet.checkpoint import dcp

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny-lora.toml"


@pytest.fixture(scope="module")
def run(settings_for: Any, tmp_path_factory: pytest.TempPathFactory, motet: Any) -> Path:
    """A third of the recipe's steps."""
    folder = tmp_path_factory.mktemp("lora") / "run"
    _, *overrides = settings_for(folder)
    done = motet("train", RECIPE, *overrides, "steps=20", "eval.every_steps=20")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def merged(run: Path, motet: Any) -> Path:
    done = motet("export", run, run / "merged")
    assert done.returncode == 0, done.stderr
    return run / "merged"


def test_adapters_alone_raise_accuracy_by_thirty_points(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    before, after = summary["eval_before"]["accuracy"], summary["eval_after"]["accuracy"]
    assert 0.36 <= before <= 0.6
    assert after - before >= 0.3
    saved = [name for name in dcp.census(run / "checkpoints" / "step-000020") if name.startswith("weights/")]
    assert len(saved) == 4 * (4 + 2) * 2  # layers, adapted tensors of each, factors
    assert all(name.endswith((".lora_A", ".lora_B")) for name in saved)


def test_the_merged_export_has_the_accuracy_of_the_run(run: Path, merged: Path, motet: Any) -> None:
    done = motet("eval", run, "--model", merged)
    assert done.returncode == 0, done.stderr
    after = json.loads((run / "summary.json").read_text())["eval_after"]["accuracy"]
    assert float(done.stdout.splitlines()[0].split()[1]) == pytest.approx(after, abs=0.003)


def test_peft_on_the_base_scores_as_the_merged_export(run: Path, merged: Path, motet: Any, world: Path) -> None:
    done = motet("export", run, run / "adapter", "--adapter")
    assert done.returncode == 0, done.stderr
    base = _thinker(world / "tiny")
    plain, whole = _logits(base), _logits(_thinker(merged))
    import peft

    adapted = _logits(peft.PeftModel.from_pretrained(base, str(run / "adapter")).eval())
    assert float((adapted - whole).abs().max()) <= 1e-5  # logits reach 8
    assert float((plain - whole).abs().max()) > 1


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(settings: list[str], tmp_path: Path, motet: Any) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    common = [RECIPE, *settings[1:], "checkpoint.every_steps=1", "eval.max_rows=9"]
    assert motet("train", *common, f"run_dir={whole}", "steps=3").returncode == 0
    assert motet("train", *common, f"run_dir={cut}", "steps=2").returncode == 0
    done = motet("train", *common, f"run_dir={cut}", "steps=3", "--resume")
    assert done.returncode == 0, done.stderr
    assert "resuming after step 2" in done.stdout
    ends = [dict(dcp.stream(r / "checkpoints" / "step-000003", lambda name: True)) for r in (whole, cut)]
    assert ends[0].keys() == ends[1].keys()
    assert all(ends[0][name].equal(ends[1][name]) for name in ends[0])


def _thinker(folder: Path) -> Any:
    compat.torchvision()
    from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

    return Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(folder).eval()


@torch.no_grad()
def _logits(module: Any) -> Tensor:
    tokens = torch.tensor([[5, 9, 2, 77, 140, 3, 3, 60]])
    return module(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
