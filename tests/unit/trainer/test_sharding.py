"""Two real processes over gloo, against one."""

from __future__ import annotations

import asyncio
import pickle
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from motet.batching.pack import pack
from motet.checkpoint import dcp
from motet.config.schema import LoraConfig
from motet.types import Batch, Sample

SCRIPT = Path(__file__).with_name("rank.py")
RUN = runpy.run_path(str(SCRIPT))["run"]
NUM_RANKS = 2


@dataclass
class Both:
    """The same jobs by one process and by two, and how the first of two ended when the second stayed away."""

    solo: dict[str, Any]
    ranks: list[dict[str, Any]]
    exit_status: int
    error: str
    batches: dict[str, Batch]
    folder: Path


def off(sample: Sample, seed: int) -> Sample:
    """With log-probabilities of a policy that is a little different."""
    noise = np.random.default_rng(seed).normal(0, 0.1, len(sample.logprobs)).astype(np.float32)
    return replace(sample, logprobs=sample.logprobs + np.where(sample.loss_mask, noise, np.float32(0)))


def in_one_column(batch: Batch) -> Batch:
    return replace(batch, grid=[[micro] for row in batch.grid for micro in row])


@pytest.fixture(scope="module")
def both(random_checkpoint: Path, rollouts: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("ranks")
    learned = [off(sample, seed) for seed, sample in enumerate(rollouts)]
    batches = {
        "every mix": pack(learned, row_tokens=200, dp=NUM_RANKS),
        "with an empty row": pack(learned[2:5], row_tokens=1, dp=NUM_RANKS),  # 3 samples in 2 x 2 rows
    }
    full, uneven = batches.values()
    jobs: dict[str, dict[str, Any]] = {
        "every mix": {"batches": [full, uneven], "logprobs": uneven},
        "with an empty row": {"batches": [uneven, uneven], "trainer": {"reference": True}},
        "in half precision": {"batches": [full], "trainer": {"dtype": "bfloat16"}},
        "with adapters": {"batches": [uneven, full], "trainer": {"lora": LoraConfig(targets=("attention", "experts"))}},
    }
    solo = {}
    for name, job in jobs.items():
        alone = {**job, "batches": [in_one_column(batch) for batch in job["batches"]]}
        if "logprobs" in job:
            alone["logprobs"] = in_one_column(job["logprobs"])
        if name == "every mix":
            alone["save"], job["save"] = folder / "by-one", folder / "by-two"
        solo[name] = asyncio.run(RUN(random_checkpoint, alone))
    jobs["loaded"] = {"batches": [uneven], "load": folder / "by-one"}
    (folder / "jobs").write_bytes(pickle.dumps((random_checkpoint, jobs)))
    with (folder / "error").open("w") as error:
        processes = [
            subprocess.Popen(
                [sys.executable, SCRIPT, folder, str(rank), str(NUM_RANKS)], stderr=error if not rank else None
            )
            for rank in range(NUM_RANKS)
        ]
        try:
            exit_status = processes[0].wait(timeout=90)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    said = (folder / "error").read_text()
    results = [folder / f"results-{rank}" for rank in range(NUM_RANKS)]
    assert all(path.exists() for path in results), said
    loaded = {"batches": [in_one_column(uneven)], "load": folder / "by-two"}
    solo["loaded"] = asyncio.run(RUN(random_checkpoint, loaded))
    yield Both(solo, [torch.load(path, weights_only=False) for path in results], exit_status, said, batches, folder)


JOBS = ["every mix", "with an empty row", "in half precision", "with adapters"]


def test_the_batches_are_what_they_are_called(both: Both) -> None:
    mixes = {m for row in both.batches["every mix"].grid for micro in row for m in micro.modalities}
    assert mixes == {"text", "image", "audio", "video", "video+audio", "image+audio"}
    uneven = both.batches["with an empty row"].grid
    assert [[len(micro.cu_seqlens) - 1 for micro in row] for row in uneven] == [[1, 1], [1, 0]]


def distance(ours: dict[str, Tensor], theirs: dict[str, Tensor], what: str) -> float:
    """Relative, of all tensors whose name contains `what`."""
    names = [name for name in theirs if what in name]
    assert names and ours.keys() == theirs.keys()
    a, b = (torch.cat([state[n].double().flatten() for n in names]) for state in (ours, theirs))
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("job", JOBS)
def test_a_step_of_two_ranks_is_that_of_one(both: Both, job: str) -> None:
    bound = 5e-3 if job == "in half precision" else 1e-6  # where a sum of gradients is rounded to 8 bits
    ours, theirs = both.ranks[0][job], both.solo[job]
    assert theirs["metrics"][0]["grad_norm"] > 0.5  # so clipped
    assert ours["metrics"][0] == pytest.approx(theirs["metrics"][0], rel=bound, abs=bound)
    assert distance(ours["states"][0], theirs["states"][0], "exp_avg") < bound
    assert distance(ours["states"][0], theirs["states"][0], "weights/") < bound


def test_the_reference_stays_where_it_was(both: Both) -> None:
    ours, theirs = (results["with an empty row"]["metrics"] for results in (both.ranks[0], both.solo))
    assert [m["kl"] for m in ours] == pytest.approx([m["kl"] for m in theirs], rel=1e-3, abs=1e-9)
    assert ours[0]["kl"] < 1e-9 < 1e-5 < ours[1]["kl"]


@pytest.mark.parametrize("job", JOBS)
def test_all_ranks_return_the_same(both: Both, job: str) -> None:
    first, second = (ranks[job] for ranks in both.ranks)
    assert first["metrics"] == second["metrics"]


def test_log_probabilities_are_of_the_whole_grid(both: Both) -> None:
    expected = [row[0] for row in both.solo["every mix"]["logprobs"]]
    for rank in both.ranks:
        ours = rank["every mix"]["logprobs"]
        assert [len(row) for row in ours] == [2, 2]
        for a, b in zip([a for row in ours for a in row], expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_each_rank_holds_its_part(both: Both) -> None:
    whole = both.solo["every mix"]["num_held"]
    parts = [rank["every mix"]["num_held"] for rank in both.ranks]
    assert sum(parts) == whole and max(parts) < 0.51 * whole


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_saved_by_one_loaded_by_two(both: Both) -> None:
    for rank in both.ranks:
        assert equal(rank["loaded"]["loaded"], both.solo["every mix"]["states"][0])
    assert_goes_on(both.ranks[0]["loaded"], both.solo["every mix"])


def test_saved_by_two_loaded_by_one(both: Both) -> None:
    assert equal(both.solo["loaded"]["loaded"], both.ranks[0]["every mix"]["states"][0])
    assert_goes_on(both.solo["loaded"], both.ranks[0]["every mix"])


def assert_goes_on(resumed: dict[str, Any], whole: dict[str, Any]) -> None:
    """The step after loading is the one that was made while the checkpoint was written."""
    ours, theirs = resumed["states"][0], whole["states"][1]
    assert resumed["metrics"][0] == pytest.approx(whole["metrics"][1], rel=1e-5, abs=1e-6)
    assert int(ours["version"]) == 2
    assert distance(ours, theirs, "exp_avg") < 1e-5
    assert distance(ours, theirs, "weights/") < 1e-6


def test_a_checkpoint_of_two_ranks_is_written_by_both_and_once(both: Both) -> None:
    by_one, by_two = both.folder / "by-one", both.folder / "by-two"
    assert dcp.census(by_two) == dcp.census(by_one)
    sizes = [sum(p.stat().st_size for p in folder.glob("*.distcp")) for folder in (by_one, by_two)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)
    assert {p.name[:4] for p in by_two.glob("*.distcp")} == {"__0_", "__1_"}


def test_a_rank_that_waits_for_another_ends_at_the_deadline(both: Both) -> None:
    assert both.exit_status == 1
    assert "Timed out waiting 3000ms" in both.error
