"""Export, on a real checkpoint: what transformers loads is what was trained, and all the rest is the base's."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from motet.checkpoint.export import TRAINED, TensorFolder, _shards, export, write_folder
from motet.checkpoint.store import CheckpointStore
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

        async def write(path: Path, weights: dict[str, Tensor] = weights) -> None:
            save_file(weights, path / TRAINED)

        asyncio.run(store.save(step, state={}, write=write, metric=metric))
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
    out = export(run, tmp_path / "out")
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
        assert torch.equal(norm(export(run, tmp_path / str(i), step)), expected)


def test_a_damaged_checkpoint_is_not_exported(run: Path, module: Any, tmp_path: Path) -> None:
    (run / "checkpoints" / "step-000020" / TRAINED).unlink()
    with pytest.raises(ValueError, match=r"^cannot export checkpoint .*step-000020: weights.safetensors is missing$"):
        export(run, tmp_path / "out", 20)
    with pytest.raises(ValueError, match=r"step-000030: there is no such folder$"):
        export(run, tmp_path / "out", 30)
    assert torch.equal(norm(export(run, tmp_path / "out")), module.model.norm.weight + 1)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ValueError, match="holds no whole checkpoint to export"):
        export(run, tmp_path / "none")
    with pytest.raises(ValueError, match="holds no whole checkpoint with a held-out accuracy to export"):
        export(run, tmp_path / "none", "best")


def test_shards_and_their_index(base: Path, module: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = WeightSource(trained(module), to_released)
    write_folder(source, base=base, out=out, shard_bytes=2**21)
    files = sorted(path.name for path in out.glob("*.safetensors"))
    count = len(files)
    assert count >= 4
    assert files == [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    contents = {file: load_file(out / file) for file in files}
    sizes = [sum(tensor.nbytes for tensor in tensors.values()) for tensors in contents.values()]
    assert max(sizes) <= 2**21
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(sizes)
    assert index["weight_map"] == {name: file for file, tensors in contents.items() for name in tensors}
    assert torch.equal(logits(load_thinker(out)), logits(module))
    again = tmp_path / "again"  # a sharded folder serves as a base too
    write_folder([], base=out, out=again)
    assert sorted(path.name for path in again.iterdir()) == sorted(
        [*(path.name for path in base.iterdir() if path.name != "README.md")]
    )


@pytest.mark.parametrize(
    ("limit", "expected"), [(24, [["a", "b"], ["c"]]), (23, [["a"], ["b"], ["c"]]), (84, [["a", "b", "c"]])]
)
def test_a_shard_holds_up_to_its_limit(limit: int, expected: list[list[str]]) -> None:
    stream = [("a", torch.zeros(3)), ("b", torch.zeros(3)), ("c", torch.zeros(15))]  # 12, 12 and 60 bytes
    assert [list(shard) for shard in _shards(stream, limit)] == expected


def test_weights_are_cast_to_the_dtype_of_the_base(base: Path, module: Any, tmp_path: Path) -> None:
    half, out = tmp_path / "half", tmp_path / "out"
    write_folder([], base=base, out=half, dtype="bfloat16")
    assert {dtype for _, dtype in TensorFolder(half).census().values()} == {torch.bfloat16}
    config = json.loads((half / "config.json").read_text())
    assert config["dtype"] == config["thinker_config"]["dtype"] == "bfloat16"
    write_folder(WeightSource(trained(module), to_released), base=half, out=out)
    assert torch.equal(norm(out), module.model.norm.weight.bfloat16())


def test_a_taken_folder_is_refused_and_left_alone(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    export(run, out)  # empty: welcome
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


def test_an_incomplete_base_is_named(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"empty/model\.safetensors is missing: give the complete"):
        TensorFolder(tmp_path / "empty")
    sharded = tmp_path / "sharded"
    write_folder([], base=base, out=sharded, shard_bytes=2**21)
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    last = max(index["weight_map"].values())
    moved = index | {"weight_map": index["weight_map"] | {"talker.codec.weight": last}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(moved))
    with pytest.raises(ValueError, match=r"index\.json and the files disagree, first about talker\.codec\.weight"):
        TensorFolder(sharded)
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    (sharded / last).unlink()
    with pytest.raises(ValueError, match=rf"{last} is missing"):
        TensorFolder(sharded)
