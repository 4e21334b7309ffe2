from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
    store = FeatureStore(encode, fingerprint="towers", memory_bytes=32)
    store([clip("a"), clip("b"), clip("a"), clip("c")])  # b goes
    store([clip("a"), clip("c")])
    assert seen == ["a", "b", "c"]
    store([clip("b")])  # a goes
    store([clip("c"), clip("a")])
    assert seen == ["a", "b", "c", "b", "a"]


def test_an_entry_that_is_too_large_is_given_and_not_kept() -> None:
    encode, seen = counting(width=100)
    store = FeatureStore(encode, fingerprint="towers", memory_bytes=32)
    assert store([clip("a")])[0].shape == (1, 100)
    store([clip("a")])
    assert seen == ["a", "a"]
    assert store.num_bytes == 0


def test_an_entry_that_is_too_large_drives_no_other_out() -> None:
    seen: list[str] = []

    def encode(item: MediaItem) -> torch.Tensor:
        seen.append(item.hash)
        return torch.zeros(1, 100 if item.hash == "large" else 4)

    store = FeatureStore(encode, fingerprint="towers", memory_bytes=32)
    store([clip("a"), clip("b"), clip("large"), clip("a"), clip("b")])
    assert seen == ["a", "b", "large"]


def test_without_memory_and_folder_every_call_runs_the_tower() -> None:
    encode, seen = counting()
    store = FeatureStore(encode, fingerprint="towers", memory_bytes=0)
    store([clip("a"), clip("a")])
    store([clip("a")])
    assert seen == ["a"] * 3
    assert store.metrics() == {"features/encoded": 3, "features/hits": 0, "features/memory_bytes": 0}


def test_metrics_count_clips_and_bytes() -> None:
    encode, _ = counting(width=4)
    store = FeatureStore(encode, fingerprint="towers")
    store([clip("a"), clip("b"), clip("a"), clip("a")])
    assert store.metrics() == {"features/encoded": 2, "features/hits": 2, "features/memory_bytes": 32}


# ---- the folder --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_store_finds_the_same_bits_in_the_folder(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.tensor([[1 / 3, -0.0, float("nan"), 1e-30]], dtype=dtype)
    first = FeatureStore(lambda item: values, fingerprint="towers", folder=tmp_path)
    first([clip("a")])
    encode, seen = counting()
    second = FeatureStore(encode, fingerprint="towers", folder=tmp_path)
    (found,) = second([clip("a")])
    assert found.dtype == dtype
    assert found.view(torch.uint8).tolist() == values.view(torch.uint8).tolist()
    assert (seen, second.num_encoded, second.num_hits) == ([], 0, 1)


def test_other_towers_have_other_entries(tmp_path: Path) -> None:
    encode, seen = counting()
    for fingerprint in ("towers", "trained towers", "towers"):
        FeatureStore(encode, fingerprint=fingerprint, folder=tmp_path)([clip("a")])
    assert seen == ["a", "a"]


def test_the_folder_serves_what_memory_let_go(tmp_path: Path) -> None:
    encode, seen = counting(width=4)
    store = FeatureStore(encode, fingerprint="towers", memory_bytes=16, folder=tmp_path)
    values = [float(x[0, 0]) for x in store([clip("a"), clip("b"), clip("a"), clip("b")])]
    assert (values, seen, store.num_hits) == ([1, 2, 1, 2], ["a", "b"], 2)


# ---- several at once ---------------------------------------------------------------------------


class Slow:
    """A tower that holds all runs until `go` is set."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.seen_before_go: list[str] = []
        self.go = threading.Event()
        self.error: Exception | None = None

    def __call__(self, item: MediaItem) -> torch.Tensor:
        self.seen.append(item.hash)
        if not self.go.is_set():
            self.seen_before_go.append(item.hash)
        assert self.go.wait(timeout=60)
        if self.error:
            raise self.error
        return torch.full((1, 4), float(len(self.seen)))


def asked_at_once(tower: Slow, store: FeatureStore, names: list[str]) -> list[Future[list[torch.Tensor]]]:
    """Ask from a thread each; the tower goes once all distinct clips have reached it."""
    with ThreadPoolExecutor(len(names)) as pool:
        asked = [pool.submit(store, [clip(name)]) for name in names]
        for _ in range(600):
            wait(asked, timeout=0.1)  # one that comes too late to wait finds the entry, and only makes the test weaker
            if len(tower.seen) >= len(set(names)):
                break
        tower.go.set()
    return asked


def test_threads_that_ask_for_one_clip_run_its_tower_once() -> None:
    tower = Slow()
    store = FeatureStore(tower, fingerprint="towers")
    asked = asked_at_once(tower, store, ["a"] * 8)
    assert tower.seen == ["a"]
    assert [float(future.result()[0][0, 0]) for future in asked] == [1.0] * 8
    assert (store.num_encoded, store.num_hits) == (1, 7)


def test_users_of_one_event_loop_share_a_run_too() -> None:
    tower = Slow()
    store = FeatureStore(tower, fingerprint="towers")

    async def ask() -> list[float]:
        async with asyncio.timeout(60):
            users = [asyncio.create_task(asyncio.to_thread(store, [clip("a"), clip("b")])) for _ in range(4)]
            while not tower.seen:
                await asyncio.sleep(0.01)
            tower.go.set()
            return [float(x[0, 0]) for user in users for x in await user]

    assert len(set(asyncio.run(ask()))) == 2
    assert tower.seen == ["a", "b"]


def test_different_clips_do_not_wait_for_each_other() -> None:
    tower = Slow()
    asked_at_once(tower, FeatureStore(tower, fingerprint="towers"), ["a", "b", "c"])
    assert sorted(tower.seen_before_go) == ["a", "b", "c"]


def test_an_error_reaches_all_who_wait_and_the_next_one_tries_again() -> None:
    tower = Slow()
    store = FeatureStore(tower, fingerprint="towers")
    tower.error = RuntimeError("out of memory")
    asked = asked_at_once(tower, store, ["a", "a", "a"])
    assert {str(future.exception()) for future in asked} == {"out of memory"}
    tower.error = None
    store([clip("a")])
    assert store.num_encoded == 1


def test_entries_carry_no_gradient_and_are_copies() -> None:
    weight = torch.ones(2, requires_grad=True)
    base = torch.zeros(1, 2)
    store = FeatureStore(lambda item: base + weight, fingerprint="towers")
    (features,) = store([clip("a")])
    assert not features.requires_grad
    shared = FeatureStore(lambda item: base, fingerprint="towers")([clip("a")])[0]
    base.fill_(7)
    np.testing.assert_array_equal(shared.numpy(), [[0, 0]])
