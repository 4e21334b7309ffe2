"""From a user's function to a Reward: load it, lift it to groups, hold it to a deadline.

A plain function runs on a thread of its own, so that it cannot block the loop; groups are scored side by side, so it
may be called from several threads at once. An async one runs on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, SupportsFloat

from motet.protocols import Reward
from motet.types import Completion, Score, Task

Scored = SupportsFloat | Score


class RewardError(ValueError):
    """A reward that raised, took too long, or returned something that is no score. One line; names row and reward."""


def load_function(path: str) -> Callable[..., Any]:
    """Imports `package.module:function`. Raises ValueError, naming `reward.score.path`, when there is no such thing."""
    module_name, _, name = path.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), name]):
        raise ValueError(f"reward.score.path: {path!r} is not of the form `package.module:function`")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"reward.score.path: cannot import {module_name!r} ({error}); is its folder on PYTHONPATH?"
        ) from error
    if not hasattr(module, name):
        raise ValueError(f"reward.score.path: module {module_name!r} has no {name!r}")
    function = getattr(module, name)
    if not callable(function):
        raise ValueError(f"reward.score.path: {path!r} is a {type(function).__name__}, not a function")
    return function


def per_completion(function: Callable[[Task, Completion], Scored | Awaitable[Scored]]) -> Reward:
    """Lifts `(task, completion) -> number or Score`, plain or async, to a group. The calls of an async function run
    side by side, those of a plain one in turn."""

    async def reward(task: Task, completions: Sequence[Completion]) -> list[Score]:
        results = await _on_thread(lambda: [function(task, completion) for completion in completions])
        return [_as_score(result) for result in await asyncio.gather(*map(_settled, results))]

    return reward


def per_group(
    function: Callable[[Task, Sequence[Completion]], Iterable[Scored] | Awaitable[Iterable[Scored]]],
) -> Reward:
    """Lifts `(task, completions) -> numbers or Scores`, plain or async."""

    async def reward(task: Task, completions: Sequence[Completion]) -> list[Score]:
        results = await _settled(await _on_thread(lambda: function(task, completions)))
        return [_as_score(result) for result in results]

    return reward


def with_deadline(reward: Reward, timeout_seconds: float, *, name: str = "the reward") -> Reward:
    """The reward with a deadline for each group and a check of what it returns: one finite score per completion.

    Whatever goes wrong is a RewardError that names `task.source` and `name`, chained from the original error.
    """

    async def guarded(task: Task, completions: Sequence[Completion]) -> list[Score]:
        deadline = asyncio.timeout(timeout_seconds)
        try:
            async with deadline:
                scores = await reward(task, completions)
            _check(scores, len(completions))
        except Exception as error:
            if deadline.expired():
                reason = f"no result within reward.timeout_seconds = {timeout_seconds:g}; make it faster or raise that"
            else:
                first_line, _, _ = str(error).partition("\n")
                reason = f"{type(error).__name__}: {first_line}"
            raise RewardError(f"{task.source}: {name}: {reason}") from error
        return scores

    return guarded


async def _on_thread(call: Callable[[], Any]) -> Any:
    """`asyncio.to_thread`, on a daemon thread: the process must be able to end while a function hangs past its
    deadline, and the threads of an executor are waited for at exit."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    outcome: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=work, name="motet-reward", daemon=True).start()
    await done.wait()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


async def _settled(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _as_score(result: Any) -> Score:
    if isinstance(result, Score):
        return result
    if not isinstance(result, SupportsFloat):
        raise TypeError(f"returned {result!r}, neither a number nor a motet.types.Score")
    return Score(value=float(result))


def _check(scores: Sequence[Score], num_completions: int) -> None:
    if len(scores) != num_completions:
        raise ValueError(f"returned {len(scores)} scores for {num_completions} completions")
    for index, score in enumerate(scores):
        for part, value in {"value": score.value, **score.parts}.items():
            if not math.isfinite(value):
                raise ValueError(f"{part} of completion {index} is {value}; it must be a finite number")
