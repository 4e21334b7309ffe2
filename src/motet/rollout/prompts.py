"""Rendered prompts, kept: a row of the held-out set, or of a second epoch, is decoded once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from motet.types import Prompt, Skip, Task

Render = Callable[[Task], Prompt | Skip]


class PromptCache:
    """`render`, remembering the most recently used prompts by `Task.source`, up to `capacity_bytes` of features.

    Safe to call from several threads, if `render` is; a row that two ask for at the same time is rendered by both.
    """

    def __init__(self, render: Render, *, capacity_bytes: int = 1 << 30) -> None:
        self._render = render
        self._capacity_bytes = capacity_bytes
        self._prompts: OrderedDict[str, Prompt | Skip] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def __call__(self, task: Task) -> Prompt | Skip:
        with self._lock:
            if task.source in self._prompts:
                self._prompts.move_to_end(task.source)
                return self._prompts[task.source]
        prompt = self._render(task)
        with self._lock:
            if task.source not in self._prompts:
                self._prompts[task.source] = prompt
                self._num_bytes += _num_bytes(prompt)
            while self._num_bytes > self._capacity_bytes:
                self._num_bytes -= _num_bytes(self._prompts.popitem(last=False)[1])
        return prompt


def _num_bytes(prompt: Prompt | Skip) -> int:
    if isinstance(prompt, Skip):
        return 0
    return sum(array.nbytes for item in prompt.media for array in item.features.values())
