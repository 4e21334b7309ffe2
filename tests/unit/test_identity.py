from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from xxhash import xxh3_128_hexdigest

from motet import identity
from motet.identity import Inspector, features_hash, prompt_digest
from motet.types import MediaItem

PIXELS = np.arange(6, dtype=np.float32).reshape(2, 3)
FEATURES = {"pixel_values": PIXELS, "image_grid_thw": np.array([[1, 2, 1]])}
IDS = np.array([5, 9, 9, 7, 8], np.int32)
POSITIONS = np.arange(15, dtype=np.int32).reshape(3, 5)


def clip(kind: Any = "image", spans: tuple[tuple[int, int], ...] = ((1, 2),), **features: np.ndarray) -> MediaItem:
    held = features or FEATURES
    return MediaItem(kind=kind, content="c", hash=features_hash("c", held), spans=spans, features=held, raw="a.png")


def difference(ids: Any = IDS, positions: Any = POSITIONS, media: tuple[MediaItem, ...] = (clip(),)) -> str | None:
    """From the prompt of one image."""
    return Inspector().difference(prompt_digest(IDS, POSITIONS, (clip(),)), ids, positions, media)


# ---- what a tower reads ------------------------------------------------------------------------


def test_the_hash_is_that_of_the_media_and_a_checksum_of_names_dtypes_shapes_and_bytes() -> None:
    expected = b"image_grid_thw<i8(1, 3)" + FEATURES["image_grid_thw"].tobytes()
    expected += b"pixel_values<f4(2, 3)" + PIXELS.tobytes()
    assert features_hash("pixels", FEATURES) == f"pixels-{xxh3_128_hexdigest(expected)}"


@pytest.mark.parametrize("bit", [0, 1, 31, 8 * PIXELS.nbytes - 1])
def test_one_bit_makes_another_hash(bit: int) -> None:
    flipped = PIXELS.copy()
    flipped.reshape(-1).view(np.uint8)[bit // 8] ^= 1 << bit % 8
    assert features_hash("c", FEATURES | {"pixel_values": flipped}) != features_hash("c", FEATURES)


def test_the_same_arrays_of_other_media_have_another_hash() -> None:
    """Whoever makes arrays collide that differ, which a checksum does not prevent, has to make the media collide."""
    assert features_hash("other", FEATURES) != features_hash("c", FEATURES)


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f | {"pixel_values": PIXELS + np.float32(1e-6)},
        lambda f: f | {"pixel_values": PIXELS.reshape(3, 2)},
        lambda f: f | {"pixel_values": PIXELS.view(np.int32)},
        lambda f: f | {"pixel_values": np.where(PIXELS == 0, np.float32(-0.0), PIXELS)},
        lambda f: f | {"more": PIXELS},
        lambda f: {"pixel_values_videos": f["pixel_values"], "image_grid_thw": f["image_grid_thw"]},
    ],
)
def test_the_hash_tells_apart(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
    assert features_hash("c", change(FEATURES)) != features_hash("c", FEATURES)


def test_the_hash_goes_by_values_in_order_and_not_by_memory() -> None:
    turned = {"image_grid_thw": FEATURES["image_grid_thw"], "pixel_values": np.asfortranarray(PIXELS)}
    assert features_hash("c", turned) == features_hash("c", FEATURES)


def test_speed_is_in_the_digest_and_not_in_the_hash() -> None:
    fast, slow = (clip("video", video=PIXELS, video_second_per_grid=np.array([s])) for s in (0.5, 1.0))
    assert fast.hash == slow.hash
    digests = [prompt_digest(IDS, POSITIONS, (item,)).split("-") for item in (fast, slow)]
    assert digests[0][:3] == digests[1][:3] and digests[0][3] != digests[1][3]


# ---- the digest --------------------------------------------------------------------------------


def test_a_digest_is_four_hashes() -> None:
    ids, *rest = prompt_digest(IDS, POSITIONS, (clip(),)).split("-")
    assert ids == blake3(IDS.astype(np.int64).tobytes()).hexdigest(length=16)
    assert [len(part) for part in rest] == [32, 32, 32]


def test_wider_integers_and_slices_give_the_same_digest() -> None:
    wide = np.pad(POSITIONS.astype(np.int64), ((0, 0), (2, 2)))[:, 2:-2]
    spans: Any = tuple((np.int32(a), np.int64(b)) for a, b in clip().spans)
    assert difference(IDS.astype(np.int64), wide, (replace(clip(), spans=spans),)) is None


def test_numbers_that_no_integer_holds_are_refused() -> None:
    with pytest.raises(TypeError, match="safe"):
        prompt_digest(IDS, POSITIONS.astype(np.float32), ())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({}, None),
        ({"ids": np.append(IDS[:-1], 6)}, "ids"),
        ({"ids": IDS.astype(np.int64) + 2**32}, "ids"),
        ({"positions": POSITIONS + (POSITIONS == 14)}, "positions"),
        ({"positions": POSITIONS.reshape(5, 3).T}, "positions"),
        ({"ids": IDS[:-1], "positions": POSITIONS[:, :-1]}, "ids, positions"),
        ({"media": (clip(spans=((2, 2),)),)}, "spans"),
        ({"media": (clip(spans=((1, 1), (2, 1))),)}, "spans"),
        ({"media": (clip("video"),)}, "spans"),
        ({"media": (clip(pixel_values=PIXELS + 1),)}, "features"),
        ({"media": (replace(clip(), hash=features_hash("other", FEATURES)),)}, "features"),
        ({"media": ()}, "spans, features"),
        ({"media": (clip(), clip())}, "spans, features"),
        ({"media": (replace(clip(), features=FEATURES | {"pixel_values": -PIXELS}),)}, "features of clip 0 (image)"),
    ],
)
def test_what_differs_is_named(changed: dict[str, Any], named: str | None) -> None:
    assert difference(**changed) == named


def test_of_several_clips_the_one_that_changed_is_named() -> None:
    sound = clip("audio", spans=((3, 1),), input_features=PIXELS)
    digest = prompt_digest(IDS, POSITIONS, (clip(), sound))
    broken = replace(sound, features={"input_features": PIXELS * 2})
    assert Inspector().difference(digest, IDS, POSITIONS, (clip(), broken)) == "features of clip 1 (audio)"
    assert Inspector().difference(digest, IDS, POSITIONS, (sound, clip())) == "spans, features"


def test_a_clip_that_samples_share_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    item, hashed = clip(), list[list[str]]()
    real = identity._checksum

    def counted(held: Mapping[str, np.ndarray]) -> str:
        hashed.append([*held])
        return real(held)

    monkeypatch.setattr(identity, "_checksum", counted)
    inspector = Inspector()
    digest = prompt_digest(IDS, POSITIONS, (item,))
    for _ in range(8):
        moved = replace(item, spans=tuple(item.spans))
        assert inspector.difference(digest, IDS, POSITIONS, (moved,)) is None
    assert hashed == [[*FEATURES]]
    equal = replace(item, features={name: array.copy() for name, array in FEATURES.items()})
    assert inspector.difference(digest, IDS, POSITIONS, (equal,)) is None
    assert hashed == [[*FEATURES]] * 2  # other bytes, though equal, are looked at
