from __future__ import annotations

import numpy as np
import pytest

from motet.data.clips import ClipCache, num_bytes
from motet.data.errors import MediaError
from motet.data.media import Audio, Image, Media, Video


def image(name: str = "") -> Image:
    """300 bytes."""
    return Image(pixels=np.zeros((10, 10, 3), np.uint8), content=name)


def sound() -> Audio:
    """400 bytes."""
    return Audio(samples=np.zeros(100, np.float32), content="")


def get(cache: ClipCache, name: str) -> tuple[Media, bool]:
    """The clip, and whether it had to be decoded."""
    clip, is_ours = cache.claim(name)
    if is_ours:
        cache.settle(name, lambda: image(name))
    return clip.result(timeout=0), is_ours


def test_bytes_of_a_clip_are_those_of_all_its_arrays() -> None:
    frames, times, indices = np.zeros((2, 10, 10, 3), np.uint8), np.zeros(2), np.zeros(2, np.int64)
    video = Video(
        frames=frames,
        times=times,
        indices=indices,
        duration_seconds=1,
        source_fps=2,
        audio=sound(),
        picture="",
        content="",
    )
    assert (num_bytes(image()), num_bytes(sound()), num_bytes(video)) == (300, 400, 600 + 16 + 16 + 400)


@pytest.mark.parametrize(
    ("capacity_bytes", "decoded", "held_bytes"),
    [
        (299, "ababcab", 0),  # none fits: given out, not kept
        (599, "ababcab", 300),
        (600, "abcb", 600),
        (899, "abcb", 600),
        (900, "abc", 900),
    ],
)
def test_the_least_recently_used_goes_first(capacity_bytes: int, decoded: str, held_bytes: int) -> None:
    cache = ClipCache(capacity_bytes)
    asked = "ab" + "ab" * (capacity_bytes < 600) + "a" * (capacity_bytes >= 600) + "cab"
    ran = [name for name in asked if get(cache, name)[1]]
    assert "".join(ran) == decoded
    assert cache.num_bytes == held_bytes


def test_who_asks_while_it_is_decoded_waits_for_the_same_clip() -> None:
    cache = ClipCache(1000)
    first, first_is_ours = cache.claim("a")
    second, second_is_ours = cache.claim("a")
    assert (first_is_ours, second_is_ours) == (True, False)
    assert not second.done()
    cache.settle("a", lambda: image("a"))
    assert second.result() is first.result() is get(cache, "a")[0]


def test_an_error_goes_to_all_who_wait_and_is_not_kept() -> None:
    def fail() -> Media:
        raise MediaError("cannot be decoded")

    cache = ClipCache(1000)
    clips = [cache.claim("a")[0] for _ in range(2)]
    cache.settle("a", fail)
    for clip in clips:
        with pytest.raises(MediaError, match="cannot be decoded"):
            clip.result()
    media, was_decoded = get(cache, "a")
    assert was_decoded and media.content == "a"
