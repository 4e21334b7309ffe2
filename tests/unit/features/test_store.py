from __future__ import annotations

from typing import Any

import numpy as np
import torch

from motet.features.store import FeatureStore
from motet.types import MediaItem


def clip(name: str) -> MediaItem:
    return MediaItem(kind="image", content=name, hash=name, spans=((0, 1),), features={}, raw=name)


def counting(width: int = 4) -> tuple[Any, list[str]]:
    """A tower that notes what it runs on; 4 bytes a number."""
    seen: list[str] = []

    def encode(item: MediaItem) -> torch.Tensor:
        seen.append(item.hash)
        return torch.full((1, width), float(len(seen)))

    return encode, seen


def test_a_clip_is_encoded_once_and_comes_back_in_the_order_asked() -> None:
    encode, seen = counting()
    store = FeatureStore(encode, fingerprint="towers")
    first = store([clip("a"), clip("b"), clip("a")])
    again = store([clip("b"), clip("a")])
    assert seen == ["a", "b"]
    assert store.num_encoded == 2
    assert [float(x[0, 0]) for x in first] == [1, 2, 1]
    assert [float(x[0, 0]) for x in again] == [2, 1]


def test_the_least_recently_used_goes_when_bytes_run_out() -> None:
    encode, seen = counting(width=4)  # 16 bytes an entry
    store = FeatureStore(encode, fingerprint="towers", capacity_bytes=32)
    store([clip("a"), clip("b"), clip("a"), clip("c")])  # b goes
    store([clip("a"), clip("c")])
    assert seen == ["a", "b", "c"]
    store([clip("b")])  # a goes
    store([clip("c"), clip("a")])
    assert seen == ["a", "b", "c", "b", "a"]


def test_an_entry_that_is_too_large_is_given_and_not_kept() -> None:
    encode, seen = counting(width=100)
    store = FeatureStore(encode, fingerprint="towers", capacity_bytes=32)
    assert store([clip("a")])[0].shape == (1, 100)
    store([clip("a")])
    assert seen == ["a", "a"]


def test_entries_carry_no_gradient_and_are_copies() -> None:
    weight = torch.ones(2, requires_grad=True)
    base = torch.zeros(1, 2)
    store = FeatureStore(lambda item: base + weight, fingerprint="towers")
    (features,) = store([clip("a")])
    assert not features.requires_grad
    shared = FeatureStore(lambda item: base, fingerprint="towers")([clip("a")])[0]
    base.fill_(7)
    np.testing.assert_array_equal(shared.numpy(), [[0, 0]])
