"""Export, on a real checkpoint: what transformers loads is what was trained, and all the rest is the base's."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from motet.checkpoint import dcp
from motet.checkpoint.export import Released, export, write_folder
from motet.checkpoint.export import trained as module_tensors
from motet.checkpoint.folder import TensorFolder
from motet.checkpoint.store import CheckpointStore
from motet.checkpoint.tensor_file import lay_out
from motet.config.load import dump
from motet.config.schema import RunConfig
from motet.models.qwen3_omni.names import to_released
from motet.weights.source import WeightSource

TOKENS = torch.tensor([[5, 9, 2, 77, 140, 3, 3, 60]])


def load_thinker(folder: Path) -> Any:
    from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

    return Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(folder).eval()


def trained(module: torch.nn.Module) -> dict[str, Tensor]:
    towers = ("visual.", "audio_tower.")
    return {name: p.detach() for name, p in module.named_parameters() if not name.startswith(towers)}


@torch.no_grad()
def perturb(module: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in trained(module).values():
        parameter += 0.02 * torch.randn(parameter.shape, generator=generator)


@torch.no_grad()
def logits(module: Any) -> Tensor:
    return module(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS)).logits


@pytest.fixture(scope="module")
def base(random_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with a talker tensor, which the Thinker does not hold, and files that must stay behind."""
    folder = tmp_path_factory.mktemp("base") / "model"
    shutil.copytree(random_checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"talker.codec.weight": torch.arange(6.0)}, folder / "model.safetensors", {"format": "pt"})
    (folder / "README.md").write_text("about the base")
    return folder


@pytest.fixture(scope="module")
def module(base: Path) -> Any:
    module = load_thinker(base)
    perturb(module, seed=1)
    return module


@pytest.fixture
def run(base: Path, module: Any, tmp_path: Path) -> Path:
    """A run with checkpoints 10 (best, other weights) and 20 (latest, the weights of `module`)."""
    folder = tmp_path / "run"
    folder.mkdir()
    settings = {"run_dir": str(folder), "model": {"path": str(base)}, "data": {"train": "train.jsonl"}}
    (folder / "config.toml").write_text(dump(RunConfig.model_validate(settings)))
    store = CheckpointStore(folder / "checkpoints", keep_last=2)
    for step, metric, shift in [(10, 0.9, 1.0), (20, 0.5, 0.0)]:
        weights = {name: p + shift for name, p in trained(module).items()}

        async def save(step: int, metric: float, weights: dict[str, Tensor]) -> None:
            async def write(path: Path) -> Awaitable[None]:
                return dcp.begin({f"weights/{name}": tensor for name, tensor in weights.items()}, path)

            await store.save(step, state={}, write=write, num_bytes=0, metric=metric)
            await store.settled()

        asyncio.run(save(step, metric, weights))
    return folder


def norm(folder: Path) -> Tensor:
    return TensorFolder(folder).read("thinker.model.norm.weight")


def test_transformers_loads_exactly_what_was_trained(run: Path, base: Path, module: Any, tmp_path: Path) -> None:
    out = tmp_path / "new" / "exported"
    assert export(run, out) == out
    assert torch.equal(logits(load_thinker(out)), logits(module))
    assert not torch.equal(logits(load_thinker(base)), logits(module))
    assert [path.name for path in out.parent.iterdir()] == ["exported"]


def test_what_was_not_trained_is_the_base_s(run: Path, base: Path, tmp_path: Path) -> None:
    out = export(run, tmp_path / "out", read_back=False)
    old, new = TensorFolder(base), TensorFolder(out)
    assert new.census() == old.census()
    kept = [n for n in old.census() if n.startswith(("thinker.visual.", "thinker.audio_tower.", "talker."))]
    assert "talker.codec.weight" in kept and len(kept) > 90
    assert all(torch.equal(new.read(name), old.read(name)) for name in kept)
    copied = {path.name for path in base.iterdir()} - {"README.md", "model.safetensors"}
    assert {path.name for path in out.iterdir()} == copied | {"model.safetensors"}
    assert all((out / name).read_bytes() == (base / name).read_bytes() for name in copied)
    assert (out / "model.safetensors").stat().st_mode == (base / "config.json").stat().st_mode


def test_step_latest_and_best(run: Path, module: Any, tmp_path: Path) -> None:
    last = module.model.norm.weight
    for i, (step, expected) in enumerate([(None, last), (20, last), (10, last + 1), ("best", last + 1)]):
        assert torch.equal(norm(export(run, tmp_path / str(i), step, read_back=False)), expected)


def test_a_damaged_checkpoint_is_not_exported(run: Path, module: Any, tmp_path: Path) -> None:
    (run / "checkpoints" / "step-000020" / ".metadata").unlink()
    with pytest.raises(
        ValueError, match=r"^cannot export checkpoint .*-000020: .metadata is missing; other steps: 10$"
    ):
        export(run, tmp_path / "out", 20)
    with pytest.raises(ValueError, match=r"step-000030: there is no such folder; other steps: 10, 20$"):
        export(run, tmp_path / "out", 30)
    assert torch.equal(norm(export(run, tmp_path / "out", read_back=False)), module.model.norm.weight + 1)
    (run / "checkpoints" / "step-000010" / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"holds no whole checkpoint to export; steps: 10, 20$"):
        export(run, tmp_path / "none")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ValueError, match=r"holds no whole checkpoint with a held-out accuracy to export; steps: none$"):
        export(run, tmp_path / "none", "best")


def test_shards(base: Path, module: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = WeightSource(trained(module), to_released)
    write_folder(source, base=base, out=out, shard_bytes=2**21)
    shards = [load_file(out / path.name) for path in sorted(out.glob("*.safetensors"))]
    assert len(shards) >= 4
    assert max(sum(tensor.nbytes for tensor in shard.values()) for shard in shards) <= 2**21
    assert torch.equal(logits(load_thinker(out)), logits(module))
    again = tmp_path / "again"  # a sharded folder serves as a base too
    write_folder([], base=out, out=again, read_back=False)
    assert sorted(path.name for path in again.iterdir()) == sorted(
        [*(path.name for path in base.iterdir() if path.name != "README.md")]
    )


def test_weights_are_cast_to_the_dtype_of_the_base(base: Path, module: Any, tmp_path: Path) -> None:
    half, out = tmp_path / "half", tmp_path / "out"
    write_folder([], base=base, out=half, dtype="bfloat16", read_back=False)
    assert {dtype for _, dtype in TensorFolder(half).census().values()} == {torch.bfloat16}
    config = json.loads((half / "config.json").read_text())
    assert config["dtype"] == config["thinker_config"]["dtype"] == "bfloat16"
    write_folder(WeightSource(trained(module), to_released), base=half, out=out, read_back=False)
    assert torch.equal(norm(out), module.model.norm.weight.bfloat16())


def test_a_taken_folder_is_refused_and_left_alone(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    export(run, out, read_back=False)  # empty: welcome
    before = sorted(out.iterdir())
    with pytest.raises(ValueError, match=r"out exists and is not empty: remove it or give another folder$"):
        export(run, out)
    assert sorted(out.iterdir()) == before
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="exists and is not empty"):
        export(run, file)


@pytest.mark.parametrize(
    ("name", "shape"), [("thinker.lm_head.bias", (4,)), ("thinker.model.norm.weight", (4,))], ids=["name", "shape"]
)
def test_weights_of_another_model_leave_nothing_behind(
    base: Path, tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=rf"^the base model has no tensor {name} of shape \[4\]"):
        write_folder([(name, torch.zeros(shape))], base=base, out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_base_that_transformers_cannot_load_is_refused_before_anything_is_written(base: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(base, bare)
    (bare / "preprocessor_config.json").unlink(missing_ok=True)
    (bare / "processor_config.json").unlink(missing_ok=True)
    (bare / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"bare: AutoProcessor does not load it: ") as caught:
        write_folder([], base=bare, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]


def test_the_second_name_of_a_tied_tensor_follows(base: Path, tmp_path: Path) -> None:
    embed, head = "thinker.model.embed_tokens.weight", "thinker.lm_head.weight"
    tied = tmp_path / "tied"
    shutil.copytree(base, tied)
    config = json.loads((tied / "config.json").read_text())
    config["thinker_config"]["tie_word_embeddings"] = True
    (tied / "config.json").write_text(json.dumps(config))
    tensors = load_file(tied / "model.safetensors")
    for name, ties in (("equal", True), ("absent", True), ("other", False)):
        changed = dict(tensors)
        if name == "equal":
            changed[head] = tensors[embed].clone()
        elif name == "absent":
            del changed[head]
        save_file(changed, tied / "model.safetensors", {"format": "pt"})
        module = load_thinker(tied)
        assert (module.lm_head.weight is module.model.embed_tokens.weight) == ties
        perturb(module, seed=2)
        out = tmp_path / name
        write_folder(WeightSource(trained(module), to_released), base=tied, out=out, read_back=name == "equal")
        folder = TensorFolder(out)
        assert folder.census() == TensorFolder(tied).census()
        assert torch.equal(folder.read(embed), module.model.embed_tokens.weight)
        assert (head in folder.census()) == (name != "absent")
        assert name == "absent" or torch.equal(folder.read(head), module.lm_head.weight)


def test_a_full_disk_is_one_line_and_leaves_nothing(base: Path, tmp_path: Path) -> None:
    def source() -> Iterator[tuple[str, Tensor]]:
        yield "thinker.model.norm.weight", torch.zeros(128)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ValueError, match=rf"^{tmp_path}: its disk was full before all was written; free some space$"):
        write_folder(source(), base=base, out=tmp_path / "out", read_back=False)
    assert list(tmp_path.iterdir()) == []
    huge = tmp_path / "huge"
    shutil.copytree(base, huge)
    (huge / "model.safetensors").unlink()
    lay_out(huge / "model.safetensors", {"talker.w": ((10**12,), torch.float32)})  # zeros that take no space
    with pytest.raises(ValueError, match=rf"^{tmp_path}: its disk has .* GB of 4000\.0 GB; free some space$"):
        write_folder([], base=huge, out=tmp_path / "out", read_back=False)
    assert [path.name for path in tmp_path.iterdir()] == ["huge"]


def test_bfloat16_is_exported_as_the_trainer_rounds_it(
    random_checkpoint: Path, make_trainer: Any, tmp_path: Path
) -> None:
    """The trainer computes in bfloat16 on float32 masters; what it saves are the masters."""
    trainer = make_trainer(dtype="bfloat16")
    generator = torch.Generator().manual_seed(3)
    for master in trainer._masters.parameters.values():
        master.data += 0.02 * torch.randn(master.shape, generator=generator)
    trainer._masters.publish()
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    asyncio.run(_written(trainer.save, checkpoint))
    out = tmp_path / "out"
    source = Released(lambda: module_tensors(checkpoint), to_released)
    write_folder(source, base=random_checkpoint, out=out, dtype="bfloat16")
    written = TensorFolder(out)
    live = dict(WeightSource(trainer._policy.trained(), to_released))
    assert len(live) > 100
    assert all(torch.equal(written.read(name), tensor) for name, tensor in live.items())


async def _written(save: Any, folder: Path) -> None:
    await (await save(folder))


STREAMED = """
import json, os, signal, sys
from pathlib import Path
import torch
from motet.checkpoint import verify
from motet.checkpoint.export import Released, _content, trained, write_folder
from motet.models.qwen3_omni.names import to_released

def status(key):
    line = next(l for l in open("/proc/self/status") if l.startswith(key))
    return 1024 * int(line.split()[1])

base, checkpoint, out, killed = map(Path, sys.argv[1:])
source = Released(lambda: trained(checkpoint), to_released)
for _ in source:  # imports, buffers
    break
open("/proc/self/clear_refs", "w").write("5")  # VmHWM, the peak, begins anew
before = status("VmRSS")
write_folder(source, base=base, out=out, shard_bytes=SHARD_BYTES, read_back=False)
verify.tensors(out, _content(source, base, None))
print(status("VmHWM") - before)

def cut_short():
    for i, pair in enumerate(source):
        if i == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        yield pair

sys.stdout.flush()
write_folder(cut_short(), base=base, out=killed, read_back=False)
"""


def test_memory_holds_no_shard_and_a_killed_export_leaves_no_folder(random_checkpoint: Path, tmp_path: Path) -> None:
    """A model of 420 MB in shards of 40 MB; its largest trained tensor has 15.7 MB."""
    num_layers, experts, width, hidden = 16, 8, 320, 768
    shard_bytes, largest = 40 * 10**6, experts * 2 * width * hidden * 4
    weights = {}
    for i in range(num_layers):
        shapes = {"gate_up_proj": (experts, 2 * width, hidden), "down_proj": (experts, hidden, width)}
        for name, shape in shapes.items():
            weights[f"model.layers.{i}.mlp.experts.{name}"] = torch.full(shape, float(i))
    base, out, killed, checkpoint = (tmp_path / name for name in ("base", "out", "killed", "checkpoint"))
    base.mkdir()
    shutil.copy(random_checkpoint / "config.json", base)
    frozen = {f"talker.{i}.w": torch.full((1000, 1000), -float(i)) for i in range(10)}
    released = dict(WeightSource(weights, to_released))
    save_file({name: tensor * 0 for name, tensor in released.items()} | frozen, base / "model.safetensors")
    asyncio.run(_begun(weights, checkpoint))
    script = STREAMED.replace("SHARD_BYTES", str(shard_bytes))
    command = [sys.executable, "-c", script, *map(str, (base, checkpoint, out, killed))]
    # What malloc gets from the system goes back to it at once where it is over 32 MB. Here tensors are smaller.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(list(out.glob("*.safetensors"))) == 17  # one for each layer and one for the talker
    # A tensor twice while torch reads it, beside the one before.
    assert largest < int(done.stdout) < min(3 * largest, 2 * shard_bytes)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-killed", "base", "checkpoint", "out"]
    write_folder([], base=base, out=killed, read_back=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "checkpoint", "killed", "out"]


async def _begun(weights: dict[str, Tensor], folder: Path) -> None:
    folder.mkdir()
    await dcp.begin({f"weights/{name}": tensor for name, tensor in weights.items()}, folder)
