from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from motet.rollout.prompts import PromptCache
from motet.types import MediaItem, Prompt, Skip, Task


def task(source: str) -> Task:
    return Task(id="the same", messages=(), answer="", source=source)


class Render:
    """A prompt with one clip of 100 bytes of features in two arrays; rows named `long` are skipped."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, task: Task) -> Prompt | Skip:
        self.calls[task.source] += 1
        if task.source == "long":
            return Skip(reason="prompt_too_long")
        features: dict[str, np.ndarray] = {"pixel_values": np.zeros(60, np.uint8), "grid": np.zeros(10, np.float32)}
        clip = MediaItem(kind="image", content="c", hash="h", spans=((0, 1),), features=features, raw=task.source)
        return Prompt(
            token_ids=np.zeros(1, np.int32), positions=np.zeros((3, 1), np.int32), media=(clip,), digest=task.source
        )


def test_a_row_is_rendered_once() -> None:
    render = Render()
    cache = PromptCache(render)
    first = cache(task("rows:1"))
    assert isinstance(first, Prompt) and first.digest == "rows:1"
    assert cache(task("rows:1")) is first
    other = cache(task("rows:2"))
    assert isinstance(other, Prompt) and other.digest == "rows:2"
    assert cache(task("long")) == cache(task("long")) == Skip(reason="prompt_too_long")
    assert render.calls == {"rows:1": 1, "rows:2": 1, "long": 1}


@pytest.mark.parametrize(
    ("capacity_bytes", "calls"),
    [
        (99, {"a": 3, "b": 2, "c": 1}),  # larger than all there is room for: given out, not kept
        (199, {"a": 3, "b": 2, "c": 1}),
        (200, {"a": 1, "b": 2, "c": 1}),
        (299, {"a": 1, "b": 2, "c": 1}),
        (300, {"a": 1, "b": 1, "c": 1}),
    ],
)
def test_the_least_recently_used_goes_first(capacity_bytes: int, calls: dict[str, int]) -> None:
    render = Render()
    cache = PromptCache(render, capacity_bytes=capacity_bytes)
    for source in ("a", "b", "a", "c", "a", "b"):
        prompt = cache(task(source))
        assert isinstance(prompt, Prompt) and prompt.digest == source
    assert render.calls == calls


def test_threads_that_render_the_same_rows_leave_the_count_of_bytes_right() -> None:
    cache = PromptCache(Render(), capacity_bytes=350)
    with ThreadPoolExecutor(8) as threads:
        prompts = list(threads.map(lambda n: cache(task(f"rows:{n % 7}")), range(700)))
    assert [prompt.digest for prompt in prompts if isinstance(prompt, Prompt)] == [f"rows:{n % 7}" for n in range(700)]
    assert (len(cache._prompts), cache._num_bytes) == (3, 300)
