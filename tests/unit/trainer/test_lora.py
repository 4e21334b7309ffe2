"""The trainer on adapters: what learns, and what a checkpoint brings back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from motet.batching.pack import pack
from motet.config.schema import LoraConfig
from motet.models.qwen3_omni.thinker import Thinker

BOTH = LoraConfig(rank=4, alpha=8, targets=("attention", "experts"))


def test_only_adapters_learn_and_a_resumed_run_has_them_bit_for_bit(
    random_checkpoint: Path, make_trainer: Callable[..., Any], rollouts: Any, tmp_path: Path
) -> None:
    def state(thinker: Thinker) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in thinker.module.state_dict().items()}

    async def save(trainer: Any) -> None:
        await (await trainer.save(tmp_path / "saved"))

    whole = Thinker(random_checkpoint, lora=BOTH)
    trainer = make_trainer(whole, max_initial_mismatch=10, optimizer={"lr": 1e-2})
    before = state(whole)
    asyncio.run(trainer.step(pack(rollouts[:4], row_tokens=200)))
    moved = {name for name, tensor in state(whole).items() if not torch.equal(tensor, before[name])}
    assert moved and all(".lora_" in name for name in moved)
    asyncio.run(save(trainer))
    asyncio.run(trainer.step(pack(rollouts[4:8], row_tokens=200)))

    again = Thinker(random_checkpoint, lora=BOTH)
    resumed = make_trainer(again, max_initial_mismatch=10, optimizer={"lr": 1e-2})
    asyncio.run(resumed.load(tmp_path / "saved"))
    asyncio.run(resumed.step(pack(rollouts[4:8], row_tokens=200)))
    assert all(torch.equal(a, b) for a, b in zip(state(whole).values(), state(again).values(), strict=True))
