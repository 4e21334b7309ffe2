"""The store, on real files: what survives is whole."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import transformers
from blake3 import blake3

from motet.checkpoint.store import CheckpointStore

CONTENT = b"weights of step %d"


def writer(step: int) -> Callable[[Path], Awaitable[None]]:
    async def write(folder: Path) -> None:
        (folder / "weights.bin").write_bytes(CONTENT % step)
        (folder / "optimizer").mkdir()
        (folder / "optimizer" / "rank0.bin").write_bytes(b"")

    return write


def save(store: CheckpointStore, step: int, metric: float | None = None) -> Path:
    return asyncio.run(store.save(step, state={"step": step, "cursor": [1, 2]}, write=writer(step), metric=metric))


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_save_and_read_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep_last=2)
    assert store.latest() is None and store.best() is None
    folder = save(store, 40, metric=0.5)
    assert folder == tmp_path / "checkpoints" / "step-000040" == store.path(40)
    assert (store.latest(), store.best(), store.fault(40)) == (40, 40, None)
    assert store.load_state(40) == {"step": 40, "cursor": [1, 2]}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["step"], manifest["metric"]) == (40, 0.5)
    assert manifest["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert manifest["versions"]["motet"] == version("motet")
    assert manifest["versions"]["transformers"] == transformers.__version__
    assert set(manifest["files"]) == {"weights.bin", "optimizer/rank0.bin", "state.json"}
    assert manifest["files"]["weights.bin"] == {"size_bytes": 18, "blake3": blake3(CONTENT % 40).hexdigest()}
    assert manifest["files"]["optimizer/rank0.bin"]["size_bytes"] == 0


def test_retention_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    left = {}
    for step, metric in [(10, 0.5), (20, 0.9), (30, None), (40, 0.8), (50, 0.95), (60, 0.95)]:
        save(store, step, metric)
        left[step] = [int(name[5:]) for name in folders(tmp_path)], store.best()
    assert left == {
        10: ([10], 10),
        20: ([10, 20], 20),
        30: ([20, 30], 20),
        40: ([20, 30, 40], 20),  # 20 is kept as the best
        50: ([40, 50], 50),
        60: ([50, 60], 50),  # of equals the earlier is the best
    }
    assert store.latest() == 60


def test_steps_sort_as_numbers(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    save(store, 999_999)
    save(store, 1_000_000)
    assert store.latest() == 1_000_000


def test_a_write_that_raises_leaves_the_previous_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 10)

    async def broken(folder: Path) -> None:
        (folder / "weights.bin").write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        asyncio.run(store.save(20, state={}, write=broken, metric=1.0))
    assert not store.path(20).exists()
    with caplog.at_level(logging.WARNING):
        assert store.latest() == 10
    (message,) = caplog.messages
    assert ".tmp-step-000020" in message and message.endswith("unfinished")
    save(store, 20)
    assert folders(tmp_path) == ["step-000020"]


def test_a_killed_process_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    script = """
import asyncio, os, sys
from pathlib import Path
from motet.checkpoint.store import CheckpointStore
async def write(folder):
    (folder / "weights.bin").write_bytes(b"half")
    os._exit(9)
asyncio.run(CheckpointStore(Path(sys.argv[1]), keep_last=1).save(20, state={}, write=write, metric=None))
"""
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 10)
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == 9
    assert store.latest() == 10
    assert store.load_state(10) == {"step": 10, "cursor": [1, 2]}


def truncate(folder: Path) -> None:
    (folder / "weights.bin").write_bytes((CONTENT % 20)[:-1])


def flip(folder: Path) -> None:
    content = bytearray(CONTENT % 20)
    content[0] ^= 1
    (folder / "weights.bin").write_bytes(content)


def cut_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text((folder / "manifest.json").read_text()[:-20])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "weights.bin has 17 bytes instead of 18"),
        (flip, "weights.bin is damaged: its hash is not the one in manifest.json"),
        (lambda folder: (folder / "weights.bin").unlink(), "weights.bin is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), "it is unfinished, it has no manifest.json"),
        (cut_manifest, "manifest.json cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], reason: str
) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    save(store, 10, metric=0.1)
    save(store, 20, metric=0.2)
    damage(store.path(20))
    with caplog.at_level(logging.WARNING):
        assert store.latest() == 10
    assert caplog.messages == [f"skipping checkpoint {store.path(20)}: {reason}"]
    assert store.best() == 10
    assert store.fault(20) == reason
    save(store, 20, metric=0.3)  # the resumed run comes by again
    assert (store.latest(), store.best()) == (20, 20)
    assert folders(tmp_path) == ["step-000010", "step-000020"]


def test_a_damaged_checkpoint_does_not_push_a_whole_one_out(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    save(store, 10)
    save(store, 20)
    truncate(store.path(20))
    save(store, 30)
    assert folders(tmp_path) == ["step-000010", "step-000030"]


def test_a_run_that_went_behind_a_damaged_checkpoint_keeps_what_it_saves(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 10)
    store.path(10).rename(store.path(20))
    flip(store.path(20))
    save(store, 15)
    assert folders(tmp_path) == ["step-000015", "step-000020"]
    assert store.latest() == 15


def test_fault_of_a_step_that_was_never_saved(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path, keep_last=1).fault(3) == "there is no such folder"
