"""Rollouts of the embedded engine on the random model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest

from motet.types import Advantages, Completion, Group, Prompt, Sample, Sampling, Score, Task

if TYPE_CHECKING:
    from motet.features.store import FeatureStore
    from motet.models.qwen3_omni.render import Renderer
    from motet.models.qwen3_omni.thinker import Thinker

MAX_TOKENS = 8


@pytest.fixture(scope="session")
def rollouts(
    thinker: Thinker,
    features: FeatureStore,
    renderer: Renderer,
    prompts: dict[str, Prompt],
    toy_tasks: dict[str, Task],
) -> list[Sample]:
    """Two samples of every kind of row: advantages 1 and -0.5, log-probabilities as the engine reports them."""
    from motet.batching.samples import samples
    from motet.rollout.embedded import EmbeddedEngine

    engine = EmbeddedEngine(
        thinker,
        features,
        decode_text=renderer.decode,
        eos_ids=renderer.eos_ids,
        banned_ids=renderer.banned_ids,
        max_sequences=64,
    )

    async def ask() -> list[list[Completion]]:
        sampling = Sampling(max_tokens=MAX_TOKENS)
        asked = [[engine.generate(p, sampling, key=f"{kind}/{i}") for i in range(2)] for kind, p in prompts.items()]
        return await asyncio.gather(*(asyncio.gather(*group) for group in asked))

    learned = []
    for i, (kind, completions) in enumerate(zip(prompts, asyncio.run(ask()), strict=True)):
        scores = [Score(value=1.0), Score(value=0.0)]
        group = Group(id=i, task=toy_tasks[kind], prompt=prompts[kind], completions=completions, scores=scores)
        learned += samples(group, Advantages(values=np.array([1, -0.5], np.float32)))
    return learned
