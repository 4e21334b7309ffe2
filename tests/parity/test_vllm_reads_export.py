"""Stock vLLM scores with an exported folder what the trainer scores whose checkpoint it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from motet.batching.pack import pack
from motet.batching.samples import samples
from motet.types import Advantages, Batch, Completion, Group, Sampling, Score, Task

if TYPE_CHECKING:
    from motet.models.qwen3_omni.render import Renderer
    from motet.trainer.torch_ import TorchTrainer

pytestmark = pytest.mark.vllm

ROWS = ("image_colour", "audio_pitch", "video_motion", "mixed")
MAX_DIFFERENCE = 1e-4
"""Of a log-probability, in float32. Measured: 2e-6; before training it is above 2."""


def batch(tasks: dict[str, Task], completions: dict[str, list[Completion]], prompts: dict[str, Any]) -> Batch:
    """A step's batch of two completions a row, one good and one bad."""
    learned = []
    for i, row in enumerate(ROWS):
        scores = [Score(value=1.0), Score(value=0.0)]
        group = Group(id=i, task=tasks[row], prompt=prompts[row], completions=completions[row], scores=scores)
        learned += samples(group, Advantages(values=np.array([1, -1], np.float32)))
    return pack(learned, row_tokens=512)


def scored(trainer: TorchTrainer, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of all sampled tokens: the trainer's and the engine's."""
    pairs = [
        (found[micro.loss_mask], micro.logprobs[micro.loss_mask])
        for row, given in zip(batch.grid, asyncio.run(trainer.logprobs(batch)), strict=True)
        for micro, found in zip(row, given, strict=True)
    ]
    ours, theirs = zip(*pairs, strict=True)
    return np.concatenate(ours), np.concatenate(theirs)


def test_vllm_scores_as_the_trainer_that_was_exported(
    random_checkpoint: Path,
    renderer: Renderer,
    tasks: dict[str, Task],
    make_engine: Callable[..., Any],
    make_trainer: Callable[..., TorchTrainer],
    sample: Callable[..., Any],
    tmp_path: Path,
) -> None:
    from motet.checkpoint.export import export
    from motet.checkpoint.store import CheckpointStore
    from motet.config.load import dump
    from motet.config.schema import RunConfig

    prompts = {row: renderer(tasks[row]) for row in ROWS}
    engine = make_engine()

    async def roll_out() -> dict[str, list[Completion]]:
        draws = {
            row: [engine.generate(prompts[row], Sampling(max_tokens=8), key=f"{row}/{i}") for i in range(2)]
            for row in ROWS
        }
        return {row: list(await asyncio.gather(*asked)) for row, asked in draws.items()}

    trainer, untrained = make_trainer(optimizer={"lr": 3e-3, "warmup_steps": 0}), make_trainer()
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=1)

    async def train(learned: Batch) -> None:
        for _ in range(3):
            await trainer.step(learned)
        await store.save(3, state={}, write=trainer.save, num_bytes=trainer.state_bytes, metric=None)
        await store.settled()

    asyncio.run(train(batch(tasks, asyncio.run(roll_out()), prompts)))
    config = {"run_dir": "run", "model": {"path": str(random_checkpoint)}, "data": {"train": "train.jsonl"}}
    (tmp_path / "run" / "config.toml").write_text(dump(RunConfig.model_validate(config)))
    sampled = sample(export(tmp_path / "run", tmp_path / "exported"), *ROWS)

    completions = {
        row: [
            Completion(
                token_ids=np.asarray(answer["token_ids"], np.int32),
                logprobs=np.asarray(answer["logprobs"], np.float32),
                mask=np.ones(len(answer["token_ids"]), bool),
                stop="length",
                versions=(3, 3),
                text="",
            )
            for answer in sampled[row].completions
        ]
        for row in ROWS
    }
    answered = batch(tasks, completions, prompts)
    ours, theirs = scored(trainer, answered)
    assert len(ours) == len(ROWS) * 2 * 16
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=MAX_DIFFERENCE)
    before, _ = scored(untrained, answered)
    assert np.abs(before - theirs).max() > 100 * MAX_DIFFERENCE
