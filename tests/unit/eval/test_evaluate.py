from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from motet.eval.evaluate import blinded, evaluate
from motet.types import Completion, MediaPart, Message, Prompt, Sampling, Score, Skip, Task, TextPart


def row(name: str, kind: str, *media: Any) -> Task:
    parts = (*(MediaPart(kind=m, ref=m) for m in media), TextPart(text=name))
    return Task(id=name, messages=(Message(role="user", parts=parts),), answer="A", kind=kind, source=f"rows:{name}")


ROWS = [row("1", "see", "image"), row("2", "see", "image"), row("3", "hear", "audio"), row("long", "hear", "audio")]


def render(task: Task) -> Prompt | Skip:
    if task.id == "long":
        return Skip(reason="prompt_too_long")
    places = np.zeros((3, 1), np.int32)
    return Prompt(token_ids=np.array([int(task.id)], np.int32), positions=places, media=(), digest=task.id)


class Echo:
    """Says the prompt's first id."""

    def __init__(self) -> None:
        self.samplings: list[Sampling] = []
        self.keys: list[str] = []

    async def generate(self, prompt: Prompt, sampling: Sampling, *, key: str) -> Completion:
        self.samplings.append(sampling)
        self.keys.append(key)
        one = np.ones(1)
        return Completion(
            token_ids=prompt.token_ids,
            logprobs=-one.astype(np.float32),
            mask=one.astype(bool),
            stop="eos",
            versions=(0, 0),
            text=str(prompt.token_ids[0]),
        )

    async def suspend(self) -> None: ...
    async def resume(self) -> None: ...


def run(parts: dict[str, float] | None = None, value: float = 0.0) -> Any:
    async def reward(task: Task, completions: Any) -> list[Score]:
        given = {"accuracy": float(completions[0].text != "2")} if parts is None else parts
        return [Score(value=value, parts=given)]

    engine = Echo()
    return asyncio.run(evaluate(ROWS, render=render, engine=engine, reward=reward, max_tokens=5)), engine


def test_counts_by_kind_and_modality() -> None:
    evaluation, engine = run()
    assert (evaluation.overall.accuracy, evaluation.overall.num_rows) == (pytest.approx(2 / 3), 3)
    assert {k: (a.accuracy, a.num_rows) for k, a in evaluation.by_kind.items()} == {"see": (0.5, 2), "hear": (1, 1)}
    assert {m: a.num_rows for m, a in evaluation.by_modality.items()} == {"image": 2, "audio": 1}
    assert evaluation.num_dropped == 1
    assert engine.keys == ["eval/1", "eval/2", "eval/3"]
    assert {(s.temperature, s.max_tokens) for s in engine.samplings} == {(0.0, 5)}
    metrics = evaluation.metrics()
    assert metrics["eval/accuracy"] == pytest.approx(2 / 3)
    assert metrics["eval/kind/see"] == 0.5
    assert metrics["eval/accuracy_low"] == pytest.approx(0.2077, abs=1e-4)  # Wilson, 2 of 3
    assert evaluation.summary()["by_kind"]["see"]["num_rows"] == 2
    assert evaluation.table().splitlines()[0].split()[:2] == ["all", "0.667"]


def test_a_reward_without_the_part_counts_by_its_value() -> None:
    assert run(parts={}, value=0.25)[0].overall.accuracy == 0.25


@pytest.mark.parametrize("value", [1.5, -0.5])
def test_an_accuracy_outside_0_and_1_names_the_row(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^rows:1: accuracy {value} is not within 0 and 1"):
        run(parts={}, value=value)


def test_blinded_removes_media_and_nothing_else() -> None:
    task = blinded(ROWS[0])
    assert task.media == ()
    assert task.messages[0].parts == (TextPart(text="1"),)
    assert (task.id, task.answer, task.kind, task.source) == ("1", "A", "see", "rows:1")
