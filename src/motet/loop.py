"""The loop of Motet. There is one; `max_lag` spans synchronous to fully asynchronous training.

            weight version v (flows back, with freed slots)
       +------------------------------------------------------------------+
       v                                                                  |
Source --Task--> render --Prompt--> Engine --Completion xG--> Reward --Group--> Buffer: FIFO, (max_lag+1)*P slots
data/            models/            rollout/                  rewards/          buffer.py
                                                                                  |
   WeightSync <--version-- Trainer <--Batch-- pack + collate <--Sample-- Algorithm.advantages
   weights/                trainer/           batching/                  algorithms/

Who waits for whom:

    who        takes                     gives                  waits for               is let go by
    produce    a free slot, a Task       a slot with a rollout  a free slot             train, when slots are freed
    rollout    a Prompt                  a Group or a Skip      engine, reward          its completions and scores
    train      the oldest slot's Group   a Step                 the oldest rollout      the rollout's end
    caller     a Step                    (asks for the next)    train                   weights of the step being live
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from motet.batching.pack import pack
from motet.batching.samples import samples
from motet.buffer import Buffer, Slot
from motet.metrics.stages import Stopwatch
from motet.protocols import Algorithm, Engine, Reward, Source, Trainer, WeightSync
from motet.rollout.group import rollout
from motet.rollout.prompts import Render
from motet.types import Batch, Group, Prompt, Sample, Sampling, Skip, StepResult, Task

T = TypeVar("T")

DRY_GROUPS_PER_STEP = 50
"""After this many times P groups in a row that teach nothing, `train` gives up."""


class NothingToLearn(Exception):
    """No group teaches anything any more."""

    def __init__(self, skipped: Counter[str]) -> None:
        super().__init__(", ".join(f"{reason}: {count}" for reason, count in skipped.most_common()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the loop runs on; `motet.build` wires it."""

    source: Source
    render: Render
    engine: Engine
    reward: Reward
    algorithm: Algorithm
    trainer: Trainer
    sync: WeightSync
    watch: Stopwatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the loop runs."""

    steps: int
    groups_per_step: int
    group_size: int
    max_lag: int
    sampling: Sampling
    row_tokens: int
    first_step: int = 1
    first_group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One step whose weights are live, and whose slots are not yet free: the moment to evaluate and to save."""

    number: int
    batch: Batch
    result: StepResult
    groups: Sequence[Group]
    """Every group that was taken, those that taught nothing included."""
    skipped: Counter[str]
    """Groups that taught nothing, by reason."""
    next_group: int
    source_state: dict[str, Any]
    """Where a run that resumes after this step goes on: rows in flight are drawn again, none is lost."""


async def train(parts: Parts, plan: Plan, stop: asyncio.Event | None = None) -> AsyncGenerator[Step]:
    """Run the steps. Once `stop` is set, a step that has begun to train is finished, and rollouts are abandoned.

    Raises NothingToLearn when `DRY_GROUPS_PER_STEP * P` groups in a row taught nothing, and what a row, a rollout, a
    reward or the trainer raises; nothing keeps running then.
    """
    stop = stop or asyncio.Event()
    buffer = Buffer(groups_per_step=plan.groups_per_step, max_lag=plan.max_lag)
    cursor = _Cursor(plan.first_group)
    producer = asyncio.create_task(produce(parts, plan, buffer, cursor))
    try:
        for number in range(plan.first_step, plan.steps + 1):
            with parts.watch.stage("rollout"):
                consumed = await unless(stop, consume(parts, plan, buffer))
            if consumed is None:
                return
            taken, learned, skipped = consumed
            with parts.watch.stage("train"):
                batch = pack(learned, row_tokens=plan.row_tokens)
                result = await parts.trainer.step(batch)
            with parts.watch.stage("publish"):
                await parts.sync.publish(result.version)
            oldest = buffer.oldest
            yield Step(
                number=number,
                batch=batch,
                result=result,
                groups=taken,
                skipped=skipped,
                next_group=oldest.group_id if oldest else cursor.next_group,
                source_state=oldest.source_state if oldest else parts.source.state_dict(),
            )
            buffer.release(plan.groups_per_step)
    finally:
        producer.cancel()
        with suppress(asyncio.CancelledError):
            await producer


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None where `stop` is set before it ends; `work` is cancelled then."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        return None if stop.is_set() else working.result()
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.wait((working, stopping))


@dataclass(slots=True)
class _Cursor:
    next_group: int


async def produce(parts: Parts, plan: Plan, buffer: Buffer, cursor: _Cursor) -> None:
    """Roll out one task for every free slot. An error becomes the outcome of its slot, where `train` meets it."""
    tasks = iter(parts.source)
    async with asyncio.TaskGroup() as rollouts:
        for group_id in itertools.count(plan.first_group):
            await buffer.wait_free()
            slot = buffer.admit(group_id, parts.source.state_dict())
            cursor.next_group = group_id + 1
            try:
                with parts.watch.stage("render"):
                    task = next(tasks, None)
                    assert task is not None, "a source has no end"
                    prompt = parts.render(task)
            except Exception as error:
                slot.fail(error)
                return
            if isinstance(prompt, Skip):
                slot.outcome.set_result(prompt)
            else:
                rollouts.create_task(_fill(slot, parts, plan, task, prompt))


async def _fill(slot: Slot, parts: Parts, plan: Plan, task: Task, prompt: Prompt) -> None:
    try:
        group = await rollout(
            task,
            prompt,
            group_id=slot.group_id,
            group_size=plan.group_size,
            engine=parts.engine,
            reward=parts.reward,
            sampling=plan.sampling,
        )
    except Exception as error:
        slot.fail(error)
    else:
        slot.outcome.set_result(group)


async def consume(parts: Parts, plan: Plan, buffer: Buffer) -> tuple[list[Group], list[Sample], Counter[str]]:
    """Take groups until P of them teach something; all groups taken, the samples to learn from, skips by reason."""
    taken: list[Group] = []
    learned: list[Sample] = []
    skipped: Counter[str] = Counter()
    num_learned = num_dry = 0
    while num_learned < plan.groups_per_step:
        outcome = await buffer.take()
        advantages = outcome if isinstance(outcome, Skip) else parts.algorithm.advantages(outcome)
        if isinstance(outcome, Group):
            taken.append(outcome)
        if isinstance(advantages, Skip):
            skipped[advantages.reason] += 1
            buffer.release(1)
            num_dry += 1
            if num_dry >= DRY_GROUPS_PER_STEP * plan.groups_per_step:
                raise NothingToLearn(skipped)
            continue
        assert isinstance(outcome, Group)
        learned += samples(outcome, advantages)
        num_learned += 1
        num_dry = 0
    return taken, learned, skipped
