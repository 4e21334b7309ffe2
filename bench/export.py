"""What an export costs: peak memory against the size of a shard, and seconds against a copy of the same files.

    python bench/export.py [--shard-bytes 250e6] [--experts 128] [FOLDER]

The model has the shape of the tiny one with more and wider experts: about 1 GB in float32. Every export runs in a
process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from motet import compat
from motet.checkpoint.disk import sync

compat.torchvision()  # before transformers is imported

EXPERT_WIDTH = 1280


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where to work; a temporary folder if not given")
    parser.add_argument("--shard-bytes", type=float, default=250e6, metavar="N", help="most bytes in a file")
    parser.add_argument("--experts", type=int, default=128, metavar="N", help="of a layer; 128 make 1 GB")
    parser.add_argument("--measure", choices=("write", "verify"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.folder, int(args.shard_bytes), read_back=args.measure == "verify")))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        compare(Path(folder), args.experts, args.shard_bytes)


def compare(folder: Path, num_experts: int, shard_bytes: float) -> None:
    build(folder, num_experts)
    found = {}
    for what in ("write", "verify"):
        command = [sys.executable, __file__, str(folder), "--shard-bytes", str(shard_bytes), "--measure", what]
        found[what] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        num_shards = len(list((folder / "exported").glob("*.safetensors")))
        shutil.rmtree(folder / "exported")
    started = time.perf_counter()
    shutil.copytree(folder / "base", folder / "copy")
    for file in (folder / "copy").iterdir():
        sync(file)
    copying = time.perf_counter() - started
    peaks = {what: f"{mb(f['peak'])} ({f['peak'] / shard_bytes:.2f} shards)" for what, f in found.items()}
    size = sum(file.stat().st_size for file in (folder / "base").iterdir())
    print(f"model        {mb(size)} in {num_shards} files of at most {mb(shard_bytes)}")
    print(f"largest      {mb(largest(folder / 'checkpoint'))}, of the tensors in the checkpoint")
    print(f"peak memory  {peaks['write']} to write")
    print(f"             {peaks['verify']} with verification, which loads the model and maps its files")
    seconds = {what: f"{f['seconds']:.1f}" for what, f in found.items()}
    print(f"seconds      {seconds['write']} to write, {seconds['verify']} with verification, {copying:.1f} for a copy")


def mb(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.0f} MB"


def build(folder: Path, num_experts: int) -> None:
    """A base model and a checkpoint of a training step on it."""
    import torch
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

    from motet.checkpoint import dcp
    from motet.models.qwen3_omni import tiny
    from motet.models.spec import spec_of

    tiny.write_random(folder / "base")
    config = Qwen3OmniMoeConfig.from_pretrained(folder / "base")
    text = config.thinker_config.text_config
    text.num_experts, text.moe_intermediate_size = num_experts, EXPERT_WIDTH
    Qwen3OmniMoeForConditionalGeneration(config).save_pretrained(folder / "base")
    policy = spec_of(folder / "base").policy(folder / "base", torch.float32, "cpu")
    weights = {dcp.WEIGHTS + name: 1.01 * parameter.detach() for name, parameter in policy.trained().items()}
    (folder / "checkpoint").mkdir()

    async def write() -> None:
        await dcp.begin(weights, folder / "checkpoint")

    asyncio.run(write())


def largest(checkpoint: Path) -> int:
    from motet.checkpoint import dcp
    from motet.checkpoint.tensor_file import tensor_bytes

    return max(tensor_bytes(*entry) for entry in dcp.census(checkpoint).values())


def measure(folder: Path, shard_bytes: int, *, read_back: bool) -> dict[str, float]:
    """Seconds of an export, and by how many bytes the memory of this process grew at most."""
    from motet.checkpoint.export import Released, trained, write_folder
    from motet.models.qwen3_omni.names import to_released

    source = Released(lambda: trained(folder / "checkpoint"), to_released)
    next(iter(source))  # what is imported late is not what an export holds
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, started = status("VmRSS"), time.perf_counter()
    write_folder(source, base=folder / "base", out=folder / "exported", shard_bytes=shard_bytes, read_back=read_back)
    return {"seconds": time.perf_counter() - started, "peak": status("VmHWM") - before}


def status(key: str) -> int:
    """Of this process, in bytes, on Linux."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main()
