"""One task -> one group: G completions of one prompt, and their scores."""

from __future__ import annotations

import asyncio

from motet.protocols import Engine, Reward
from motet.types import Group, Prompt, Sampling, Task


async def rollout(
    task: Task,
    prompt: Prompt,
    *,
    group_id: int,
    group_size: int,
    engine: Engine,
    reward: Reward,
    sampling: Sampling,
) -> Group:
    """Sample and score. Completion i is drawn under the key `group_id/i`. Raises what engine or reward raise."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(engine.generate(prompt, sampling, key=f"{group_id}/{i}")) for i in range(group_size)
            ]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # one is enough; the others were cancelled or say the same
    completions = [task_.result() for task_ in running]
    scores = await reward(task, completions)
    return Group(id=group_id, task=task, prompt=prompt, completions=completions, scores=scores)
