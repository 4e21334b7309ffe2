"""The nouns as bytes and back, bit for bit, for whatever crosses processes.

    "motet" 0 1 0   u64 length of the header   u64 length of all   header, JSON   pad to 64   array   pad to 64   ...

The header says what is where and nothing can be executed by reading it, unlike a pickle. Arrays keep dtype, shape and
bits, and come back as read-only views of the buffer. What is shared stays shared: an array, or the features of a clip
that eight samples hold, is written once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from os import PathLike, fspath
from struct import Struct
from typing import Any

import numpy as np

from motet import types
from motet.data.reference import describe
from motet.identity import Inspector
from motet.types import IntArray, MediaItem, MediaPart, Prompt, Sample

MAGIC = b"motet\0\1\0"
PREFIX = Struct("<8sQQ")
ALIGN_BYTES = 64
NOUNS: dict[str, Any] = {name: cls for name, cls in vars(types).items() if is_dataclass(cls)}
REFERENCES = {MediaPart: "ref", MediaItem: "raw"}
"""Fields that may hold a decoded object; such a one arrives as its description."""


def to_bytes(value: Any) -> bytes:
    """Any noun of `motet.types`, or lists and tuples of them.

    A decoded object (array, PIL image, ...) that a row refers to its media by is replaced by a short description: the
    features are what the model reads. Raises TypeError for what is no noun, such as a tensor.
    """
    writer = _Writer()
    tree = writer.tree(value)
    header = json.dumps({"value": tree, "mappings": writer.mappings, "blobs": writer.blobs}).encode()
    padding = bytes(-(PREFIX.size + len(header)) % ALIGN_BYTES)
    total = PREFIX.size + len(header) + len(padding) + writer.num_bytes
    return b"".join([PREFIX.pack(MAGIC, len(header), total), header, padding, *writer.chunks])


def from_bytes(data: bytes | bytearray | memoryview) -> Any:
    """What `to_bytes` was given. Arrays are views: they keep `data` alive.

    Raises ValueError where the bytes are cut short, or where a prompt, or the prompt of a sample, is not what its
    digest says.
    """
    view = memoryview(data).toreadonly()
    if len(view) < PREFIX.size or bytes(view[: len(MAGIC)]) != MAGIC:
        raise ValueError("these bytes are no message of this version of motet")
    _, header_bytes, total = PREFIX.unpack_from(view)
    if len(view) != total:
        raise ValueError(f"a message of {total} bytes arrived with {len(view)}")
    end = PREFIX.size + header_bytes
    header = json.loads(bytes(view[PREFIX.size : end]))
    return _Reader(view[end + -end % ALIGN_BYTES :], header).tree(header["value"])


class _Writer:
    """Numbers, strings and None stand for themselves; all else is a list that begins with its kind."""

    def __init__(self) -> None:
        self.chunks: list[Any] = []
        self.blobs: list[tuple[str, Sequence[int], int]] = []
        """dtype, shape and offset of each array; bytes are arrays of dtype `bytes`"""
        self.mappings: list[list[tuple[str, Any]]] = []
        self.num_bytes = 0
        self._seen: dict[int, tuple[Any, int]] = {}  # by id: the value, so that the id stays its own, and its index

    def tree(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            return ["list" if isinstance(value, list) else "tuple", *map(self.tree, value)]
        if isinstance(value, np.ndarray):
            return ["array", self._once(value, self._array)]
        if isinstance(value, bytes):
            return ["bytes", self._once(value, lambda raw: self._blob("bytes", (len(raw),), raw))]
        if isinstance(value, Mapping):
            return ["mapping", self._once(value, self._mapping)]
        if NOUNS.get(type(value).__name__) is not type(value):
            raise TypeError(f"{type(value).__name__} cannot be written: only the nouns of motet.types are")
        return [type(value).__name__, *(self.tree(_field(value, f.name)) for f in fields(value))]

    def _once(self, value: Any, write: Any) -> int:
        if id(value) not in self._seen:
            self._seen[id(value)] = value, write(value)
        return self._seen[id(value)][1]

    def _array(self, array: np.ndarray) -> int:
        if array.dtype.hasobject or np.dtype(array.dtype.str) != array.dtype:
            raise TypeError(f"an array of dtype {array.dtype} cannot be written: only numbers are")
        flat = np.asarray(array, order="C").reshape(-1).view(np.uint8)
        return self._blob(array.dtype.str, array.shape, flat)

    def _blob(self, dtype: str, shape: Sequence[int], data: Any) -> int:
        self.blobs.append((dtype, shape, self.num_bytes))
        padding = bytes(-len(data) % ALIGN_BYTES)
        self.chunks += [data, padding]
        self.num_bytes += len(data) + len(padding)
        return len(self.blobs) - 1

    def _mapping(self, mapping: Mapping[str, Any]) -> int:
        self.mappings.append([(key, self.tree(value)) for key, value in mapping.items()])
        return len(self.mappings) - 1


class _Reader:
    def __init__(self, body: memoryview, header: dict[str, Any]) -> None:
        self._inspector = Inspector()
        self._blobs = [_blob(body, *blob) for blob in header["blobs"]]
        self._mappings: list[dict[str, Any]] = []
        for pairs in header["mappings"]:  # one that another holds comes before it
            self._mappings.append({key: self.tree(value) for key, value in pairs})

    def tree(self, tree: Any) -> Any:
        if not isinstance(tree, list):
            return tree
        kind, *rest = tree
        if kind in ("array", "bytes"):
            return self._blobs[rest[0]]
        if kind == "mapping":
            return self._mappings[rest[0]]
        values = [self.tree(value) for value in rest]
        if kind in ("list", "tuple"):
            return values if kind == "list" else tuple(values)
        noun = NOUNS[kind]
        value = noun(**dict(zip((f.name for f in fields(noun)), values, strict=True)))
        if isinstance(value, Prompt):
            self._prove(value, value.token_ids, value.positions)
        elif isinstance(value, Sample):
            num = value.num_prompt_tokens
            self._prove(value, value.token_ids[:num], value.positions[:, :num])
        return value

    def _prove(self, value: Prompt | Sample, token_ids: IntArray, positions: IntArray) -> None:
        if difference := self._inspector.difference(value.digest, token_ids, positions, value.media):
            raise ValueError(f"a {type(value).__name__} arrived that is not what was sent: {difference} differ")


def _field(value: Any, name: str) -> Any:
    held = getattr(value, name)
    return _reference(held) if REFERENCES.get(type(value)) == name else held


def _reference(ref: Any) -> Any:
    """What stands for a reference on the other side: paths, URIs and encoded bytes do, decoded objects do not."""
    if isinstance(ref, Mapping):
        is_file = ref.keys() <= {"bytes", "path"}
        return {key: _reference(value) for key, value in ref.items()} if is_file else describe(ref)
    if isinstance(ref, bytearray | memoryview):
        return bytes(ref)
    if isinstance(ref, PathLike):
        return fspath(ref)
    return ref if ref is None or isinstance(ref, str | bytes) else describe(ref)


def _blob(body: memoryview, dtype: str, shape: Sequence[int], offset: int) -> Any:
    if dtype == "bytes":
        return bytes(body[offset : offset + shape[0]])
    return np.ndarray(shape, dtype, body, offset)
