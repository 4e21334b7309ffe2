"""The seconds per pair of frames that the model is told: true, and the same number for whoever computes with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.data.media import Audio, Video, sample_frames
from motet.models.qwen3_omni.timing import processor_fps, seconds_per_pair

NTSC = 30_000 / 1001


def film(times: np.ndarray, duration: float, *, fps: float, max_frames: int = 64, sound: bool = False) -> Video:
    """Frames chosen from those shown at `times`, as if decoded."""
    indices = sample_frames(times, duration, fps, max_frames, with_sound=sound)
    return Video(
        frames=np.zeros((len(indices), 2, 2, 3), np.uint8),
        times=times[indices],
        indices=indices,
        duration_seconds=duration,
        source_fps=len(times) / duration,
        audio=Audio(samples=np.zeros(160, np.float32), content="sound") if sound else None,
        picture="frames",
        content="film",
    )


def even(seconds: float, source_fps: float, *, fps: float, max_frames: int = 64, sound: bool = False) -> Video:
    num_frames = round(seconds * source_fps)
    times = np.arange(num_frames) / source_fps
    return film(times, num_frames / source_fps, fps=fps, max_frames=max_frames, sound=sound)


# ---- silent ------------------------------------------------------------------------------------


@pytest.mark.parametrize("source_fps", [2, 8, 10, 23.976, 24, 25, NTSC, 30, 50, 59.94])
@pytest.mark.parametrize("seconds", [0.9, 3.3, 31.7])
def test_frames_chosen_at_the_rate_that_was_asked_for_are_told_so(source_fps: float, seconds: float) -> None:
    assert seconds_per_pair(even(seconds, source_fps, fps=2), 2) == 1.0
    assert seconds_per_pair(even(seconds, source_fps, fps=1), 1) == 2.0


@pytest.mark.parametrize(
    ("seconds", "source_fps", "fps", "max_frames", "expected"),
    [
        (4, 8, 8, 64, 0.25),  # never 0
        (4, 24, 3, 64, 0.66796875),  # 2 / 3 lies between 0.6640625 and this
        (2, 5, 5, 4, 1.203125),  # evenly: frames 0, 3, 6 and 9
        (100, 25, 2, 64, 3.171875),  # 99.96 s over 63 intervals: 2 x 1.58667
        (6, 1, 2, 64, 2.0),  # slower than asked for
        (5, 1.6, 2, 64, 1.25),
    ],
)
def test_silent(seconds: float, source_fps: float, fps: float, max_frames: int, expected: float) -> None:
    assert seconds_per_pair(even(seconds, source_fps, fps=fps, max_frames=max_frames), fps) == expected


@pytest.mark.parametrize(("late_seconds", "expected"), [(0.099, 1.0), (0.101, 1.0703125)])
def test_a_frame_may_be_half_a_frame_late(late_seconds: float, expected: float) -> None:
    """Of a clip of five frames a second: the third of four frames."""
    times = np.array([0.0, 0.5, 1.0 + late_seconds, 1.6])
    clip = film(times, 2.0, fps=2)
    assert clip.indices.tolist() == [0, 1, 2, 3]
    assert seconds_per_pair(replace(clip, source_fps=5.0), 2) == expected


def test_the_frame_that_makes_the_number_even_may_be_anywhere() -> None:
    """In the middle of its pair there is no position."""
    clip = even(2.2, 25, fps=2)
    assert clip.times == pytest.approx([0, 0.48, 1, 1.48, 2, 2.16])
    assert seconds_per_pair(clip, 2) == 1.0


def test_where_frames_are_left_out_the_rate_is_their_mean() -> None:
    clip = film(np.array([0, 0.1, 0.2, 1, 2, 2.04]), 2.08, fps=2)
    assert clip.indices.tolist() == [0, 2, 3, 4]
    assert seconds_per_pair(clip, 2) == 1.3359375  # three intervals in two seconds


def test_one_pair_has_the_rate_that_was_asked_for() -> None:
    for sound in (False, True):
        assert seconds_per_pair(even(0.04, 25, fps=2, sound=sound), 2) == 1.0  # a still
        assert seconds_per_pair(even(0.4, 25, fps=0.5, sound=sound), 0.5) == 4.0


# ---- with sound --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "source_fps", "fps", "max_frames", "expected", "num_frames"),
    [
        (10, 25, 2, 64, 1.0, 20),
        (10, NTSC, 2, 64, 1.0, 20),
        (10.3, 24, 2, 64, 1.0, 22),
        (10, 25, 4, 64, 1.0, 20),  # more than two a second cannot be told
        (10, 25, 1.5, 64, 1.0, 20),  # 1.33 s
        (10, 25, 1.3, 64, 2.0, 10),  # 1.54 s
        (10, 25, 1, 64, 2.0, 10),
        (32, 25, 2, 64, 1.0, 64),  # fits
        (32.04, 25, 2, 64, 2.0, 32),  # a frame too long; of 33, the last cannot be paired
        (100, 25, 2, 64, 4.0, 50),
        (10, 1, 2, 64, 2.0, 10),  # every frame there is
        (10, 0.7, 2, 64, 3.0, 6),  # seven frames, one every 1.43 s: one every 1.5 s
        (60, 1.999, 2, 128, 1.0, 120),  # as good as two
    ],
)
def test_with_sound(
    seconds: float, source_fps: float, fps: float, max_frames: int, expected: float, num_frames: int
) -> None:
    clip = even(seconds, source_fps, fps=fps, max_frames=max_frames, sound=True)
    assert seconds_per_pair(clip, fps) == expected
    assert len(clip.times) == num_frames
    pairs = clip.times[::2]
    drift = np.abs(pairs - expected * np.arange(len(pairs)))
    assert drift.max() <= 0.5 / source_fps + 1e-6  # what is told is what is so


def test_a_gap_without_frames_still_has_whole_seconds() -> None:
    times = np.concatenate([np.arange(0, 3, 0.04), np.arange(20.5, 23, 0.04)])
    clip = film(times, 23.0, fps=2, sound=True)
    assert (np.diff(clip.indices) > 0).all()
    assert seconds_per_pair(clip, 2) == round(clip.times[-2] / (len(clip.times) // 2 - 1))


# ---- arithmetic --------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.floats(0.02, 60), st.floats(0.3, 120), st.floats(0.1, 30), st.integers(2, 200), st.booleans())
def test_no_cast_and_no_product_is_rounded(
    seconds: float, source_fps: float, fps: float, max_frames: int, sound: bool
) -> None:
    clip = even(max(seconds, 1 / source_fps), source_fps, fps=fps, max_frames=max_frames, sound=sound)
    told = seconds_per_pair(clip, fps)
    assert told > 0
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert torch.tensor(told, dtype=torch.float64).to(dtype).item() == told
    steps = torch.arange(1024)
    single = steps * torch.tensor(told).float() * 13  # transformers
    double = (np.arange(1024) * told) * 13  # the processor
    assert single.double().tolist() == double.tolist() == (np.arange(1024) * (told * 13)).tolist()  # and vLLM
    if sound:
        assert told == int(told)


def test_the_processor_divides_back() -> None:
    """It finds 2 / fps: not above a whole number, where a frame would follow the sound of its time, and in float32 (as
    vLLM keeps it) that number."""
    assert 2 / (2 / 49) > 49
    for seconds in range(1, 3601):
        found = 2 / processor_fps(seconds)
        assert found <= seconds
        assert np.float32(found) == seconds
