"""Running a tower.

One clip at a time: in float32 a vision tower rounds a small image otherwise when larger ones stand beside it, and the
audio tower pads a clip to the longest of its batch. What is kept for a clip must not depend on its company.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from motet.data.reference import describe
from motet.types import MediaItem

Encode = Callable[[MediaItem], Tensor]
"""Features [N, width] of one clip of N tokens."""


def run_tower(encode: Encode, item: MediaItem) -> Tensor:
    """Features of one clip, without gradient, in memory of their own."""
    with torch.no_grad():
        features = encode(item).clone()
    assert len(features) == item.num_tokens, (
        f"{item.kind} {describe(item.raw)}: the tower gives {len(features)} features for {item.num_tokens} tokens"
    )
    return features
