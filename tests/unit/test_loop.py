"""The loop on fakes of a few lines: what is real here is the loop, the buffer, packing and GRPO."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from motet import loop
from motet.algorithms import GRPO
from motet.loop import Parts, Plan, Step
from motet.metrics.stages import Stopwatch
from motet.types import (
    Batch,
    Completion,
    FloatArray,
    Prompt,
    Sampling,
    Score,
    Skip,
    StepResult,
    Task,
)
from motet.weights.shared import SharedWeights

P, G = 2, 2


async def ticks(num: int) -> None:
    for _ in range(num):
        await asyncio.sleep(0)


@dataclass
class Rows:
    """Row i has the id `i`; the cursor is its number."""

    row: int = 0

    def __iter__(self) -> Iterator[Task]:
        while True:
            self.row += 1
            yield Task(id=str(self.row - 1), messages=(), answer="", source=f"row {self.row - 1}")

    def state_dict(self) -> dict[str, Any]:
        return {"row": self.row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.row = state["row"]


def render(task: Task) -> Prompt | Skip:
    ids = np.array([int(task.id)], np.int32)
    return Prompt(token_ids=ids, positions=np.zeros((3, 1), np.int32), media=(), digest=task.id)


@dataclass
class Engine:
    """Takes `delay(row)` ticks, and tells whether the trainer was busy when it was done."""

    trainer: Trainer
    delay: Callable[[int], int] = lambda row: 0
    version: int = 0
    keys: list[str] = field(default_factory=list)
    num_beside_trainer: int = 0

    async def generate(self, prompt: Prompt, sampling: Sampling, *, key: str) -> Completion:
        self.keys.append(key)
        oldest = self.version
        await ticks(self.delay(int(prompt.token_ids[0])))
        self.num_beside_trainer += self.trainer.busy
        return Completion(
            token_ids=np.array([1], np.int32),
            logprobs=np.array([-1.0], np.float32),
            mask=np.array([True]),
            stop="eos",
            versions=(oldest, self.version),
            text=key,
        )

    async def suspend(self) -> None: ...
    async def resume(self) -> None: ...


@dataclass
class Trainer:
    """Takes ten ticks."""

    version: int = 0
    busy: bool = False
    batches: list[Batch] = field(default_factory=list)

    async def step(self, batch: Batch) -> StepResult:
        self.busy = True
        await ticks(10)
        self.busy = False
        self.version += 1
        self.batches.append(batch)
        return StepResult(version=self.version, metrics={})

    async def logprobs(self, batch: Batch) -> list[list[FloatArray]]:
        raise NotImplementedError

    async def save(self, path: Path) -> None: ...
    async def load(self, path: Path) -> None: ...


async def spread(task: Task, completions: Sequence[Completion]) -> list[Score]:
    return [Score(value=float(i)) for i in range(len(completions))]


def flat_where(is_flat: Callable[[int], bool]) -> Callable[..., Coroutine[Any, Any, list[Score]]]:
    """A reward without spread on some rows."""

    async def reward(task: Task, completions: Sequence[Completion]) -> list[Score]:
        return [Score(value=0.0 if is_flat(int(task.id)) else float(i)) for i in range(len(completions))]

    return reward


def parts(*, delay: Callable[[int], int] = lambda row: 0, **changes: Any) -> Parts:
    trainer = Trainer()
    engine = Engine(trainer, delay)
    wired = Parts(
        source=Rows(),
        render=render,
        engine=engine,
        reward=spread,
        algorithm=GRPO(),
        trainer=trainer,
        sync=SharedWeights(engine),
        watch=Stopwatch(),
    )
    return replace(wired, **changes)


def plan(steps: int, *, max_lag: int = 0, **changes: Any) -> Plan:
    fixed: dict[str, Any] = {
        "groups_per_step": P,
        "group_size": G,
        "sampling": Sampling(max_tokens=1),
        "row_tokens": 64,
    }
    return Plan(steps=steps, max_lag=max_lag, **(fixed | changes))


def run(parts: Parts, plan: Plan) -> list[Step]:
    """The steps. It ends within a second, and nothing keeps running, whether it returns or raises."""

    async def steps() -> list[Step]:
        try:
            async with asyncio.timeout(1), aclosing(loop.train(parts, plan)) as training:
                return [step async for step in training]
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}

    return asyncio.run(steps())


@pytest.fixture(autouse=True)
def asyncio_has_nothing_to_complain_of(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Such as an exception that nobody retrieved: it would be printed beside the one that ends the run."""
    gc.freeze()
    yield
    gc.collect()
    gc.unfreeze()
    assert [r.message for r in (*caplog.get_records("call"), *caplog.records) if r.name == "asyncio"] == []


def trained_on(steps: Sequence[Step]) -> list[int]:
    """Rows that taught, in the order in which they were trained on."""
    return [int(group.task.id) for step in steps for group in step.groups if group.scores[0] != group.scores[-1]]


def ages(steps: Sequence[Step]) -> list[int]:
    return [step.result.version - 1 - step.batch.oldest_version for step in steps]


# ---- staleness ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_lag", "expected"), [(0, [0, 0, 0, 0, 0, 0]), (1, [0, 1, 1, 1, 1, 1]), (3, [0, 1, 2, 3, 3, 3])]
)
def test_a_fast_engine_runs_ahead_by_max_lag_and_no_further(max_lag: int, expected: list[int]) -> None:
    assert ages(run(parts(), plan(6, max_lag=max_lag))) == expected


@pytest.mark.parametrize("max_lag", [0, 1, 3])
@pytest.mark.parametrize("slowest", [3, 40])
def test_data_is_never_older_than_max_lag_whatever_takes_how_long(max_lag: int, slowest: int) -> None:
    pace = np.random.default_rng(0).integers(0, slowest, 10_000)
    reward = flat_where(lambda row: pace[row] % 3 == 0)
    steps = run(parts(delay=lambda row: pace[row], reward=reward), plan(20, max_lag=max_lag))
    assert len(steps) == 20
    assert min(ages(steps)) >= 0 and max(ages(steps)) <= max_lag


@pytest.mark.parametrize(("max_lag", "overlaps"), [(0, False), (1, True), (3, True)])
def test_engine_and_trainer_work_side_by_side_where_there_is_lag(max_lag: int, overlaps: bool) -> None:
    wired = parts(delay=lambda row: 8)  # of the trainer's ten; the loop itself takes a few between two steps
    run(wired, plan(6, max_lag=max_lag))
    assert isinstance(wired.engine, Engine)
    assert (wired.engine.num_beside_trainer > 0) == overlaps


# ---- what a step learns from -------------------------------------------------------------------


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_groups_are_trained_on_in_the_order_of_their_slots(max_lag: int) -> None:
    steps = run(parts(delay=lambda row: 20 - 3 * (row % 7)), plan(5, max_lag=max_lag))
    assert trained_on(steps) == list(range(5 * P))
    assert [[group.id for group in step.groups] for step in steps] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    assert [step.result.version for step in steps] == [1, 2, 3, 4, 5]


def test_the_trainer_gets_the_samples_of_p_groups_packed_into_rows() -> None:
    wired = parts()
    (step,) = run(wired, plan(1, row_tokens=4))  # two samples of two tokens a row
    assert isinstance(wired.trainer, Trainer) and wired.trainer.batches == [step.batch]
    assert [[micro.cu_seqlens.tolist() for micro in row] for row in step.batch.grid] == [[[0, 2, 4]], [[0, 2, 4]]]
    assert (step.batch.num_sequences, step.batch.num_tokens) == (P * G, P * G)
    assert sorted(a for row in step.batch.grid for a in row[0].advantages[::2].tolist()) == [-1, -1, 1, 1]


@pytest.mark.parametrize("max_lag", [0, 2])
def test_what_teaches_nothing_is_counted_by_reason_and_gives_its_slot_away(max_lag: int) -> None:
    def short_only(task: Task) -> Prompt | Skip:
        return Skip(reason="prompt_too_long") if int(task.id) % 4 == 3 else render(task)

    wired = parts(render=short_only, reward=flat_where(lambda row: row % 4 in (0, 1)))  # row 2 of four teaches
    steps = run(wired, plan(10, max_lag=max_lag))
    assert trained_on(steps) == [4 * i + 2 for i in range(10 * P)]
    assert dict(steps[0].skipped) == {"no_spread": 4, "prompt_too_long": 1}
    assert all(dict(step.skipped) == {"no_spread": 4, "prompt_too_long": 2} for step in steps[1:])
    assert [int(group.task.id) for group in steps[1].groups] == [8, 9, 10, 12, 13, 14]


def test_seconds_are_counted_by_stage() -> None:
    wired = parts()
    run(wired, plan(1))
    assert wired.watch.lap().keys() == {f"seconds/{stage}" for stage in ("render", "rollout", "train", "publish")}


# ---- the end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("max_lag", [0, 2])
def test_asked_to_stop_it_finishes_the_step_that_trains_and_abandons_rollouts(max_lag: int) -> None:
    async def main() -> tuple[list[Step], Parts]:
        stop = asyncio.Event()
        wired = parts(delay=lambda row: 3 if row < 2 * P else 10_000)  # the third step's rollouts take for ever
        steps: list[Step] = []
        async with asyncio.timeout(1), aclosing(loop.train(wired, plan(9, max_lag=max_lag), stop)) as training:
            async for step in training:
                steps.append(step)
                if step.number == 2:
                    asyncio.get_running_loop().call_later(0.01, stop.set)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return steps, wired

    steps, wired = asyncio.run(main())
    assert [step.number for step in steps] == [1, 2]
    assert isinstance(wired.trainer, Trainer) and wired.trainer.version == 2
    assert steps[-1].next_group == 2 * P
    assert steps[-1].source_state == {"row": 2 * P}  # what was in flight is drawn again


def test_asked_to_stop_while_it_trains_it_gives_the_step_first() -> None:
    async def main() -> list[int]:
        stop = asyncio.Event()
        wired = parts()
        assert isinstance(wired.trainer, Trainer)
        train_step = wired.trainer.step

        async def step_and_stop(batch: Batch) -> StepResult:
            stop.set()
            return await train_step(batch)

        wired.trainer.step = step_and_stop  # type: ignore[method-assign]
        async with aclosing(loop.train(wired, plan(9), stop)) as training:
            return [step.number async for step in training]

    assert asyncio.run(main()) == [1]


def test_it_gives_up_when_so_many_groups_in_a_row_taught_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "DRY_GROUPS_PER_STEP", 2)  # times P = 2
    assert len(run(parts(reward=flat_where(lambda row: row % 4 != 3)), plan(3))) == 3  # three in a row are flat
    with pytest.raises(loop.NothingToLearn, match=r"^no_spread: 4$"):
        run(parts(reward=flat_where(lambda row: row % 5 != 4)), plan(3))


def test_a_caller_that_has_seen_enough_leaves_nothing_running() -> None:
    async def main() -> None:
        training = loop.train(parts(delay=lambda row: 1000 * row), plan(9, max_lag=3, groups_per_step=1))
        async with asyncio.timeout(1), aclosing(training):
            assert (await anext(training)).number == 1
            assert len(asyncio.all_tasks()) > 2
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


# ---- errors ------------------------------------------------------------------------------------


class Broken(Exception):
    pass


@pytest.mark.parametrize("max_lag", [0, 2])
@pytest.mark.parametrize("where", ["source", "render", "engine", "reward", "algorithm", "trainer", "sync"])
def test_an_error_surfaces_as_itself_and_nothing_keeps_running(
    monkeypatch: pytest.MonkeyPatch, where: str, max_lag: int
) -> None:
    error = Broken(where)

    def fails(*_: Any) -> Any:
        raise error

    async def fails_later(*_: Any, **__: Any) -> Any:
        await ticks(1)
        raise error

    here = sys.modules[__name__]
    owner, name, broken = {
        "source": (Rows, "__iter__", lambda self: map(fails, count())),
        "render": (here, "render", fails),
        "engine": (Engine, "generate", fails_later),
        "reward": (here, "spread", fails_later),
        "algorithm": (GRPO, "advantages", fails),
        "trainer": (Trainer, "step", fails_later),
        "sync": (SharedWeights, "publish", fails_later),
    }[where]
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Broken) as raised:
        run(parts(delay=lambda row: 10**9 * (row >= P)), plan(3, max_lag=max_lag))  # what comes next never ends
    assert raised.value is error


def test_one_request_that_fails_ends_those_beside_it() -> None:
    error = Broken("the first request of all")
    wired = parts()
    engine = wired.engine
    assert isinstance(engine, Engine)

    def fails_once(row: int) -> int:
        if engine.keys == ["0/0"]:
            raise error
        return 10**9

    engine.delay = fails_once
    with pytest.raises(Broken) as raised:
        run(wired, plan(3, max_lag=2))
    assert raised.value is error


def test_an_error_waits_its_turn_in_the_line() -> None:
    """What was sampled before the bad row is still learned from."""

    def fails_on_the_fifth(task: Task) -> Prompt | Skip:
        if task.id == "4":
            raise ValueError(f"{task.source}: no such file")
        return render(task)

    wired = parts(render=fails_on_the_fifth)
    with pytest.raises(ValueError, match="row 4: no such file"):
        run(wired, plan(9, max_lag=3))
    assert isinstance(wired.trainer, Trainer) and wired.trainer.version == 2


def test_a_source_that_ends_breaks_its_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "__iter__", lambda self: iter([]))
    with pytest.raises(AssertionError, match="a source has no end"):
        run(parts(), plan(1))


def test_a_cancelled_caller_is_cancelled_even_as_a_rollout_ends() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def gated(task: Task, completions: Sequence[Completion]) -> list[Score]:
            await gate.wait()
            return await spread(task, completions)

        async def steps() -> None:
            async with aclosing(loop.train(parts(reward=gated), plan(1))) as training:
                await anext(training)

        caller = asyncio.create_task(steps())
        await ticks(10)
        gate.set()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(1):
                await caller
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


# ---- the frontier ------------------------------------------------------------------------------


@pytest.mark.parametrize("max_lag", [0, 2])
@pytest.mark.parametrize("num_before", [1, 3, 4])
def test_a_resumed_run_draws_the_rows_that_were_not_yet_trained_on_and_none_twice(
    max_lag: int, num_before: int
) -> None:
    def some(task: Task) -> Prompt | Skip:
        return Skip(reason="prompt_too_long") if int(task.id) % 5 == 4 else render(task)

    def wired() -> Parts:
        return parts(delay=lambda row: row * 7 % 4, render=some, reward=flat_where(lambda row: row % 3 == 0))

    whole = trained_on(run(wired(), plan(8, max_lag=max_lag)))
    assert whole == [row for row in range(100) if row % 3 and row % 5 != 4][: 8 * P]

    first = wired()
    before = run(first, plan(num_before, max_lag=max_lag))
    last = before[-1]
    assert isinstance(first.source, Rows)
    assert (first.source.row > last.source_state["row"]) == (max_lag > 0)  # rows in flight are drawn again

    second = wired()
    second.source.load_state_dict(last.source_state)
    after = run(second, plan(8, max_lag=max_lag, first_step=num_before + 1, first_group=last.next_group))
    assert trained_on(before) + trained_on(after) == whole
    assert [step.number for step in after] == list(range(num_before + 1, 9))
    assert all(group.id == int(group.task.id) for step in (*before, *after) for group in step.groups)
    assert isinstance(second.engine, Engine)
    assert min(int(key.split("/")[0]) for key in second.engine.keys) >= last.next_group
