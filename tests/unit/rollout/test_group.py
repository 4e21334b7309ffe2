from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from motet.rollout.group import rollout
from motet.types import Completion, Group, Prompt, Sampling, Score, Task

TASK = Task(id="t", messages=(), answer="B", source="train.jsonl:18")
PROMPT = Prompt(token_ids=np.zeros(1, np.int32), positions=np.zeros((3, 1), np.int32), media=(), digest="d")
SAMPLING = Sampling(max_tokens=4, seed=3)


class Engine:
    """The completion says its key. Later requests are done earlier, and the one named `fails` fails."""

    def __init__(self, fails: str = "", error: Exception | None = None) -> None:
        self.fails, self.error = fails, error
        self.running: set[str] = set()
        self.asked: list[tuple[Prompt, Sampling]] = []

    async def generate(self, prompt: Prompt, sampling: Sampling, *, key: str) -> Completion:
        self.asked.append((prompt, sampling))
        self.running.add(key)
        try:
            await asyncio.sleep(0.01 if key.endswith("0") else 0)
            if key == self.fails and self.error:
                raise self.error
        finally:
            self.running.remove(key)
        empty = np.zeros(0, np.float32)
        return Completion(
            token_ids=empty.astype(np.int32),
            logprobs=empty,
            mask=empty > 0,
            stop="eos",
            versions=(0, 0),
            text=key,
        )

    async def suspend(self) -> None: ...
    async def resume(self) -> None: ...


async def by_key(task: Task, completions: Sequence[Completion]) -> list[Score]:
    assert task is TASK
    return [Score(value=float(c.text.split("/")[1])) for c in completions]


def run(engine: Engine, reward: Any = by_key) -> Group:
    return asyncio.run(
        rollout(TASK, PROMPT, group_id=12, group_size=3, engine=engine, reward=reward, sampling=SAMPLING)
    )


def test_completions_stand_in_the_order_of_their_keys_whichever_is_done_first() -> None:
    engine = Engine()
    group = run(engine)
    assert [c.text for c in group.completions] == ["12/0", "12/1", "12/2"]
    assert [s.value for s in group.scores] == [0.0, 1.0, 2.0]
    assert (group.id, group.task, group.prompt) == (12, TASK, PROMPT)
    assert engine.asked == [(PROMPT, SAMPLING)] * 3


def test_what_the_engine_raises_comes_as_itself_and_ends_the_others() -> None:
    error = ValueError("no such model")
    engine = Engine(fails="12/1", error=error)
    with pytest.raises(ValueError) as raised:
        run(engine)
    assert raised.value is error
    assert raised.value.__cause__ is None and raised.value.__suppress_context__
    assert len(engine.asked) == 3 and engine.running == set()


def test_what_the_reward_raises_comes_as_itself() -> None:
    error = ValueError("the judge does not answer")

    async def broken(task: Task, completions: Sequence[Completion]) -> list[Score]:
        raise error

    with pytest.raises(ValueError) as raised:
        run(Engine(), broken)
    assert raised.value is error
