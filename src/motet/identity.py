"""What makes a prompt that prompt: a hash of what the towers read, and a digest that says which part differs.

The renderer makes both, every sample carries them, and whoever is about to feed a model makes them again from the
arrays in hand. A digest is four hashes joined by dashes: of ids, positions, spans and features. So two digests that
differ also tell where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from motet.types import IntArray, MediaItem

PARTS = ("ids", "positions", "spans", "features")
PART_BYTES = 16
TIMING = ("video_second_per_grid",)
"""Features that no tower reads: the positions are made from them."""


def features_hash(kind: str, features: Mapping[str, NDArray[Any]]) -> str:
    """Hash of the arrays that a tower reads: their names, dtypes, shapes and bytes. 64 hex digits.

    The same frames at another speed have the same hash, as the tower sees no difference; their digests differ.
    """
    return _arrays_hash(kind, features, sorted(features.keys() - set(TIMING))).hexdigest()


def prompt_digest(token_ids: IntArray, positions: IntArray, media: Sequence[MediaItem]) -> str:
    """Digest of ids [P], positions [3, P] and clips. Integers of any width give the same digest."""
    timing = [_arrays_hash(item.hash, item.features, [n for n in TIMING if n in item.features]) for item in media]
    parts = (
        [_int64_bytes(token_ids)],
        [_int64_bytes(positions)],
        [f"{item.kind}{np.asarray(item.spans).tolist()}".encode() for item in media],
        [hasher.digest() for hasher in timing],
    )
    return "-".join(_hash(part) for part in parts)


class Inspector:
    """Tells whether arrays are those of which a digest was made.

    The bytes of a clip are hashed once in the life of an inspector, however many samples share the clip's `features`:
    copies of an item whose spans were moved hold the same mapping.
    """

    def __init__(self) -> None:
        self._hashes: dict[int, tuple[Mapping[str, NDArray[Any]], str]] = {}  # holds what the ids are of

    def difference(
        self, digest: str, token_ids: IntArray, positions: IntArray, media: Sequence[MediaItem]
    ) -> str | None:
        """What differs from the prompt of `digest`, such as `ids` or `features of clip 2 (audio)`; None: nothing."""
        for k, item in enumerate(media):
            if self._features_hash(item) != item.hash:
                return f"features of clip {k} ({item.kind})"
        ours, theirs = prompt_digest(token_ids, positions, media).split("-"), digest.split("-")
        assert len(theirs) == len(PARTS), f"not a digest: {digest!r}"
        differing = [name for name, a, b in zip(PARTS, ours, theirs, strict=True) if a != b]
        return ", ".join(differing) or None

    def _features_hash(self, item: MediaItem) -> str:
        key = id(item.features)
        if key not in self._hashes:
            self._hashes[key] = item.features, features_hash(item.kind, item.features)
        return self._hashes[key][1]


def _arrays_hash(kind: str, features: Mapping[str, NDArray[Any]], names: Sequence[str]) -> Any:
    hasher = blake3(kind.encode())
    for name in names:
        array = np.asarray(features[name], order="C")
        hasher.update(f"{name}{array.dtype.str}{array.shape}".encode())
        hasher.update(array.reshape(-1).view(np.uint8).data)
    return hasher


def _hash(parts: Iterable[Any]) -> str:
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest(length=PART_BYTES)


def _int64_bytes(array: IntArray) -> bytes:
    return array.astype("<i8", casting="safe").tobytes()
