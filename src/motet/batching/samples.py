"""A group and its advantages -> trainable samples."""

from __future__ import annotations

import numpy as np

from motet.types import Advantages, Completion, Group, IntArray, Sample


def samples(group: Group, advantages: Advantages) -> list[Sample]:
    """One sample per completion that has something to learn; every sampled token carries the completion's advantage.

    A completion with advantage zero pulls nowhere, yet it is kept: it counts in the denominators.
    """
    return [
        _sample(group, completion, float(value))
        for completion, value in zip(group.completions, advantages.values, strict=True)
    ]


def _sample(group: Group, completion: Completion, advantage: float) -> Sample:
    prompt = group.prompt
    num_prompt = len(prompt.token_ids)
    mask = np.concatenate([np.zeros(num_prompt, bool), completion.mask])
    return Sample(
        group_id=group.id,
        token_ids=np.concatenate([prompt.token_ids, completion.token_ids]),
        positions=extend_positions(prompt.positions, len(completion.token_ids)),
        loss_mask=mask,
        logprobs=np.concatenate([np.zeros(num_prompt, np.float32), completion.logprobs]),
        advantages=np.where(mask, np.float32(advantage), np.float32(0)),
        version=completion.versions[0],
        media=prompt.media,
        digest=prompt.digest,
        num_prompt_tokens=num_prompt,
        modality=group.task.modality,
        experts=completion.experts,
    )


def extend_positions(prompt: IntArray, num_tokens: int) -> IntArray:
    """Positions i32[3, P] of a prompt and C = `num_tokens` of text after it -> i32[3, P + C].

    Text counts up after the highest position, on all three axes.
    """
    start = int(prompt.max()) + 1
    completion = np.broadcast_to(np.arange(start, start + num_tokens, dtype=prompt.dtype), (3, num_tokens))
    return np.concatenate([prompt, completion], axis=1)
