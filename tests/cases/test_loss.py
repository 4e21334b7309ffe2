"""Log-probabilities: the engine reports those of the distribution that it draws from, and the trainer computes the
same. The ratio of the first step is the proof."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from motet.batching.pack import pack
from motet.batching.samples import samples
from motet.config.checks import check
from motet.config.load import ConfigError
from motet.config.schema import DataConfig, ModelConfig, RolloutConfig, RunConfig
from motet.features.store import FeatureStore
from motet.models.qwen3_omni.thinker import Thinker
from motet.trainer.torch_ import TorchTrainer
from motet.types import Advantages, Batch, Group, Prompt, Sample, Sampling, Score, Task

MakeTrainer = Callable[..., TorchTrainer]
KINDS = ("text", "image_colour", "audio_pitch", "video_agree")
Rollouts = Callable[[float], list[Sample]]


@pytest.fixture
def rollouts(make_engine: Callable[..., Any], prompts: dict[str, Prompt], toy_tasks: dict[str, Task]) -> Rollouts:
    """Two completions of eight tokens of each kind of row, drawn by the embedded engine at a temperature."""

    async def ask(temperature: float) -> list[Any]:
        engine, sampling = make_engine(eos_ids=[]), Sampling(max_tokens=8, temperature=temperature)
        return await asyncio.gather(
            *(engine.generate(prompts[kind], sampling, key=f"{kind}/{i}") for kind in KINDS for i in range(2))
        )

    def draw(temperature: float) -> list[Sample]:
        completions, drawn = asyncio.run(ask(temperature)), []
        for i, kind in enumerate(KINDS):
            pair = completions[2 * i : 2 * i + 2]
            scores = [Score(value=1), Score(value=0)]
            group = Group(id=i, task=toy_tasks[kind], prompt=prompts[kind], completions=pair, scores=scores)
            drawn += samples(group, Advantages(values=np.array([1, -1], np.float32)))
        return drawn

    return draw


def ratios(trainer: TorchTrainer, batch: Batch) -> np.ndarray:
    """New over old probability of every sampled token, f64."""
    new = asyncio.run(trainer.logprobs(batch))
    return np.concatenate(
        [
            np.exp(row.astype(np.float64) - micro.logprobs)[micro.loss_mask]
            for row, micro in zip(_flat(new), _flat(batch.grid), strict=True)
        ]
    )


def _flat(grid: Any) -> list[Any]:
    return [entry for row in grid for entry in row]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_equal_weights_give_ratio_one_at_any_temperature(
    rollouts: Rollouts, make_trainer: MakeTrainer, thinker: Thinker, features: FeatureStore, temperature: float
) -> None:
    """Log-probabilities before temperature on one side and after it on the other (huggingface/trl issue 4159,
    NVIDIA-NeMo/RL PR 935, modelscope/ms-swift PR 8427)."""
    batch = pack(rollouts(temperature), row_tokens=200)
    assert len(batch.grid) > 1
    found = ratios(make_trainer(thinker, store=features, temperature=temperature), batch)
    assert len(found) == batch.num_tokens == 2 * len(KINDS) * 8
    assert np.abs(found - 1).max() < 1e-5
    # The first step proves the same, before it moves a weight.
    metrics = asyncio.run(make_trainer(temperature=temperature).step(batch)).metrics
    assert metrics["mismatch/max"] < 1e-5
    assert metrics["ratio"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("engine", "trainer"), [(0.6, 1.0), (1.0, 1.3)])
def test_another_temperature_in_the_trainer_breaks_ratio_one_and_is_refused(
    rollouts: Rollouts,
    make_trainer: MakeTrainer,
    thinker: Thinker,
    features: FeatureStore,
    engine: float,
    trainer: float,
) -> None:
    batch = pack(rollouts(engine), row_tokens=200)
    found = ratios(make_trainer(thinker, store=features, temperature=trainer), batch)
    assert np.abs(found - 1).max() > 0.1
    with pytest.raises(ValueError, match=r"^the engine's log-probabilities differ .*max_initial_mismatch[^\n]*$"):
        asyncio.run(make_trainer(temperature=trainer).step(batch))


def test_temperature_divides_logits_and_not_log_probabilities(
    rollouts: Rollouts, make_trainer: MakeTrainer, thinker: Thinker, features: FeatureStore
) -> None:
    """Log-probabilities at temperature 1 divided by the temperature are of no distribution (PrimeIntellect-ai/prime-rl
    PR 697)."""
    batch = pack(rollouts(0.6), row_tokens=4096)
    ((plain,),) = asyncio.run(make_trainer(thinker, store=features, temperature=1.0).logprobs(batch))
    micro = batch.grid[0][0]
    assert np.abs(plain / 0.6 - micro.logprobs)[micro.loss_mask].min() > 0.1


# ---- truncated sampling ------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [{"top_p": 0.95}, {"top_k": 50}])
def test_the_engine_refuses_truncated_sampling(
    make_engine: Callable[..., Any], prompts: dict[str, Prompt], setting: dict[str, Any]
) -> None:
    """A truncated distribution makes every ratio the probability mass that it kept (huggingface/trl issue 6789,
    verl-project/verl issue 6240)."""
    with pytest.raises(ValueError, match=r"^rollout\.top_p and rollout\.top_k: [^\n]+$"):
        asyncio.run(_one(make_engine().generate(prompts["text"], Sampling(max_tokens=2, **setting), key="0/0")))
    whole = Sampling(max_tokens=2, top_p=1.0, top_k=0)
    assert len(asyncio.run(_one(make_engine(eos_ids=[]).generate(prompts["text"], whole, key="0/0"))).token_ids) == 2


async def _one(asked: Any) -> Any:
    return await asked


@pytest.mark.parametrize(("setting", "given", "right"), [("top_p", 0.95, 1), ("top_k", 50, 0)])
def test_a_run_with_truncated_sampling_is_refused_before_it_starts(
    random_checkpoint: Path, toy_folder: Path, tmp_path: Path, setting: str, given: float, right: int
) -> None:
    def run(**rollout: Any) -> RunConfig:
        return RunConfig(
            run_dir=str(tmp_path),
            model=ModelConfig(path=str(random_checkpoint)),
            data=DataConfig(train=str(toy_folder / "train.jsonl")),
            rollout=RolloutConfig(**rollout),
        )

    with pytest.raises(ConfigError, match=rf"^rollout\.{setting} = {given}: should be {right} in training: [^\n]+$"):
        check(run(**{setting: given}))
    check(run(**{setting: right}))
