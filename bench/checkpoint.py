"""For how long a checkpoint stops a step: seconds blocked by an asynchronous save, against the same save waited for.

    python bench/checkpoint.py [--experts 40] [--repeats 3] [FOLDER]

The model has the shape of the tiny one with more and wider experts; weights and optimizer of its trainer are about
1 GB. Between two saves nothing runs, so the disk has as much time as it needs. `torch.save` of the same state, forced
to disk, is the baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from motet import compat

compat.torchvision()  # before transformers is imported

import torch  # noqa: E402
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration  # noqa: E402

from motet.algorithms import GRPO  # noqa: E402
from motet.checkpoint.disk import size_text, sync  # noqa: E402
from motet.checkpoint.store import CheckpointStore  # noqa: E402
from motet.config.schema import TrainerConfig  # noqa: E402
from motet.features.store import FeatureStore  # noqa: E402
from motet.models.qwen3_omni import tiny  # noqa: E402
from motet.models.qwen3_omni.thinker import Thinker  # noqa: E402
from motet.trainer.torch_ import TorchTrainer  # noqa: E402

EXPERT_WIDTH = 1280


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where to work; a temporary folder if not given")
    parser.add_argument("--experts", type=int, default=40, metavar="N", help="of a layer; 40 make 1 GB")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="saves of each kind; the median counts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        trainer = build(Path(folder) / "model", args.experts)
        found = asyncio.run(measure(trainer, Path(folder), args.repeats))
    seconds = {kind: statistics.median(times) for kind, times in found.items()}
    print(f"state                    {size_text(trainer.state_bytes)}")
    for kind, value in seconds.items():
        print(f"{kind:24} {value:6.2f} s blocked, {value / seconds['asynchronous']:5.1f} times the asynchronous")


def build(folder: Path, num_experts: int) -> TorchTrainer:
    """A trainer that has made a step, so that its optimizer has a state."""
    tiny.write_random(folder)
    config = Qwen3OmniMoeConfig.from_pretrained(folder)
    text = config.thinker_config.text_config
    text.num_experts, text.moe_intermediate_size = num_experts, EXPERT_WIDTH
    Qwen3OmniMoeForConditionalGeneration(config).save_pretrained(folder)
    policy = Thinker(folder)
    trainer = TorchTrainer(
        policy,
        FeatureStore(policy.encode, fingerprint=""),
        GRPO(),
        TrainerConfig(),
        reference=None,
        temperature=1.0,
        banned_ids=[],
        num_steps=1,
    )
    for parameter in policy.trained().values():
        parameter.grad = torch.randn_like(parameter)
    trainer._optimizer.step()
    trainer._optimizer.zero_grad()
    return trainer


async def measure(trainer: TorchTrainer, folder: Path, num_repeats: int) -> dict[str, list[float]]:
    """Seconds for which the caller of each save could do nothing else."""
    store = CheckpointStore(folder / "checkpoints", keep_last=1)
    found: dict[str, list[float]] = {"asynchronous": [], "synchronous": [], "torch.save": []}

    async def save(step: int, *, wait: bool) -> float:
        started = time.perf_counter()
        await store.save(step, state={}, write=trainer.save, num_bytes=trainer.state_bytes, metric=None)
        if wait:
            await store.settled()
        blocked = time.perf_counter() - started
        await store.settled()
        return blocked

    for i in range(num_repeats):
        found["asynchronous"].append(await save(2 * i + 1, wait=False))
        found["synchronous"].append(await save(2 * i + 2, wait=True))
        found["torch.save"].append(torch_save(trainer, folder / "state.pt"))
    shutil.rmtree(store.folder)
    return found


def torch_save(trainer: TorchTrainer, path: Path) -> float:
    started = time.perf_counter()
    torch.save(trainer._state(), path)
    sync(path)
    blocked = time.perf_counter() - started
    path.unlink()
    return blocked


if __name__ == "__main__":
    main()
