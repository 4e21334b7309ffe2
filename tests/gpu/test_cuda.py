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


@pytest.mark.parametrize("dtype", BOUNDS)
def test_a_checkpoint_brings_back_weights_and_moments_bit_for_bit(
    dtype: str, random_checkpoint: Path, renderer: Any, tmp_path: Path
) -> None:
    from motet.algorithms import GRPO
    from motet.config.schema import TrainerConfig
    from motet.features.store import FeatureStore
    from motet.models.qwen3_omni.thinker import Thinker
    from motet.trainer.torch_ import TorchTrainer

    def trainer() -> TorchTrainer:
        thinker = Thinker(random_checkpoint, dtype=getattr(torch, dtype), device="cuda")
        store = FeatureStore(thinker.encode, fingerprint=thinker.towers_fingerprint(), device="cuda")
        return TorchTrainer(
            thinker,
            store,
            GRPO(),
            TrainerConfig(),
            reference=None,
            temperature=1.0,
            banned_ids=renderer.banned_ids,
            num_steps=10,
        )

    async def save(trainer: TorchTrainer) -> None:
        writing = await trainer.save(tmp_path)
        for parameter in trainer._masters.parameters.values():
            parameter.data.zero_()  # what happens while it is written is not in it
        await writing

    whole, resumed = trainer(), trainer()
    for parameter in whole._masters.parameters.values():
        parameter.grad = torch.randn_like(parameter)
    whole._optimizer.step()
    expected = {name: tensor.detach().clone() for name, tensor in whole._state().items()}
    asyncio.run(save(whole))
    asyncio.run(resumed.load(tmp_path))
    found = resumed._state()
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name].cpu(), expected[name].cpu())] == []
    for name, parameter in resumed._policy.trained().items():
        assert torch.equal(parameter, expected[f"weights/{name}"].to(parameter.dtype))


def test_features_kept_in_a_folder_come_back_to_the_device(
    random_checkpoint: Path, prompts: Any, tmp_path: Path
) -> None:
    from motet.features.store import FeatureStore
    from motet.models.qwen3_omni.thinker import Thinker

    thinker = Thinker(random_checkpoint, dtype=torch.bfloat16, device="cuda")

    def store() -> FeatureStore:
        fingerprint = thinker.towers_fingerprint()
        return FeatureStore(thinker.encode, fingerprint=fingerprint, folder=tmp_path, device="cuda")

    first, second = store(), store()
    media = prompts["image_audio"].media
    computed, read = first(media), second(media)
    assert (first.num_encoded, second.num_encoded) == (2, 0)
    assert all(torch.equal(a, b) and a.is_cuda and b.is_cuda for a, b in zip(computed, read, strict=True))


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
