from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from motet.buffer import Buffer
from motet.types import Skip


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, timeout=5))


async def is_blocked(waiting: Coroutine[Any, Any, Any]) -> bool:
    """Whether it is still waiting after everything else has had its turn; it is cancelled then."""
    task = asyncio.ensure_future(waiting)
    for _ in range(10):
        await asyncio.sleep(0)
    blocked = not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return blocked


@pytest.mark.parametrize(("max_lag", "num_slots"), [(0, 3), (1, 6), (3, 12)])
def test_there_are_max_lag_plus_one_times_p_slots(max_lag: int, num_slots: int) -> None:
    async def test() -> None:
        buffer = Buffer(groups_per_step=3, max_lag=max_lag)
        for _ in range(num_slots):
            assert not await is_blocked(buffer.wait_free())
        assert await is_blocked(buffer.wait_free())
        buffer.release(2)
        assert [await is_blocked(buffer.wait_free()) for _ in range(3)] == [False, False, True]

    run(test())


def test_first_in_first_out_whatever_is_finished_first() -> None:
    async def test() -> None:
        buffer = Buffer(groups_per_step=2, max_lag=0)
        first, second = buffer.admit(7, {"row": 3}), buffer.admit(8, {"row": 4})
        assert buffer.oldest is first
        second.outcome.set_result(Skip(reason="second"))
        assert await is_blocked(buffer.take())
        assert buffer.oldest is first
        first.outcome.set_result(Skip(reason="first"))
        assert await buffer.take() == Skip(reason="first")
        assert buffer.oldest is second
        assert (second.group_id, second.source_state) == (8, {"row": 4})
        assert await buffer.take() == Skip(reason="second")
        assert buffer.oldest is None

    run(test())


def test_take_waits_for_a_slot_to_be_admitted() -> None:
    async def test() -> None:
        buffer = Buffer(groups_per_step=1, max_lag=0)
        for i in range(2):  # the second time, after the buffer was emptied
            taking = asyncio.create_task(buffer.take())
            await asyncio.sleep(0)
            assert not taking.done()
            buffer.admit(i, {}).outcome.set_result(Skip(reason=f"late {i}"))
            assert await taking == Skip(reason=f"late {i}")

    run(test())


def test_who_takes_meets_the_first_error_and_the_others_stay_silent() -> None:
    complaints: list[Any] = []

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        buffer = Buffer(groups_per_step=2, max_lag=0)
        errors = [ValueError("first"), ValueError("second")]
        for i, error in enumerate(errors):
            buffer.admit(i, {}).fail(error)
        with pytest.raises(ValueError, match="first") as raised:
            await buffer.take()
        assert raised.value is errors[0]

    run(test())
    gc.collect()
    assert complaints == []


def test_an_outcome_outlives_a_taker_that_is_cancelled() -> None:
    async def test() -> None:
        buffer = Buffer(groups_per_step=1, max_lag=0)
        slot = buffer.admit(0, {})
        assert await is_blocked(buffer.take())
        slot.outcome.set_result(Skip(reason="late"))
        assert await buffer.take() == Skip(reason="late")

    run(test())
