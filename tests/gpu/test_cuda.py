"""The embedded engine and the torch trainer on CUDA. Needs a GPU; elsewhere there is nothing to run."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from motet.types import Group, Sampling, Score

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

BOUNDS = {"float32": (1e-5, 1e-3), "bfloat16": (0.05, 0.5)}
"""Mean and maximal |new - old| log-probability, between decoding with a cache and a packed row."""


@pytest.fixture(params=BOUNDS)
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


def test_engine_and_trainer_agree_and_a_step_learns(
    dtype: str, random_checkpoint: Path, renderer: Any, toy_tasks: Any, prompts: Any
) -> None:
    from motet.algorithms import GRPO
    from motet.batching.pack import pack
    from motet.batching.samples import samples
    from motet.config.schema import OptimizerConfig, TrainerConfig
    from motet.features.store import FeatureStore
    from motet.models.qwen3_omni.thinker import Thinker
    from motet.rollout.embedded import EmbeddedEngine
    from motet.trainer.torch_ import TorchTrainer

    thinker = Thinker(random_checkpoint, dtype=getattr(torch, dtype), device="cuda")
    features = FeatureStore(thinker.encode, fingerprint=thinker.towers_fingerprint())
    engine = EmbeddedEngine(
        thinker,
        features,
        decode_text=renderer.decode,
        eos_ids=renderer.eos_ids,
        banned_ids=renderer.banned_ids,
        max_sequences=64,
    )
    algorithm = GRPO()
    config = TrainerConfig(optimizer=OptimizerConfig(lr=1e-3))
    trainer = TorchTrainer(
        thinker,
        features,
        algorithm,
        config,
        reference=None,
        temperature=1.0,
        banned_ids=renderer.banned_ids,
        num_steps=10,
    )
    before = {name: parameter.detach().clone() for name, parameter in thinker.trained().items()}

    async def run() -> Any:
        learned = []
        for i, (kind, prompt) in enumerate(prompts.items()):
            asked = (engine.generate(prompt, Sampling(max_tokens=16), key=f"{i}/{k}") for k in range(4))
            completions = await asyncio.gather(*asked)
            scores = [Score(value=float(k % 2)) for k in range(4)]
            group = Group(id=i, task=toy_tasks[kind], prompt=prompt, completions=completions, scores=scores)
            learned += samples(group, algorithm.advantages(group))
        return await trainer.step(pack(learned, row_tokens=500))

    metrics = asyncio.run(run()).metrics
    print(dtype, {name: metrics[name] for name in ("mismatch/mean", "mismatch/max", "grad_norm")})
    mean, largest = BOUNDS[dtype]
    assert metrics["mismatch/mean"] < mean
    assert metrics["mismatch/max"] < largest
    assert any(not torch.equal(before[name], parameter) for name, parameter in thinker.trained().items())


def test_varlen_attention_equals_one_call_a_sample() -> None:
    from motet.models.attention import Packed

    generator = torch.Generator("cuda").manual_seed(0)
    shapes = ((1, 4, 60, 32), (1, 2, 60, 32), (1, 2, 60, 32))
    made = [torch.randn(s, generator=generator, device="cuda", dtype=torch.bfloat16) for s in shapes]
    query, key, value = made
    bounds = [0, 7, 50, 60]
    packed = Packed(bounds).attend(0, query, key, value, 32**-0.5).float()
    alone = [Packed([0, b - a]).attend(0, *(x[:, :, a:b].float() for x in made), 32**-0.5) for a, b in pairwise(bounds)]
    np.testing.assert_allclose(packed.cpu(), torch.cat(alone, dim=1).cpu(), atol=2e-2)
