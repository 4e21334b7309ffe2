from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from motet.types import Completion, Task


@pytest.fixture
def say() -> Callable[..., list[Completion]]:
    """say("B", "(A)") gives the completions of a group."""

    def make(*texts: str) -> list[Completion]:
        none = np.zeros(0)
        return [
            Completion(token_ids=none.astype(int), logprobs=none, mask=none > 0, stop="eos", versions=(0, 0), text=text)
            for text in texts
        ]

    return make


@pytest.fixture
def make_task() -> Callable[..., Task]:
    def make(answer: str, options: tuple[str, ...] = ()) -> Task:
        return Task(id="t", messages=(), answer=answer, options=options, source="train.jsonl:18")

    return make
