"""One rank of a trainer over several processes: `rank.py FOLDER RANK NUM`, jobs and results in the folder."""

from __future__ import annotations

import asyncio
import pickle
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from motet import compat

compat.torchvision()  # before transformers is imported

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

from motet.algorithms import GRPO  # noqa: E402
from motet.config.schema import LoraConfig, OptimizerConfig, TrainerConfig  # noqa: E402
from motet.features.store import FeatureStore  # noqa: E402
from motet.models.qwen3_omni.thinker import Thinker  # noqa: E402
from motet.trainer.torch_ import TorchTrainer  # noqa: E402

DEADLINE_SECONDS = 3


def make(
    checkpoint: Path, dtype: str = "float32", *, reference: bool = False, lora: LoraConfig | None = None
) -> TorchTrainer:
    policy = Thinker(checkpoint, dtype=getattr(torch, dtype), lora=lora)
    return TorchTrainer(
        policy,
        FeatureStore(policy.encode, fingerprint=policy.towers_fingerprint()),
        GRPO(kl_weight=0.1) if reference else GRPO(),
        TrainerConfig(
            optimizer=OptimizerConfig(lr=1e-3, weight_decay=0.1, max_grad_norm=0.5),
            max_initial_mismatch=1,
            vocab_chunk_tokens=4,  # ranks have different numbers of chunks
        ),
        reference=Thinker(checkpoint, dtype=getattr(torch, dtype)) if reference else None,
        temperature=1.0,
        banned_ids=[],
        num_steps=10,
    )


def state(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    """Whole, whatever it is cut into."""
    found = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in trainer._state().items()}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


async def run(checkpoint: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Load from `load`, score `logprobs`, make a step on each of `batches` and save to `save` during the last."""
    trainer = make(checkpoint, **job.get("trainer", {}))
    result: dict[str, Any] = {"metrics": [], "states": []}
    if "load" in job:
        await trainer.load(job["load"])
        result["loaded"] = state(trainer)
    if "logprobs" in job:
        result["logprobs"] = await trainer.logprobs(job["logprobs"])
    writing = None
    for i, batch in enumerate(job["batches"]):
        if "save" in job and i == len(job["batches"]) - 1:
            writing = await trainer.save(job["save"])
        result["metrics"].append((await trainer.step(batch)).metrics)
        result["states"].append(state(trainer))
    if writing is not None:
        await writing
    result["num_held"] = sum(
        (p.to_local() if isinstance(p, DTensor) else p).numel() for p in trainer._policy.trained().values()
    )
    return result


def main(folder: Path, rank: int, num: int) -> None:
    def meet(name: str, seconds: float) -> None:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder / name}", rank=rank, world_size=num, timeout=timedelta(seconds=seconds)
        )

    meet("store", 60)
    checkpoint, jobs = pickle.loads((folder / "jobs").read_bytes())
    results = {name: asyncio.run(run(checkpoint, job)) for name, job in jobs.items()}
    torch.save(results, folder / f"results-{rank}")
    dist.barrier()
    dist.destroy_process_group()
    meet("second-store", DEADLINE_SECONDS)
    trainer = make(checkpoint)
    if rank > 0:
        time.sleep(60)  # it hangs; the step must not
    asyncio.run(trainer.step(next(iter(jobs.values()))["batches"][0]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
