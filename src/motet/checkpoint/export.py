"""A Hugging Face folder out of trained weights and the base model that they began from.

What was trained replaces the tensors of the base; what was not (towers, talker, code2wav) is copied, and so are
config, tokenizer, processor and chat template. Tensors go to their files one at a time, and the folder gets its name
when it is whole and read back: an export that is killed leaves `.tmp-<name>` beside it, which the next one removes.

Memory holds no shard: it holds one trained tensor as the checkpoint keeps it, twice while torch reads it, beside the
one before. (1.6 GB is the largest of Qwen3-Omni-30B-A3B, all experts of a layer.) Comparing logits holds one model.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from motet.checkpoint import dcp, verify
from motet.checkpoint.dcp import WEIGHTS
from motet.checkpoint.disk import lacks_space, size_text, sync
from motet.checkpoint.folder import INDEX, SHARD_BYTES, NewTensorFolder, TensorFolder, cast
from motet.checkpoint.store import CheckpointStore
from motet.checkpoint.tensor_file import census_bytes
from motet.config.load import load
from motet.config.schema import LoraConfig
from motet.models import lora
from motet.models.spec import spec_of
from motet.weights.source import Census, ToReleased

COPIED = {".json", ".jinja", ".txt", ".model"}
"""Suffixes of what is copied from the base: config, generation config, tokenizer, processor, chat template."""


def export(
    run: Path, out: Path, step: int | Literal["best"] | None = None, *, dtype: str | None = None, read_back: bool = True
) -> Path:
    """Write a checkpoint of a run as a Hugging Face folder.

    Args:
        run: run folder; its `config.toml` names the base model.
        out: must be absent or empty.
        step: of the checkpoint; `"best"` by held-out accuracy; None for the latest.
        dtype: see `write_folder`.
        read_back: see `write_folder`.

    Returns: `out`.

    Raises:
        ValueError: there is no such checkpoint, it is damaged, or as `write_folder` does.
    """
    config = load(run / "config.toml")
    _check_vacant(out)
    store = CheckpointStore(run / "checkpoints", keep_last=config.checkpoint.keep_last)
    checkpoint = store.path(_choose(store, step))
    base = Path(config.model.path)
    adapters = config.trainer.lora
    weights = partial(trained, checkpoint) if adapters is None else partial(adapted, checkpoint, base, adapters)
    source = Released(weights, spec_of(base).to_released)
    write_folder(source, base=base, out=out, dtype=dtype, read_back=read_back)
    return out


def _check_vacant(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not empty: remove it or give another folder")


def _temporary(out: Path) -> Path:
    """Where the folder is written until it is whole; what a killed export left there is removed."""
    temporary = out.with_name(f".tmp-{out.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    return temporary


def _choose(store: CheckpointStore, step: int | Literal["best"] | None) -> int:
    if isinstance(step, int):
        if fault := store.fault(step):
            others = ", ".join(str(s) for s in store.steps() if s != step) or "none"
            raise ValueError(f"cannot export checkpoint {store.path(step)}: {fault}; other steps: {others}")
        return step
    chosen = store.best() if step == "best" else store.latest()
    if chosen is None:
        measured = " with a held-out accuracy" if step == "best" else ""
        steps = ", ".join(map(str, store.steps())) or "none"
        raise ValueError(f"{store.folder} holds no whole checkpoint{measured} to export; steps: {steps}")
    return chosen


def trained(checkpoint: Path) -> Iterator[tuple[str, Tensor]]:
    """The weights in a checkpoint, by their names in the module, in float32, one in memory at a time.

    It is called anew for each pass (writing, reading back twice).
    """
    for name, tensor in dcp.stream(checkpoint, lambda name: name.startswith(WEIGHTS)):
        yield name.removeprefix(WEIGHTS), tensor


def adapted(checkpoint: Path, base: Path, config: LoraConfig) -> Iterator[tuple[str, Tensor]]:
    """What the adapters in a checkpoint change: the base's tensors, by their names in the module, with them merged."""
    weights, spec = TensorFolder(base), spec_of(base)

    def read(name: str, tensor: Tensor) -> None:
        spec.from_released(name, tensor, weights.read)

    return lora.merged(trained(checkpoint), config, read)


def export_adapter(run: Path, out: Path, step: int | Literal["best"] | None = None) -> Path:
    """Write the adapters of a checkpoint as a folder that peft loads onto the base model of the run. Raises ValueError
    where the run trains no adapters, or as `export` does."""
    config = load(run / "config.toml")
    if config.trainer.lora is None:
        raise ValueError(f"{run}: trains no adapters (trainer.lora is unset); export it without --adapter")
    out = out.resolve()
    _check_vacant(out)
    store = CheckpointStore(run / "checkpoints", keep_last=config.checkpoint.keep_last)
    base = Path(config.model.path)
    targets = spec_of(base).lora_targets(config.trainer.lora)
    factors = dict(trained(store.path(_choose(store, step))))
    temporary = _temporary(out)
    lora.write_peft_folder(factors, config.trainer.lora, targets, temporary, base=base)
    for file in (*temporary.iterdir(), temporary):
        sync(file)
    temporary.replace(out)
    sync(out.parent)
    return out


@dataclass(frozen=True, slots=True)
class Released:
    """Tensors of a module under their released names; may be iterated again."""

    in_memory: Callable[[], Iterable[tuple[str, Tensor]]]
    to_released: ToReleased

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.in_memory():
            yield from self.to_released(name, tensor)


def write_folder(
    source: Iterable[tuple[str, Tensor]],
    *,
    base: Path,
    out: Path,
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    read_back: bool = True,
) -> None:
    """Write a Hugging Face folder, and read it back.

    Args:
        source: released names and tensors, such as a `WeightSource`; iterated again to read back.
        base: Hugging Face folder that gives every tensor `source` lacks, and all files but the weights.
        out: must be absent or empty.
        dtype: of all floating-point tensors, such as `bfloat16`; None: each as in the base.
        shard_bytes: most bytes of tensors in a file (a larger tensor gets a file of its own).
        read_back: compare every tensor on disk, and the logits of the model that transformers loads, with what they
            should be. Without it, only names, shapes and dtypes are compared.

    Raises:
        ValueError: `out` is taken, the base is incomplete, a tensor of `source` is not one of the base, the disk is
            full, or what is read back is not what was written.
    """
    out = out.resolve()
    _check_vacant(out)
    content = _content(source, base, dtype)
    if read_back:
        verify.loading(base)  # before anything is written
    temporary = _temporary(out)
    temporary.mkdir(parents=True)
    try:
        _write(content, base, temporary, dtype, shard_bytes)
        verify.names(temporary, content.census)
        if read_back:
            verify.tensors(temporary, content)
            verify.loading(temporary)
            verify.logits(temporary, base=base, source=source, census=content.census)
        temporary.replace(out)
        sync(out.parent)
    except OSError as error:
        if not lacks_space(error):
            raise
        raise ValueError(f"{out.parent}: its disk was full before all was written; free some space") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The tensors of the new folder: the source's, then those of the base that it lacks. May be iterated again."""

    source: Iterable[tuple[str, Tensor]]
    base: TensorFolder
    census: Census
    twins: dict[str, list[str]]
    """Second names under which the base keeps a tensor too."""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        given = set()
        for name, tensor in self.source:
            if name not in self.census or tuple(tensor.shape) != self.census[name][0]:
                raise ValueError(
                    f"the base model has no tensor {name} of shape {list(tensor.shape)}: it is another model"
                )
            assert name not in given, f"{name} comes twice"
            for place in (name, *self.twins.get(name, ())):
                given.add(place)
                yield place, tensor.to(self.census[place][1])
        for name, (_, dtype) in self.census.items():
            if name not in given:
                yield name, self.base.read(name).to(dtype)


def _content(source: Iterable[tuple[str, Tensor]], base: Path, dtype: str | None) -> Content:
    tensors = TensorFolder(base)
    census = cast(tensors.census(), getattr(torch, dtype) if dtype else None)
    twins: dict[str, list[str]] = {}
    for second, name in spec_of(base).tied(json.loads((base / "config.json").read_text())).items():
        # transformers ties what the config says and the values do not deny
        if {second, name} <= census.keys() and torch.equal(tensors.read(second), tensors.read(name)):
            twins.setdefault(name, []).append(second)
    return Content(source=source, base=tensors, census=census, twins=twins)


def _write(content: Content, base: Path, folder: Path, dtype: str | None, shard_bytes: int) -> None:
    """All files, forced to disk."""
    needed, free = census_bytes(content.census), shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(f"{folder.parent}: its disk has {size_text(free)} of {size_text(needed)}; free some space")
    weights = NewTensorFolder(folder, content.census, shard_bytes=shard_bytes)
    for name, tensor in content:
        weights.write(name, tensor)
    weights.finish()
    for file in base.iterdir():
        if file.is_file() and file.suffix in COPIED and file.name != INDEX:
            shutil.copyfile(file, folder / file.name)
    if dtype is not None:
        config = json.loads((base / "config.json").read_text())
        _set_dtype(config, dtype)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file in (*folder.iterdir(), folder):
        sync(file)


def _set_dtype(config: dict[str, Any], dtype: str) -> None:
    for key, value in config.items():
        if isinstance(value, dict):
            _set_dtype(value, dtype)
        elif key in ("dtype", "torch_dtype") and value is not None:
            config[key] = dtype
