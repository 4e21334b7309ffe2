from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from motet.checkpoint.folder import INDEX, NewTensorFolder, TensorFolder, cast, split

TENSORS = {f"layers.{i}.{name}": torch.full((n,), float(i)) for i in (0, 2, 10) for name, n in (("a", 2), ("b", 1))}
TENSORS |= {"head": torch.ones(2), "embed": torch.zeros(5)}
"""Layers of 12 bytes."""


def fill(folder: Path, tensors: dict[str, Tensor], shard_bytes: int) -> None:
    new = NewTensorFolder(folder, {n: (tuple(t.shape), t.dtype) for n, t in tensors.items()}, shard_bytes=shard_bytes)
    for name in sorted(tensors, reverse=True):
        new.write(name, tensors[name])
    new.finish()


def names(shard_bytes: int) -> list[list[str]]:
    return [list(shard) for shard in split({n: (tuple(t.shape), t.dtype) for n, t in TENSORS.items()}, shard_bytes)]


def test_a_layer_stays_in_one_file_where_it_fits_and_numbers_sort_by_value() -> None:
    layers = [[f"layers.{i}.a", f"layers.{i}.b"] for i in (0, 2, 10)]
    assert names(64) == [["embed", "head", *layers[0], *layers[1], *layers[2]]]
    assert names(63) == [["embed", "head", *layers[0], *layers[1]], layers[2]]
    assert names(35) == [["embed", "head"], [*layers[0], *layers[1]], layers[2]]  # 28 + 12; the 8 of layers.0.a fit
    assert names(12) == [["embed"], ["head"], *layers]
    assert names(11) == [["embed"], ["head"], *([name] for layer in layers for name in layer)]


def test_no_tensors_are_one_empty_file(tmp_path: Path) -> None:
    fill(tmp_path, {}, 10)
    assert TensorFolder(tmp_path).census() == {}


def test_one_file_has_no_index(tmp_path: Path) -> None:
    fill(tmp_path, TENSORS, 64)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    loaded = load_file(tmp_path / "model.safetensors")
    assert loaded.keys() == TENSORS.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())


def test_many_files_and_a_true_index(tmp_path: Path) -> None:
    fill(tmp_path, TENSORS, 35)
    files = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*files, INDEX]
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"] == {"total_size": 64}
    assert index["weight_map"] == {name: file for file in files for name in load_file(tmp_path / file)}
    folder = TensorFolder(tmp_path)
    assert folder.census() == {name: (tuple(t.shape), torch.float32) for name, t in TENSORS.items()}
    assert all(torch.equal(folder.read(name), tensor) for name, tensor in TENSORS.items())


def test_a_tensor_that_never_came_or_came_twice_is_our_fault(tmp_path: Path) -> None:
    new = NewTensorFolder(tmp_path, {"a": ((1,), torch.float32), "b": ((1,), torch.float32)})
    new.write("a", torch.ones(1))
    with pytest.raises(AssertionError, match="never written: b and 0 more"):
        new.finish()
    with pytest.raises(KeyError):
        new.write("a", torch.ones(1))


def test_an_index_that_does_not_fit_its_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"empty/model\.safetensors is missing: give the complete"):
        TensorFolder(tmp_path / "empty")
    fill(tmp_path, TENSORS, 35)
    index = json.loads((tmp_path / INDEX).read_text())
    last = "model-00003-of-00003.safetensors"

    def put(weight_map: dict[str, str]) -> None:
        (tmp_path / INDEX).write_text(json.dumps(index | {"weight_map": weight_map}))

    weight_map = index["weight_map"]
    for wrong, first in (
        (weight_map | {"embed": last}, "embed in model-00001"),  # in another file
        (weight_map | {"a": last}, "a in model-00003"),  # in no file
        ({n: f for n, f in weight_map.items() if n != "head"}, "head in model-00001"),  # in a file alone
    ):
        put(wrong)
        with pytest.raises(ValueError, match=rf"index\.json and the files disagree, first about {first}"):
            TensorFolder(tmp_path)
    put(weight_map)
    save_file({"head": torch.zeros(1), **load_file(tmp_path / last)}, tmp_path / last)  # in two files
    with pytest.raises(ValueError, match=r"disagree, first about head in model-00003"):
        TensorFolder(tmp_path)
    (tmp_path / last).unlink()
    with pytest.raises(ValueError, match=rf"{last} is missing"):
        TensorFolder(tmp_path)
    (tmp_path / INDEX).write_text("[]")
    with pytest.raises(ValueError, match=r"index\.json cannot be read: fetch it anew$"):
        TensorFolder(tmp_path)


def test_casting_leaves_whole_numbers_alone() -> None:
    census = {"w": ((2,), torch.float32), "ids": ((2,), torch.int64)}
    assert cast(census, torch.bfloat16) == {"w": ((2,), torch.bfloat16), "ids": ((2,), torch.int64)}
    assert cast(census, None) == census
