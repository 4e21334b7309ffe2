"""What makes a prompt that prompt: a name for what the towers read, and a digest that says which part differs.

The renderer makes both, every sample carries them, and whoever is about to feed a model makes them again from the
arrays in hand. A digest is four hashes joined by dashes: of ids, positions, spans and features. So two digests that
differ also tell where.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from xxhash import xxh3_128

from motet.types import IntArray, MediaItem

PARTS = ("ids", "positions", "spans", "features")
PART_BYTES = 16
TIMING = ("video_second_per_grid",)
"""Features that no tower reads: the positions are made from them."""


def features_hash(decoded: str, features: Mapping[str, NDArray[Any]]) -> str:
    """Name of what a tower reads: a hash of the decoded media, and a checksum of the arrays made from it.

    Each does what the other cannot. Clips made to collide differ in `decoded`, which is cryptographic. Other settings,
    and whatever happens to the arrays by accident, differ in the checksum, which takes a fifth of the time: an image's
    arrays are eight times as large as its pixels.

    The same frames at another speed have the same name, as the tower sees no difference; their digests differ.

    Args:
        decoded: hash of the pixels or samples alone, without their timing.
        features: of which names, dtypes, shapes and bytes count.
    """
    return f"{decoded}-{_checksum(features)}"


def prompt_digest(token_ids: IntArray, positions: IntArray, media: Sequence[MediaItem]) -> str:
    """Digest of ids [P], positions [3, P] and clips. Integers of any width give the same digest."""
    parts = (
        [_int64_bytes(token_ids)],
        [_int64_bytes(positions)],
        [f"{item.kind}{np.asarray(item.spans).tolist()}".encode() for item in media],
        [part for item in media for part in (item.hash.encode(), *_arrays(item.features, TIMING))],
    )
    return "-".join(_hash(part) for part in parts)


class Inspector:
    """Tells whether arrays are those of which a digest was made.

    The bytes of a clip are hashed once in the life of an inspector, however many samples share the clip's `features`:
    copies of an item whose spans were moved hold the same mapping.
    """

    def __init__(self) -> None:
        self._checksums: dict[int, tuple[Mapping[str, NDArray[Any]], str]] = {}  # holds what the ids are of

    def difference(
        self, digest: str, token_ids: IntArray, positions: IntArray, media: Sequence[MediaItem]
    ) -> str | None:
        """What differs from the prompt of `digest`, such as `ids` or `features of clip 2 (audio)`; None: nothing."""
        for k, item in enumerate(media):
            if not item.hash.endswith(f"-{self._checksum(item.features)}"):
                return f"features of clip {k} ({item.kind})"
        ours, theirs = prompt_digest(token_ids, positions, media).split("-"), digest.split("-")
        assert len(theirs) == len(PARTS), f"not a digest: {digest!r}"
        differing = [name for name, a, b in zip(PARTS, ours, theirs, strict=True) if a != b]
        return ", ".join(differing) or None

    def _checksum(self, features: Mapping[str, NDArray[Any]]) -> str:
        key = id(features)
        if key not in self._checksums:
            self._checksums[key] = features, _checksum(features)
        return self._checksums[key][1]


def _checksum(features: Mapping[str, NDArray[Any]]) -> str:
    """32 hex digits, of all but the timing."""
    hasher = xxh3_128()
    for part in _arrays(features, sorted(features.keys() - set(TIMING))):
        hasher.update(part)
    return hasher.hexdigest()


def _arrays(features: Mapping[str, NDArray[Any]], names: Sequence[str]) -> Iterator[Any]:
    """Those of `names` that there are, as bytes in the order of their indices."""
    for name in names:
        if name in features:
            array = np.asarray(features[name], order="C")
            yield f"{name}{array.dtype.str}{array.shape}".encode()
            yield array.reshape(-1).view(np.uint8).data


def _hash(parts: Iterable[Any]) -> str:
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest(length=PART_BYTES)


def _int64_bytes(array: IntArray) -> bytes:
    return array.astype("<i8", casting="safe").tobytes()
