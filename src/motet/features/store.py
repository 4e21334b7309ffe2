"""Encoder outputs, kept by content.

The key is (tower fingerprint, `MediaItem.hash`): other weights or other sampling settings are other entries, so
nothing is ever invalidated. Sampler and trainer read the same tensors.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import torch
from torch import Tensor

from motet.features.encode import Encode, run_tower
from motet.features.folder import FeatureFolder
from motet.types import MediaItem


class FeatureStore:
    """Memory over an optional folder; a clip that is in neither runs its tower, once however many ask for it.

    Safe to call from several threads. What is given is shared: read it, do not write into it.

    Args:
        encode: runs the tower on one clip.
        fingerprint: of the towers' weights.
        memory_bytes: of the tensors used last, kept on the device. With 0 and no folder nothing is kept, and every
            call runs the towers.
        folder: the second tier, which other runs and processes may share.
        folder_bytes: its size.
        device: where features from the folder go.
    """

    def __init__(
        self,
        encode: Encode,
        *,
        fingerprint: str,
        memory_bytes: int = 1 << 30,
        folder: Path | None = None,
        folder_bytes: int = 16 << 30,
        device: torch.device | str = "cpu",
    ) -> None:
        self._encode = encode
        self._fingerprint = fingerprint
        self._memory_bytes = memory_bytes
        self._folder = FeatureFolder(folder, capacity_bytes=folder_bytes) if folder else None
        self._device = device
        self._lock = threading.Lock()
        self._memory: OrderedDict[str, Tensor] = OrderedDict()
        self._running: dict[str, Future[Tensor]] = {}
        self.num_encoded = 0
        """How often a tower ran."""
        self.num_hits = 0
        """How often it did not have to."""
        self.num_bytes = 0
        """Held in memory."""

    def __call__(self, items: Sequence[MediaItem]) -> list[Tensor]:
        """Features of each clip, in order."""
        return [self._get(item) for item in items]

    def metrics(self) -> dict[str, float]:
        """Clips encoded and clips found since the run began, and bytes in memory."""
        return {
            "features/encoded": float(self.num_encoded),
            "features/hits": float(self.num_hits),
            "features/memory_bytes": float(self.num_bytes),
        }

    def _get(self, item: MediaItem) -> Tensor:
        with self._lock:
            if item.hash in self._memory:
                self._memory.move_to_end(item.hash)
                self.num_hits += 1
                return self._memory[item.hash]
            first = item.hash not in self._running
            running = self._running.setdefault(item.hash, Future())
        if first:
            self._run(item, running)
        features = running.result()
        if not first:
            with self._lock:
                self.num_hits += 1
        return features

    def _run(self, item: MediaItem, running: Future[Tensor]) -> None:
        """Settle `running`, with an error too: others may wait for it."""
        try:
            features, found = self._find_or_encode(item)
        except BaseException as error:
            with self._lock:
                del self._running[item.hash]
            running.set_exception(error)
            return
        with self._lock:
            self.num_hits += found
            self.num_encoded += not found
            self._keep(item.hash, features)
            del self._running[item.hash]
        running.set_result(features)

    def _find_or_encode(self, item: MediaItem) -> tuple[Tensor, bool]:
        """Features, and whether the folder had them."""
        name = f"{self._fingerprint}-{item.hash}"
        if self._folder and (features := self._folder.read(name)) is not None:
            return features.to(self._device), True
        features = run_tower(self._encode, item)
        if self._folder:
            self._folder.write(name, features)
        return features, False

    def _keep(self, key: str, features: Tensor) -> None:
        if features.nbytes > self._memory_bytes:
            return  # all others would have to go for nothing
        self._memory[key] = features
        self.num_bytes += features.nbytes
        while self.num_bytes > self._memory_bytes:
            self.num_bytes -= self._memory.popitem(last=False)[1].nbytes
