"""Checkpoints of a run: whole or absent.

    checkpoints/
      step-000040/
        ...              what the trainer wrote: weights, optimizer, schedule, random state
        state.json       what the loop must know to go on: cursor of the source, version, ...
        manifest.json    step, metric, config, versions, every tensor's shape and dtype, every other file's
                         size and hash
      .tmp-step-000050-1234/     being written, or left by a run that was killed

A checkpoint is written under a temporary name, forced to disk and renamed. The manifest is written last, so a folder
is a checkpoint if and only if its manifest is there and agrees with the files. A step waits for its state to be copied
to the host, and no longer: the rest happens beside the next steps.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from blake3 import blake3

from motet.checkpoint import dcp
from motet.checkpoint.disk import lacks_space, size_text, sync

MANIFEST, STATE = "manifest.json", "state.json"
NO_SPACE_BYTES = 1 << 20
"""A disk with less has no space: what a library raises then has many names."""
Write = Callable[[Path], Awaitable[Awaitable[None]]]
"""`Trainer.save`: returns when the state is copied; what it returns ends when the state is written."""
logger = logging.getLogger(__name__)


class DiskFull(ValueError):
    """A checkpoint does not fit on its disk. The earlier ones are intact, and the run may go on without it."""


class CheckpointStore:
    """The checkpoints under one folder; one process writes.

    Args:
        folder: `run_dir/checkpoints`.
        keep_last: how many of the newest to keep; the best by metric is kept besides.
        keep_every_steps: every checkpoint whose step is a multiple of it is kept too; None: none.
        about: what the manifests say of the run, as JSON values: its config, the commit of the code.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_last: int,
        keep_every_steps: int | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self._keep_last = keep_last
        self._keep_every_steps = keep_every_steps
        self._about = dict(about or {})
        self._pending: asyncio.Task[None] | None = None

    async def save(
        self,
        step: int,
        *,
        state: Mapping[str, Any],
        write: Write,
        num_bytes: int,
        metric: float | None,
    ) -> None:
        """Begin the checkpoint of a step; it is there when `settled` returns. One is written at a time.

        Args:
            state: of the loop, as JSON values.
            write: fills the folder with the trainer's state; `Trainer.save`. If it raises, or the process dies, the
                earlier checkpoints stay as they were.
            num_bytes: how large it will be, about.
            metric: held-out accuracy where it was measured at this step; higher is better.

        Raises:
            DiskFull: the checkpoint before did not fit, or this one will not.
        """
        await self.settled()
        self._sweep()
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if free < num_bytes:
            raise DiskFull(self._full(step, f"{size_text(free)} of {size_text(num_bytes)} are free"))
        temporary = self.folder / f".tmp-{_name(step)}-{os.getpid()}"
        temporary.mkdir()
        (temporary / STATE).write_text(json.dumps(dict(state), indent=1))
        writing = await write(temporary)
        self._pending = asyncio.create_task(self._finish(step, temporary, writing, metric))

    async def settled(self) -> None:
        """Wait until the checkpoint that was begun is on disk. Raises, once, what kept it from that."""
        pending, self._pending = self._pending, None
        if pending is not None:
            await pending

    async def _finish(self, step: int, temporary: Path, writing: Awaitable[None], metric: float | None) -> None:
        try:
            await writing
            await asyncio.to_thread(_seal, temporary, {"step": step, "metric": metric, **self._about})
        except Exception as error:
            is_full = lacks_space(error) or shutil.disk_usage(self.folder).free < NO_SPACE_BYTES
            await asyncio.to_thread(shutil.rmtree, temporary)
            if is_full:
                raise DiskFull(self._full(step, "it was full before all was written")) from error
            raise
        await asyncio.to_thread(self._install, step, temporary)

    def _install(self, step: int, temporary: Path) -> None:
        if self.path(step).exists():  # the damaged one that a resumed run went behind
            self._delete(self.path(step))
        os.rename(temporary, self.path(step))
        sync(self.folder)
        self._prune(step)

    def _full(self, step: int, why: str) -> str:
        return (
            f"checkpoint of step {step}: no space on the disk of {self.folder}: {why}; free some, or lower "
            f"checkpoint.keep_last"
        )

    def path(self, step: int) -> Path:
        return self.folder / _name(step)

    def load_state(self, step: int) -> dict[str, Any]:
        """The `state` that was saved with the step."""
        return json.loads((self.path(step) / STATE).read_text())

    def fault(self, step: int) -> str | None:
        """Why there is no whole checkpoint of the step; None where there is one. Reads every file of it."""
        return _fault(self.path(step), hashes=True)

    def latest(self) -> int | None:
        """Step of the newest whole checkpoint; warns of every folder that it must skip, with the reason."""
        for folder in self._leftovers(".tmp-"):
            logger.warning("skipping checkpoint %s: unfinished", folder)
        return self._first_whole(sorted(self.steps(), reverse=True))

    def best(self) -> int | None:
        """Step of the whole checkpoint with the highest metric, the earliest of equals; None where none has one."""
        return self._first_whole(self._ranking())

    def _first_whole(self, steps: list[int]) -> int | None:
        for step in steps:
            if fault := self.fault(step):
                logger.warning("skipping checkpoint %s: %s", self.path(step), fault)
            else:
                return step
        return None

    def steps(self) -> list[int]:
        """Of the checkpoints that are there, oldest first, whole or not."""
        if not self.folder.exists():
            return []
        return sorted(int(f.name[5:]) for f in self.folder.iterdir() if re.fullmatch(r"step-\d{6,}", f.name))

    def _ranking(self) -> list[int]:
        """Steps with a metric, best first. The manifests are the record, so no second file can disagree with them."""
        metrics = {}
        for step in self.steps():
            if not _fault(self.path(step), hashes=False):
                metrics[step] = json.loads((self.path(step) / MANIFEST).read_text())["metric"]
        return sorted((s for s in metrics if metrics[s] is not None), key=lambda s: (-metrics[s], s))

    def _prune(self, newest: int) -> None:
        """Damaged checkpoints do not count among those kept, they would push whole ones out; nor do those that a
        resumed run went behind, until it overtakes them."""
        past = [step for step in self.steps() if step <= newest]
        whole = [step for step in past if not _fault(self.path(step), hashes=False)]
        kept = {*whole[-self._keep_last :], *self._ranking()[:1]}
        if self._keep_every_steps:
            kept |= {step for step in whole if step % self._keep_every_steps == 0}
        for step in set(past) - kept:
            self._delete(self.path(step))

    def _delete(self, folder: Path) -> None:
        """Rename first: a deletion that is cut short must not leave half a checkpoint under a checkpoint's name."""
        trash = self.folder / f".trash-{folder.name}"
        os.rename(folder, trash)
        shutil.rmtree(trash)

    def _sweep(self) -> None:
        """Remove what killed runs left behind."""
        for folder in self._leftovers(".tmp-", ".trash-"):
            shutil.rmtree(folder)

    def _leftovers(self, *prefixes: str) -> list[Path]:
        if not self.folder.exists():
            return []
        return sorted(f for f in self.folder.iterdir() if f.name.startswith(prefixes))


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _hash(path: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


def _seal(folder: Path, about: Mapping[str, Any]) -> None:
    """Write the manifest over everything in the folder and force all of it to disk."""
    files = {
        path.relative_to(folder).as_posix(): {"size_bytes": path.stat().st_size, "blake3": _hash(path)}
        for path in _files(folder)
    }
    versions = {name: version(name) for name in ("motet", "torch", "transformers")}
    tensors = (
        {
            name: {"shape": shape, "dtype": str(dtype).removeprefix("torch.")}
            for name, (shape, dtype) in dcp.census(folder).items()
        }
        if (folder / dcp.INDEX).exists()
        else {}
    )
    manifest = {**about, "versions": versions, "tensors": tensors, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in (*_files(folder), *(p for p in folder.rglob("*") if p.is_dir()), folder):
        sync(path)


def _fault(folder: Path, *, hashes: bool) -> str | None:
    """Why a folder is no whole checkpoint; None where it is one. Without `hashes`, only presence and sizes count."""
    if not folder.is_dir():
        return "there is no such folder"
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
    except FileNotFoundError:
        return f"it is unfinished, it has no {MANIFEST}"
    except (ValueError, KeyError, TypeError):
        return f"{MANIFEST} cannot be read"
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["size_bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {entry['size_bytes']}"
        if hashes and _hash(path) != entry["blake3"]:
            return f"{name} is damaged: its hash is not the one in {MANIFEST}"
    return None
