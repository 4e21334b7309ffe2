"""Against the safetensors library, both ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from motet.checkpoint.tensor_file import DTYPES, Place, lay_out, places, read, write

TENSORS = {
    "byte": torch.tensor([1, 2, 255], dtype=torch.uint8),
    "half": torch.tensor([[1.5, -2.0, torch.nan]], dtype=torch.bfloat16),
    "flag": torch.tensor([True]),
    "wide": torch.tensor([2**40, -1]),
    "single": torch.arange(6.0).reshape(2, 3),
    "scalar": torch.tensor(0.25),
    "empty": torch.zeros(0, 4),
}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def test_the_library_reads_what_is_written_in_any_order(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    found = lay_out(file, {name: (tuple(t.shape), t.dtype) for name, t in TENSORS.items()})
    for name in reversed(TENSORS):
        write(file, found[name], TENSORS[name])
    loaded = load_file(file)
    assert loaded.keys() == TENSORS.keys()
    assert all(same(loaded[name], tensor) for name, tensor in TENSORS.items())
    assert all(place.start % place.dtype.itemsize == 0 for place in found.values())
    assert places(file) == found
    with safe_open(file, framework="pt") as handle:
        assert handle.metadata() == {"format": "pt"}


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file(TENSORS, file)
    found = places(file)
    assert found.keys() == TENSORS.keys()
    assert all(same(read(file, found[name]), tensor) for name, tensor in TENSORS.items())
    tensors = {name: torch.zeros(3, dtype=dtype) for name, dtype in DTYPES.items()}
    save_file(tensors, file)  # every name of a dtype is the library's
    assert {name: place.dtype for name, place in places(file).items()} == DTYPES


def test_a_view_is_written_by_its_values(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    transposed = torch.arange(6.0).reshape(2, 3).T
    write(file, lay_out(file, {"t": ((3, 2), torch.float32)})["t"], transposed)
    assert load_file(file)["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_files_that_are_not_whole_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    with pytest.raises(ValueError, match=r"a\.safetensors is missing: give the complete Hugging Face folder"):
        places(file)
    save_file({"t": torch.zeros(4)}, file)
    whole = file.read_bytes()
    assert places(file) == {"t": Place(shape=(4,), dtype=torch.float32, start=len(whole) - 16)}
    file.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=rf"a\.safetensors has {len(whole) - 1} bytes instead of {len(whole)}: fetch"):
        places(file)
    header = json.dumps({"t": {"dtype": "F7", "shape": [1], "data_offsets": [0, 1]}}).encode()
    for content in (b"", whole[:20], b"<html>not found</html>", len(header).to_bytes(8, "little") + header + b"0"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.safetensors is no safetensors file: fetch it anew$"):
            places(file)
