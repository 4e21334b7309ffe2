"""Whole runs with the store and without it: how often the towers run, and that nothing else changes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

GROUP_SIZE, NUM_EPOCHS, NUM_ROWS = 8, 2, 9
REWARD = "def spread(task, completion):\n    return int(completion.token_ids.sum()) % 7\n"
"""Completions of the random model say nothing; this tells them apart, so that every group teaches something."""


@dataclass(frozen=True)
class Outcome:
    clips: Counter[str]
    """Distinct clips of the rows, by tower."""
    runs: Counter[str]
    """How often each tower module ran."""
    encoded: int
    """The same, by the last metrics."""
    metrics: list[dict[str, Any]]
    """Of each step, without times and what the store says of itself."""
    weights: dict[str, Tensor]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One row of every kind."""
    from motet.data import toy

    folder = tmp_path_factory.mktemp("features")
    toy.write(folder, seed=5, num_train=NUM_ROWS, num_heldout=NUM_ROWS)
    (folder / "spread.py").write_text(REWARD)
    return folder


@pytest.fixture(scope="module")
def train(random_checkpoint: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outcome]:
    """Two epochs of nine rows, nine groups a step, on-policy; `settings` are those of the store."""

    def train(**settings: Any) -> Outcome:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(rows)
            return _train(random_checkpoint, rows, tmp_path_factory.mktemp("run") / "run", settings)

    return train


def _train(model: Path, rows: Path, folder: Path, settings: dict[str, Any]) -> Outcome:
    from motet.config.schema import RunConfig
    from motet.data.rows import Rows
    from motet.run import Run

    config = RunConfig.model_validate(
        {
            "run_dir": str(folder),
            "steps": NUM_EPOCHS,
            "model": {"path": str(model), "device": "cpu"},
            "data": {"train": str(rows / "train.jsonl"), "decode_workers": 0},
            "features": settings,
            "rollout": {"groups_per_step": NUM_ROWS, "group_size": GROUP_SIZE, "max_tokens": 3},
            "reward": {"score": {"kind": "function", "path": "spread:spread"}},
            "trainer": {"optimizer": {"lr": 1e-3}, "row_tokens": 1024},
            "metrics": {"tensorboard": False, "report_groups": 0},
        }
    )
    run = Run(config, resume=False)
    thinker = run.sampler.thinker
    runs: Counter[str] = Counter()
    towers = {"visual": thinker.module.visual, "audio": thinker.module.audio_tower}
    for name, tower in towers.items():
        tower.register_forward_hook(lambda *_, name=name: runs.update([name]))
    asyncio.run(run.train())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    hashes = {
        ("audio" if item.kind == "audio" else "visual", item.hash)
        for task in Rows(rows / "train.jsonl")
        for item in run.sampler.renderer(task).media
    }
    return Outcome(
        clips=Counter(tower for tower, _ in hashes),
        runs=runs,
        encoded=lines[-1]["features/encoded"],
        metrics=[{k: v for k, v in line.items() if "second" not in k and "features/" not in k} for line in lines],
        weights={name: p.detach().clone() for name, p in thinker.trained().items()},
    )


@pytest.fixture(scope="module")
def kept(train: Callable[..., Outcome]) -> Outcome:
    """As it is by default."""
    return train()


def assert_same_run(ours: Outcome, theirs: Outcome) -> None:
    assert ours.metrics == theirs.metrics
    assert ours.weights.keys() == theirs.weights.keys()
    assert all(torch.equal(value, theirs.weights[name]) for name, value in ours.weights.items())


def test_a_tower_runs_once_per_distinct_clip_of_a_whole_run(kept: Outcome) -> None:
    assert kept.clips["visual"] >= 4 and kept.clips["audio"] >= 3
    assert kept.runs == kept.clips
    assert kept.encoded == kept.clips.total()
    assert len(kept.metrics) == NUM_EPOCHS
    assert all(line["media/mismatch"] == 0 and line["grad_norm"] > 0 for line in kept.metrics)


def test_without_the_store_all_is_the_same_bit_for_bit_but_the_work(
    kept: Outcome, train: Callable[..., Outcome]
) -> None:
    """Each epoch a clip is encoded once for the prompt that G completions share, and G times to learn from them."""
    off = train(source="off")
    assert_same_run(off, kept)
    assert off.runs == {name: NUM_EPOCHS * (1 + GROUP_SIZE) * num for name, num in kept.clips.items()}


def test_another_run_on_the_same_folder_runs_no_tower(
    kept: Outcome, train: Callable[..., Outcome], tmp_path: Path
) -> None:
    first, second = (train(folder=str(tmp_path), memory_bytes=0) for _ in range(2))
    assert first.runs == kept.clips
    assert second.runs == Counter()
    assert_same_run(first, kept)
    assert_same_run(second, kept)
