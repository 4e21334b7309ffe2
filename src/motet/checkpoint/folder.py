"""The weights of a Hugging Face folder, in one file or many with an index, a tensor at a time."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from motet.checkpoint import tensor_file
from motet.checkpoint.tensor_file import census_bytes, tensor_bytes
from motet.weights.source import Census

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD_BYTES = 5 * 10**9
"""Of tensors in a file, as in released models."""


class TensorFolder:
    """A folder to read. Opening it reads headers alone.

    Raises:
        ValueError: a file is missing or cut short, or the index and the files disagree.
    """

    def __init__(self, path: Path) -> None:
        index = path / INDEX
        weight_map = _weight_map(index) if index.exists() else None
        files = sorted(set(weight_map.values())) if weight_map is not None else [SINGLE]
        places = {file: tensor_file.places(path / file) for file in files}
        self.file_of = {name: file for file, held in places.items() for name in held}
        if weight_map is not None:
            held = {(name, file) for file in files for name in places[file]}
            if odd := sorted(held ^ weight_map.items()):
                name, file = odd[0]
                raise ValueError(f"{index} and the files disagree, first about {name} in {file}: fetch them anew")
        self._path = path
        self._places = {name: place for held in places.values() for name, place in held.items()}

    def census(self) -> Census:
        return {name: (place.shape, place.dtype) for name, place in self._places.items()}

    def read(self, name: str) -> Tensor:
        return tensor_file.read(self._path / self.file_of[name], self._places[name])


def _weight_map(index: Path) -> dict[str, str]:
    try:
        return dict(json.loads(index.read_text())["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{index} cannot be read: fetch it anew") from error


class NewTensorFolder:
    """A folder being written. Its files and index are laid out at once; tensors come in any order.

    Args:
        path: the folder, without weights yet.
        census: what it will hold.
        shard_bytes: most bytes of tensors in a file; a larger tensor gets a file of its own.
    """

    def __init__(self, path: Path, census: Census, *, shard_bytes: int = SHARD_BYTES) -> None:
        shards = split(census, shard_bytes)
        count = len(shards)
        names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)] if count > 1 else [SINGLE]
        self._places = {
            name: (path / file, place)
            for file, shard in zip(names, shards, strict=True)
            for name, place in tensor_file.lay_out(path / file, shard).items()
        }
        self._missing = set(census)
        if count > 1:
            weight_map = {name: file.name for name, (file, _) in sorted(self._places.items())}
            index = {"metadata": {"total_size": census_bytes(census)}, "weight_map": weight_map}
            (path / INDEX).write_text(json.dumps(index, indent=2) + "\n")

    def write(self, name: str, tensor: Tensor) -> None:
        """Put a tensor of the census in its place; each comes once."""
        self._missing.remove(name)
        file, place = self._places[name]
        tensor_file.write(file, place, tensor)

    def finish(self) -> None:
        """Check that every tensor came: the place of one that did not holds zeros."""
        assert not self._missing, f"never written: {sorted(self._missing)[0]} and {len(self._missing) - 1} more"


def split(census: Census, shard_bytes: int) -> list[Census]:
    """Which tensors share a file: in the order of their names, numbers by value, and a layer in one file if it fits."""
    shards: list[Census] = [{}]
    size = 0

    def room_for(num_bytes: int) -> None:
        nonlocal size
        if shards[-1] and size + num_bytes > shard_bytes:
            shards.append({})
            size = 0

    for _, group in groupby(sorted(census, key=_by_number), key=_layer):
        layer = {name: tensor_bytes(*census[name]) for name in group}
        if sum(layer.values()) <= shard_bytes:
            room_for(sum(layer.values()))
        for name, num_bytes in layer.items():
            room_for(num_bytes)
            shards[-1][name] = census[name]
            size += num_bytes
    return shards


def _by_number(name: str) -> list[str | int]:
    """Sorts `layers.2.` before `layers.10.`."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", name))]


def _layer(name: str) -> str:
    """`a.layers.3.` of `a.layers.3.mlp.experts.7.w`; the whole name where nothing in it is numbered."""
    found = re.match(r".*?\.\d+\.", name)
    return found.group() if found else name


def cast(census: Census, dtype: torch.dtype | None) -> Census:
    """The census with all floating-point tensors in another dtype; None changes nothing."""
    if dtype is None:
        return census
    return {name: (shape, dtype if old.is_floating_point else old) for name, (shape, old) in census.items()}
