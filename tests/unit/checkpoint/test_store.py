"""The store, on real files: what survives is whole."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from blake3 import blake3

from motet.checkpoint import dcp
from motet.checkpoint.store import CheckpointStore, DiskFull, Write

CONTENT = b"weights of step %d"


def writer(step: int, error: Exception | None = None, until: asyncio.Event | None = None) -> Write:
    """A trainer that copies its state at once and writes it later; which may fail, or wait."""

    async def write(folder: Path) -> Awaitable[None]:
        async def rest() -> None:
            if until is not None:
                await until.wait()
            (folder / "weights.bin").write_bytes(CONTENT % step)
            if error is not None:
                raise error
            (folder / "optimizer").mkdir()
            (folder / "optimizer" / "rank0.bin").write_bytes(b"")

        return rest()

    return write


async def begin(store: CheckpointStore, step: int, metric: float | None = None, **how: Any) -> None:
    options = {"write": writer(step), "num_bytes": 18} | how
    await store.save(step, state={"step": step, "cursor": [1, 2]}, metric=metric, **options)


def save(store: CheckpointStore, step: int, metric: float | None = None, **how: Any) -> Path:
    async def whole() -> None:
        await begin(store, step, metric, **how)
        await store.settled()

    asyncio.run(whole())
    return store.path(step)


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


def test_a_write_that_raises_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 10)

    with pytest.raises(OSError, match="input/output error"):
        save(store, 20, metric=1.0, write=writer(20, OSError("input/output error")))
    assert folders(tmp_path) == ["step-000010"]
    assert store.latest() == 10
    save(store, 20)
    assert folders(tmp_path) == ["step-000020"]


def test_a_save_returns_before_its_files_are_written_and_the_next_waits_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        store, go = CheckpointStore(tmp_path, keep_last=2), asyncio.Event()
        await begin(store, 10, write=writer(10, until=go))
        assert store.latest() is None
        second = asyncio.create_task(begin(store, 20))
        await asyncio.sleep(0.05)
        assert store.latest() is None and not second.done()
        go.set()
        await second
        assert store.latest() == 10
        await store.settled()
        assert store.latest() == 20

    asyncio.run(main())


def test_what_fails_behind_a_step_surfaces_once(tmp_path: Path) -> None:
    async def main() -> None:
        store = CheckpointStore(tmp_path, keep_last=2)
        await begin(store, 10, write=writer(10, RuntimeError("a bug")))
        with pytest.raises(RuntimeError, match="a bug"):
            await begin(store, 20)
        await begin(store, 30)
        await store.settled()
        assert folders(tmp_path) == ["step-000030"]

    asyncio.run(main())


def test_a_disk_with_too_little_space_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 10)
    with pytest.raises(
        DiskFull, match=r"^checkpoint of step 20: no space on the disk of .* of 1000000000\.0 GB are free"
    ):
        save(store, 20, num_bytes=10**18)
    assert folders(tmp_path) == ["step-000010"]
    save(store, 30)
    assert store.latest() == 30


def test_a_disk_that_fills_up_meanwhile_is_the_same_error_and_gets_its_space_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 10)
    full = OSError(errno.ENOSPC, "No space left on device")
    wrapped = RuntimeError("a library's own error")
    wrapped.__cause__ = full
    for error in (full, wrapped):
        with pytest.raises(DiskFull, match=r"^checkpoint of step 20: .*it was full before all was written; free some"):
            save(store, 20, write=writer(20, error))
        assert folders(tmp_path) == ["step-000010"]


def test_every_nth_is_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, keep_every_steps=20)
    for step in (10, 20, 30, 40, 50):
        save(store, step)
    assert folders(tmp_path) == ["step-000020", "step-000040", "step-000050"]


def test_the_manifest_says_what_the_run_is_and_what_the_tensors_are(tmp_path: Path) -> None:
    async def write(folder: Path) -> Awaitable[None]:
        return dcp.begin({"weights/norm": torch.zeros(3, dtype=torch.bfloat16), "version": torch.tensor(7)}, folder)

    store = CheckpointStore(tmp_path, keep_last=1, about={"config": {"seed": 3}, "git_commit": "0a1b"})
    manifest = json.loads((save(store, 10, write=write) / "manifest.json").read_text())
    assert (manifest["config"], manifest["git_commit"]) == ({"seed": 3}, "0a1b")
    assert manifest["tensors"] == {
        "version": {"shape": [], "dtype": "int64"},
        "weights/norm": {"shape": [3], "dtype": "bfloat16"},
    }
    assert ".metadata" in manifest["files"]


def test_a_killed_process_leaves_the_previous_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = """
import asyncio, os, sys
from pathlib import Path
from motet.checkpoint.store import CheckpointStore
async def write(folder):
    (folder / "weights.bin").write_bytes(b"half")
    os._exit(9)
store = CheckpointStore(Path(sys.argv[1]), keep_last=1)
asyncio.run(store.save(20, state={}, write=write, num_bytes=4, metric=None))
"""
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 10)
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == 9
    with caplog.at_level(logging.WARNING):
        assert store.latest() == 10
    (message,) = caplog.messages
    assert ".tmp-step-000020" in message and message.endswith("unfinished")
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
