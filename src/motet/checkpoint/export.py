"""A Hugging Face folder out of trained weights and the base model that they began from.

What was trained replaces the tensors of the base; what was not (towers, talker, code2wav) is copied, and so are
config, tokenizer, processor and chat template. Tensors stream into shards, so memory holds one shard, and the folder
gets its name when it is whole and verified.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from motet import compat
from motet.checkpoint.store import CheckpointStore
from motet.config.load import load
from motet.models.spec import spec_of
from motet.weights.source import Census, WeightSource, compare

TRAINED = "weights.safetensors"
"""File of a checkpoint: the parameters that learn, by their names in memory, in float32."""
INDEX = "model.safetensors.index.json"
COPIED = {".json", ".jinja", ".txt", ".model"}
"""Suffixes of what is copied from the base: config, generation config, tokenizer, processor, chat template."""


class TensorFolder:
    """The weights of a Hugging Face folder, in one file or many. Tensors are mapped, not read, until used.

    Raises:
        ValueError: a file is missing, or the index and the files disagree.
    """

    def __init__(self, path: Path) -> None:
        index = path / INDEX
        if index.exists():
            file_of: dict[str, str] = json.loads(index.read_text())["weight_map"]
        else:
            file_of = dict.fromkeys(self._open(path / "model.safetensors").keys(), "model.safetensors")
        files = {file: self._open(path / file) for file in sorted(set(file_of.values()))}
        held = {(name, file) for file, handle in files.items() for name in handle.keys()}  # noqa: SIM118
        if odd := sorted(held ^ set(file_of.items())):
            raise ValueError(f"{index} and the files disagree, first about {odd[0][0]} in {odd[0][1]}: fetch them anew")
        self._handles = {name: files[file] for name, file in file_of.items()}

    @staticmethod
    def _open(file: Path) -> Any:
        if not file.is_file():
            raise ValueError(f"{file} is missing: give the complete Hugging Face folder of the model")
        return safe_open(file, framework="pt")

    def read(self, name: str) -> Tensor:
        return self._handles[name].get_tensor(name)

    def census(self) -> Census:
        tensors = {name: self.read(name) for name in self._handles}
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def export(run: Path, out: Path, step: int | Literal["best"] | None = None) -> Path:
    """Write a checkpoint of a run as a Hugging Face folder, in the dtype of the base model.

    Args:
        run: run folder; its `config.toml` names the base model.
        out: must be absent or empty.
        step: of the checkpoint; `"best"` by held-out accuracy; None for the latest.

    Returns: `out`.

    Raises:
        ValueError: there is no such checkpoint, it is damaged, `out` is taken, or base and weights do not match.
    """
    config = load(run / "config.toml")
    store = CheckpointStore(run / "checkpoints", keep_last=config.checkpoint.keep_last)
    with safe_open(store.path(_choose(store, step)) / TRAINED, framework="pt") as file:
        parameters = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    base = Path(config.model.path)
    write_folder(WeightSource(parameters, spec_of(base).to_released), base=base, out=out)
    return out


def _choose(store: CheckpointStore, step: int | Literal["best"] | None) -> int:
    if isinstance(step, int):
        if fault := store.fault(step):
            raise ValueError(f"cannot export checkpoint {store.path(step)}: {fault}")
        return step
    chosen = store.best() if step == "best" else store.latest()
    if chosen is None:
        measured = " with a held-out accuracy" if step == "best" else ""
        raise ValueError(f"{store.folder} holds no whole checkpoint{measured} to export")
    return chosen


def write_folder(
    source: Iterable[tuple[str, Tensor]],
    *,
    base: Path,
    out: Path,
    dtype: str | None = None,
    shard_bytes: int = 5 * 2**30,
) -> None:
    """Write and verify a Hugging Face folder.

    Args:
        source: released names and tensors, such as a `WeightSource`.
        base: Hugging Face folder that gives every tensor `source` lacks, and all files but the weights.
        out: must be absent or empty.
        dtype: of all floating-point tensors, such as `bfloat16`; None: each as in the base.
        shard_bytes: most bytes of tensors in a file (a larger tensor gets a file of its own).

    Raises:
        ValueError: `out` is taken, the base is incomplete, or a tensor of `source` is not one of the base.
    """
    out = out.resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not empty: remove it or give another folder")
    tensors = TensorFolder(base)
    expected = tensors.census()
    if dtype is not None:
        to = getattr(torch, dtype)
        expected = {name: (shape, to if old.is_floating_point else old) for name, (shape, old) in expected.items()}
    temporary = out.parent / f".tmp-{out.name}-{os.getpid()}"
    temporary.mkdir(parents=True)
    try:
        _write_shards(_merge(source, tensors, expected), temporary, shard_bytes)
        _copy_files(base, temporary, dtype)
        _verify(temporary, expected)
        temporary.replace(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _merge(source: Iterable[tuple[str, Tensor]], base: TensorFolder, expected: Census) -> Iterator[tuple[str, Tensor]]:
    """The source's tensors, then those of the base that it lacks; as contiguous copies in the expected dtype."""
    given = set()
    for name, tensor in source:
        if name not in expected or tuple(tensor.shape) != expected[name][0]:
            raise ValueError(f"the base model has no tensor {name} of shape {list(tensor.shape)}: it is another model")
        assert name not in given, f"{name} comes twice"
        given.add(name)
        yield name, _packed(tensor, expected[name][1])
    for name in expected:
        if name not in given:
            yield name, _packed(base.read(name), expected[name][1])


def _packed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to("cpu", dtype, copy=True, memory_format=torch.contiguous_format)


def _write_shards(stream: Iterable[tuple[str, Tensor]], folder: Path, shard_bytes: int) -> None:
    """How many shards there are, which their names say, is known at the end: they are named then."""
    shards: list[tuple[Path, list[str]]] = []
    total_size = 0
    for shard in _shards(stream, shard_bytes):
        file = folder / f"shard-{len(shards)}.safetensors"
        save_file(shard, file, metadata={"format": "pt"})
        shards.append((file, list(shard)))
        total_size += sum(tensor.nbytes for tensor in shard.values())
    if len(shards) == 1:
        shards[0][0].rename(folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for i, (file, names) in enumerate(shards, 1):
        final = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        file.rename(folder / final)
        weight_map |= dict.fromkeys(names, final)
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _shards(stream: Iterable[tuple[str, Tensor]], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in stream:
        if shard and size + tensor.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def _copy_files(base: Path, folder: Path, dtype: str | None) -> None:
    for file in base.iterdir():
        if file.is_file() and file.suffix in COPIED and file.name != INDEX:
            shutil.copyfile(file, folder / file.name)
    for file in folder.glob("*.safetensors"):  # safetensors writes files that only their owner may read
        shutil.copymode(base / "config.json", file)
    if dtype is not None:
        config = json.loads((base / "config.json").read_text())
        _set_dtype(config, dtype)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _set_dtype(config: dict[str, Any], dtype: str) -> None:
    for key, value in config.items():
        if isinstance(value, dict):
            _set_dtype(value, dtype)
        elif key in ("dtype", "torch_dtype") and value is not None:
            config[key] = dtype


def _verify(folder: Path, expected: Census) -> None:
    """Read back what others will read: the tensors, the config and the processor."""
    compare(expected, TensorFolder(folder).census())
    compat.torchvision()
    from transformers import AutoConfig, AutoProcessor

    AutoConfig.from_pretrained(folder)
    AutoProcessor.from_pretrained(folder)
