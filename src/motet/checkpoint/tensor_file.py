"""One safetensors file, a tensor at a time.

The safetensors library maps a whole file to read from it, and wants all tensors of a file at once to write it. For a
model larger than memory a file is laid out first, from the census alone; then each tensor goes to its place, or comes
from there, in any order.

    8 bytes    length of the header
    header     JSON: name -> dtype, shape, where its bytes begin and end behind the header
    bytes      of every tensor, little-endian, without gaps
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from motet.weights.source import Census

LENGTH_BYTES = 8
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor is in its file."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    """First byte, counted from the beginning of the file."""

    @property
    def num_bytes(self) -> int:
        return tensor_bytes(self.shape, self.dtype)


def tensor_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return prod(shape) * dtype.itemsize


def census_bytes(census: Census) -> int:
    return sum(tensor_bytes(*entry) for entry in census.values())


def lay_out(file: Path, census: Census) -> dict[str, Place]:
    """Write the header, make the file as long as it will be, and return the places of its tensors."""
    # Wide dtypes first, so that every tensor begins at a multiple of its item's size: readers map them as they lie.
    names = sorted(census, key=lambda name: -census[name][1].itemsize)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    starts = {}
    for name in names:
        shape, dtype = census[name]
        starts[name] = offset
        offset += tensor_bytes(shape, dtype)
        header[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": (starts[name], offset)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    with file.open("xb") as handle:
        handle.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        handle.truncate(LENGTH_BYTES + len(text) + offset)
    first = LENGTH_BYTES + len(text)
    return {n: Place(shape=census[n][0], dtype=census[n][1], start=first + start) for n, start in starts.items()}


def places(file: Path) -> dict[str, Place]:
    """Where the tensors of a file are, by its header; no tensor is read.

    Raises:
        ValueError: the file is missing, is no safetensors file, or is cut short.
    """
    if not file.is_file():
        raise ValueError(f"{file} is missing: give the complete Hugging Face folder of the model")
    try:
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(LENGTH_BYTES), "little")
            if length > file.stat().st_size:
                raise ValueError("its header is longer than the file")
            header: Mapping[str, dict[str, list[int]]] = json.loads(handle.read(length))
        first = LENGTH_BYTES + length
        found = {
            name: Place(shape=tuple(e["shape"]), dtype=DTYPES[str(e["dtype"])], start=first + e["data_offsets"][0])
            for name, e in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is no safetensors file: fetch it anew") from error
    end = max((place.start + place.num_bytes for place in found.values()), default=first)
    if file.stat().st_size != end:
        raise ValueError(f"{file} has {file.stat().st_size} bytes instead of {end}: fetch it anew")
    return found


def read(file: Path, place: Place) -> Tensor:
    raw = torch.empty(place.num_bytes, dtype=torch.uint8)
    with file.open("rb") as handle:
        handle.seek(place.start)
        num_read = handle.readinto(raw.numpy().data)
    assert num_read == place.num_bytes, f"{file} became shorter"
    return raw.view(place.dtype).view(place.shape)


def write(file: Path, place: Place, tensor: Tensor) -> None:
    assert tuple(tensor.shape) == place.shape and tensor.dtype == place.dtype
    with file.open("r+b") as handle:
        handle.seek(place.start)
        handle.write(as_bytes(tensor).numpy().data)


def as_bytes(tensor: Tensor) -> Tensor:
    """u8[N] of the tensor's values in order, on the host; a view of it where they lie so."""
    return tensor.cpu().contiguous().flatten().view(torch.uint8)
