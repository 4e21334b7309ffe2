"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Sums seconds per stage. Stages may overlap, as those of concurrent rollouts do; each counts its own time.

    >>> watch = Stopwatch(clock=iter([10.0, 12.5]).__next__)
    >>> with watch.stage("rollout"):
    ...     pass
    >>> watch.lap()
    {'seconds/rollout': 2.5}
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._running: dict[object, tuple[str, float]] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        key, started = object(), self._clock()
        self._running[key] = (name, started)
        try:
            yield
        finally:
            del self._running[key]
            self._seconds[name] += self._clock() - started

    def longest(self) -> tuple[str, float]:
        """The stage that has been running longest, and for how many seconds; ("", 0.0) where none runs. Safe to ask
        from another thread."""
        running = list(self._running.values())
        if not running:
            return "", 0.0
        name, started = min(running, key=lambda stage: stage[1])
        return name, self._clock() - started

    def lap(self) -> dict[str, float]:
        """`seconds/<stage>` since the last lap. A stage that is still running counts in the lap in which it ends."""
        seconds = {f"seconds/{name}": value for name, value in self._seconds.items()}
        self._seconds.clear()
        return seconds
