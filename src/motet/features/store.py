"""Encoder outputs, kept by content.

The key is (tower fingerprint, `MediaItem.hash`): other weights or other sampling settings are other entries, so
nothing is ever invalidated. Sampler and trainer read the same tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from motet.types import MediaItem


class FeatureStore:
    """The least recently used entries in memory, up to `capacity_bytes`.

    Args:
        encode: runs the tower on one clip; called once per clip while the entry lasts.
        fingerprint: of the towers' weights.
    """

    def __init__(
        self, encode: Callable[[MediaItem], Tensor], *, fingerprint: str, capacity_bytes: int = 1 << 30
    ) -> None:
        self._encode = encode
        self._fingerprint = fingerprint
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[tuple[str, str], Tensor] = OrderedDict()
        self._num_bytes = 0
        self.num_encoded = 0
        """How often a tower ran."""

    def __call__(self, items: Sequence[MediaItem]) -> list[Tensor]:
        """Features of each clip, in order."""
        return [self._get(item) for item in items]

    def _get(self, item: MediaItem) -> Tensor:
        key = (self._fingerprint, item.hash)
        if key not in self._entries:
            with torch.no_grad():
                self._entries[key] = self._encode(item).clone()
            self.num_encoded += 1
            self._num_bytes += self._entries[key].nbytes
        self._entries.move_to_end(key)
        features = self._entries[key]
        while self._num_bytes > self._capacity_bytes:
            self._num_bytes -= self._entries.popitem(last=False)[1].nbytes
        return features
