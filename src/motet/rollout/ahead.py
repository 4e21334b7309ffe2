"""Prompts rendered before their turn, so that the sampler does not wait for decoders.

    Source --depth tasks ahead--> threads render --> prompts that wait for their turn
       '----the same tasks, in the same order-----> the loop, which asks for their prompts

What the loop sees does not depend on it: neither the order of the tasks, nor the state that a checkpoint keeps, nor
when an error is met.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from motet.protocols import Source
from motet.rollout.prompts import Render
from motet.types import Prompt, Skip, Task


@dataclass(frozen=True, slots=True)
class _Read:
    """A task that was read before its turn, or what reading it raised."""

    state: dict[str, Any]
    """The source's, before it."""
    task: Task | Exception


class RenderAhead:
    """A `Source`, and the `Render` of its tasks. Both are used by one thread, that of the loop.

    Args:
        source: read up to `depth` tasks further than what is yielded. Nobody else iterates over it or sets its state.
        render: called by several threads at once.
        depth: tasks whose prompts are being rendered or wait for their turn; 0 renders each when it is asked for.
        num_threads: that render.
    """

    def __init__(self, source: Source, render: Render, *, depth: int, num_threads: int) -> None:
        self._source = source
        self._render = render
        self._depth = depth
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="render")
        self._tasks: Iterator[Task] | None = None
        self._ahead: deque[_Read] = deque()
        self._prompts: dict[int, tuple[Task, Future[Prompt | Skip]]] = {}
        """By `id` of the task, which is held so that no other one takes its id."""

    def __iter__(self) -> Iterator[Task]:
        while True:
            self._read_to(1)
            task = self._ahead.popleft().task
            if isinstance(task, Exception):
                raise task
            self._read_to(self._depth)
            yield task

    def state_dict(self) -> dict[str, Any]:
        """Of the source, before the next task that is yielded."""
        return self._ahead[0].state if self._ahead else self._source.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state)
        self._tasks = None
        self._ahead.clear()
        for _, prompt in self._prompts.values():
            prompt.cancel()
        self._prompts.clear()

    def render(self, task: Task) -> Prompt | Skip:
        """The prompt, or the error, of a task that was yielded; it is given once and rendered anew after that."""
        _, prompt = self._prompts.pop(id(task), (None, None))
        return self._render(task) if prompt is None else prompt.result()

    def close(self) -> None:
        """Returns when the threads have ended; each finishes the row it is at."""
        self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> RenderAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_to(self, num_tasks: int) -> None:
        """Up to the first error: what comes after it is the source's affair."""
        while len(self._ahead) < num_tasks and not (self._ahead and isinstance(self._ahead[-1].task, Exception)):
            self._ahead.append(self._read())

    def _read(self) -> _Read:
        state = self._source.state_dict()
        if self._tasks is None:
            self._tasks = iter(self._source)
        try:
            task = next(self._tasks, None)
        except Exception as error:
            self._tasks = None
            return _Read(state, error)
        assert task is not None, "a source has no end"
        if self._depth:
            self._prompts[id(task)] = task, self._threads.submit(self._render, task)
        return _Read(state, task)
