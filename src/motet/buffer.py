"""Slots and a queue: the only state that producer and consumer share, and what bounds staleness.

There are (max_lag + 1) * P slots. A group takes one before its prompt is rolled out and gives it back when weights
that were trained on it are live (at once, when it teaches nothing). Groups are trained on in the order in which they
took their slots, P a step. So when a group takes its slot at version v, at most (max_lag + 1) * P - 1 groups stand
before it, each of which is trained on first or gives its slot away: it is trained on at version v + max_lag at the
latest. Nothing has to be checked, and `max_lag = 0` is exactly on-policy.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from motet.types import Group, Skip


@dataclass(eq=False, slots=True)
class Slot:
    group_id: int
    source_state: dict[str, Any]
    """Of the source, before it gave this slot's task: where a resumed run draws again."""
    outcome: asyncio.Future[Group | Skip]

    def fail(self, error: Exception) -> None:
        self.outcome.set_exception(error)
        self.outcome.exception()  # counts as retrieved: where many fail, the first in line is enough


class Buffer:
    """First in, first out: a short answer does not overtake a long one, or training would prefer short answers."""

    def __init__(self, *, groups_per_step: int, max_lag: int) -> None:
        self._free = asyncio.Semaphore((max_lag + 1) * groups_per_step)
        self._slots: deque[Slot] = deque()
        self._admitted = asyncio.Event()

    async def wait_free(self) -> None:
        """Take a slot, as soon as there is one."""
        await self._free.acquire()

    def admit(self, group_id: int, source_state: dict[str, Any]) -> Slot:
        """Queue the slot that `wait_free` took."""
        slot = Slot(group_id, source_state, asyncio.get_running_loop().create_future())
        self._slots.append(slot)
        self._admitted.set()
        return slot

    async def take(self) -> Group | Skip:
        """The outcome of the slot that was admitted first; raises what its rollout raised."""
        while not self._slots:
            self._admitted.clear()
            await self._admitted.wait()
        outcome = await asyncio.shield(self._slots[0].outcome)  # who waits may be cancelled, the rollout is not
        self._slots.popleft()
        return outcome

    def release(self, num_slots: int) -> None:
        for _ in range(num_slots):
            self._free.release()

    @property
    def oldest(self) -> Slot | None:
        """The slot that `take` is about: what lies before it has been taken."""
        return self._slots[0] if self._slots else None
