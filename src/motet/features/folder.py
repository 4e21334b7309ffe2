"""Tensors in a folder that processes share, one safetensors file each, of a bounded size.

No process waits for another. A file appears whole, by a rename; two that write the same one write the same bytes; one
that deletes a file takes nothing from a reader that has it open.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

import torch
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

logger = logging.getLogger(__name__)

SUFFIX = ".features.safetensors"
"""Nothing else in the folder is ever read, counted or deleted."""
DRAFT = ".features.draft"
STALE_SECONDS = 3600
"""A draft of this age has lost its writer."""
LOOKS = 16
"""A process looks at the folder again after it wrote this part of the bound."""


class FeatureFolder:
    """At most `capacity_bytes` of tensors by name, safe to use from several threads and processes.

    Where they run out, the files that were read or written longest ago are deleted. N processes that write at once
    may pass the bound by (N - 1) / 16 of it (or N - 1 files that are larger), since each makes room ahead.
    """

    def __init__(self, path: Path, *, capacity_bytes: int) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"features.folder = '{path}': cannot be made ({error.strerror}); name another") from error
        self._path = path
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._room_bytes = 0

    def read(self, name: str) -> Tensor | None:
        """The tensor, on the CPU; None where it is not there, or is not what was written."""
        path = self._path / (name + SUFFIX)
        try:
            tensor = _checked(name, load(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            logger.warning("%s cannot be used and will be replaced: %s", path, error)
            return None
        with suppress(OSError):  # deleted meanwhile, or of another user: its age is not ours to keep
            os.utime(path, ns=_now())
        return tensor

    def write(self, name: str, tensor: Tensor) -> None:
        """Keep the tensor, unless it alone is larger than the bound. A full disk costs a warning, not the run."""
        tensor = tensor.cpu().contiguous()
        data = save({"features": tensor, "checksum": _checksum(name, tensor)})
        if len(data) > self._capacity_bytes:
            return
        draft = self._path / f"{uuid.uuid4().hex}{DRAFT}"
        try:
            self._make_room(len(data))
            draft.write_bytes(data)
            os.utime(draft, ns=_now())
            draft.replace(self._path / (name + SUFFIX))
        except OSError as error:
            draft.unlink(missing_ok=True)
            logger.warning("features.folder: %s is not kept: %s", name, error)

    def num_bytes(self) -> int:
        return sum(size for _, size, _ in self._files())

    def _make_room(self, num_bytes: int) -> None:
        """Delete so much that the next writes, too, need not look at the folder."""
        with self._lock:
            if num_bytes > self._room_bytes:
                room = max(num_bytes, self._capacity_bytes // LOOKS)
                files = sorted(self._files())
                total = sum(size for _, size, _ in files)
                for _, size, path in files:
                    if total + room <= self._capacity_bytes:
                        break
                    path.unlink(missing_ok=True)
                    total -= size
                self._room_bytes = room
            self._room_bytes -= num_bytes

    def _files(self) -> list[tuple[int, int, Path]]:
        """When last used, size and path; of drafts those that a killed process has left."""
        files = []
        for path in self._path.iterdir():
            if path.name.endswith((SUFFIX, DRAFT)):
                try:
                    stat = path.stat()
                except FileNotFoundError:  # another process was faster
                    continue
                if path.name.endswith(DRAFT) and time.time() - stat.st_mtime < STALE_SECONDS:
                    continue  # being written, in room that its writer has made
                files.append((stat.st_mtime_ns, stat.st_size, path))
        return files


def _now() -> tuple[int, int]:
    """Access and modification time. The kernel's own clock of files is too coarse to tell which was used last."""
    return time.time_ns(), time.time_ns()


def _checksum(name: str, tensor: Tensor) -> Tensor:
    hasher = blake3(name.encode())
    hasher.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(hasher.digest()), dtype=torch.uint8)


def _checked(name: str, saved: dict[str, Tensor]) -> Tensor:
    if not torch.equal(_checksum(name, saved["features"]), saved["checksum"]):
        raise ValueError("its checksum is of other bytes")
    return saved["features"]
