"""Which frames of a clip are chosen, and that they are those frames, at their times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from motet.data import container, video
from motet.data.media import Audio, MediaError, Video, sample_frames


def tone(rate: int, seconds: float = 1.0, hertz: float = 440.0) -> NDArray[np.float32]:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)).astype(np.float32)


def gray_frames(number: int, size: tuple[int, int] = (48, 64)) -> NDArray[np.uint8]:
    """Frame i has the level 20 + 20 i."""
    levels = np.arange(20, 20 + 20 * number, 20, dtype=np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (number, *size, 3)).copy()


# ---- which frames ------------------------------------------------------------------------------


def even_times(number: int, fps: float) -> NDArray[np.float64]:
    return np.arange(number) / fps


@pytest.mark.parametrize(
    ("number", "source_fps", "fps", "max_frames", "expected"),
    [
        (10, 5, 5, 4, [0, 3, 6, 9]),  # too long: evenly, from the first to the last
        (10, 5, 5, 5, [0, 3, 6, 9]),  # frames go in pairs
        (10, 5, 5, 10, list(range(10))),
        (10, 5, 2, 4, [0, 2, 5, 7]),  # 2 fps x 2 s just fit: nearest to 0, 0.5, 1, 1.5, the earlier on a tie
        (10, 5, 2, 3, [0, 9]),
        (60, 25, 2, 64, [0, 12, 25, 37, 50, 59]),  # five frames, made even with the last one
        (9, 5, 5, 64, list(range(8))),  # nine frames, the last already taken
        (4, 2, 10, 64, [0, 1, 2, 3]),  # never a frame twice
        (3, 2, 10, 64, [0, 1]),
        (2, 25, 2, 64, [0, 1]),
        (10, 25, 2, 64, [0, 9]),  # 0.4 s: one frame at 2 fps, and the last
        (1, 25, 2, 64, [0, 0]),
        (4, 3, 2, 64, [0, 1]),  # 0.5 s is as near to frame 1 as to frame 2, whatever rounding says
        (28, 50, 25, 14, list(range(0, 28, 2))),  # 0.56 s x 25 fps is 14, not 14.000000000000002
        (30, 30000 / 1001, 30000 / 1001, 64, list(range(30))),  # rounding adds no frame
    ],
)
def test_sampled_frames(number: int, source_fps: float, fps: float, max_frames: int, expected: list[int]) -> None:
    indices = sample_frames(even_times(number, source_fps), number / source_fps, fps, max_frames)
    assert indices.tolist() == expected
    assert indices.dtype == np.int64


def test_uneven_times_are_sampled_by_time() -> None:
    times = np.array([0.0, 0.1, 0.2, 0.3, 1.0, 1.9])
    assert sample_frames(times, 2.0, 1.0, 64).tolist() == [0, 4]
    assert sample_frames(times, 2.0, 10.0, 4).tolist() == [0, 3, 4, 5]  # nearest to 0, 0.63, 1.27, 1.9


@pytest.mark.parametrize(
    ("number", "source_fps", "fps", "max_frames", "expected"),
    [
        (20, 10, 4, 64, [0, 5, 10, 15]),  # 2 a second: more would put pairs less than a second apart
        (20, 10, 2, 4, [0, 5, 10, 15]),
        (21, 10, 2, 4, [0, 10]),  # a little too long for that: 1 a second, and the last cannot be paired
        (40, 10, 1.3, 64, [0, 10, 20, 30]),  # 1.54 s, nearer to 2
        (40, 10, 1.4, 64, [0, 5, 10, 15, 20, 25, 30, 35]),  # 1.43 s, nearer to 1
        (6, 1, 2, 64, [0, 1, 2, 3, 4, 5]),
        (6, 0.7, 2, 64, [0, 1, 2, 3, 4, 5]),  # one every 1.43 s: one every 1.5 s, the nearest to each
        (1, 25, 2, 64, [0, 0]),
    ],
)
def test_beside_sound_frames_are_sampled_at_2_over_n(
    number: int, source_fps: float, fps: float, max_frames: int, expected: list[int]
) -> None:
    times = even_times(number, source_fps)
    assert sample_frames(times, number / source_fps, fps, max_frames, with_sound=True).tolist() == expected


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.floats(0.001, 2.0), min_size=1, max_size=60),
    fps=st.floats(0.1, 60.0),
    max_frames=st.integers(2, 33),
    with_sound=st.booleans(),
)
def test_sampled_frames_rise_in_pairs_within_the_limit(
    steps: list[float], fps: float, max_frames: int, with_sound: bool
) -> None:
    times = np.concatenate([[0.0], np.cumsum(steps)])
    indices = sample_frames(times, float(times[-1]) + 0.1, fps, max_frames, with_sound=with_sound)
    assert indices[0] == 0
    assert indices[-1] < len(times)
    assert (np.diff(indices) > 0).all()
    assert len(indices) % 2 == 0
    assert 2 <= len(indices) <= max_frames


# ---- which frames they are ---------------------------------------------------------------------


BITS = 8


def numbered_frames(number: int, size: tuple[int, int] = (16, 64)) -> NDArray[np.uint8]:
    """Frame i spells i in eight bars, black and white, the highest bit on the left."""
    bits = (np.arange(number)[:, None] >> np.arange(BITS)[::-1]) & 1
    rows = (bits * 255).astype(np.uint8).repeat(size[1] // BITS, axis=1)
    return np.broadcast_to(rows[:, None, :, None], (number, *size, 3)).copy()


def numbers(frames: NDArray[np.uint8]) -> list[int]:
    """What the frames spell."""
    middle = frames[:, frames.shape[1] // 2, :, 0].reshape(len(frames), BITS, -1)
    return ((middle[..., middle.shape[-1] // 2] > 127) << np.arange(BITS)[::-1]).sum(axis=1).tolist()


def test_frames_spell_their_numbers() -> None:
    assert numbers(numbered_frames(256)) == list(range(256))


CODECS = [
    ("a.mkv", "ffv1", "bgr0", {}),
    ("a.mp4", "libx264", "yuv420p", {"bf": "3"}),  # decoded in another order than shown
    ("a.mov", "libx264", "yuv420p", {"bf": "3", "x264-params": "open-gop=1:keyint=8"}),
    ("a.mkv", "libx264", "yuv420p", {"bf": "3"}),
    ("a.ts", "libx264", "yuv420p", {"bf": "3"}),
    ("a.avi", "libx264", "yuv420p", {"bf": "3"}),  # whose times are in the order of decoding
    ("b.avi", "mpeg4", "yuv420p", {"bf": "2"}),
    ("a.mpg", "mpeg2video", "yuv420p", {"bf": "2"}),
    ("a.webm", "libvpx", "yuv420p", {"auto-alt-ref": "1", "lag-in-frames": "8"}),
    ("b.webm", "libvpx-vp9", "yuv420p", {"auto-alt-ref": "1", "lag-in-frames": "8"}),
    ("b.mkv", "mjpeg", "yuvj420p", {}),
]


@pytest.mark.parametrize(("name", "codec", "pix_fmt", "options"), CODECS)
def test_ten_frames_at_5_fps_sampled_to_four_are_0_3_6_9(
    tmp_path: Path,
    load_video: Callable[..., Video],
    write_video: Callable[..., Path],
    name: str,
    codec: str,
    pix_fmt: str,
    options: dict[str, str],
) -> None:
    fps = 25 if codec == "mpeg2video" else 5  # which knows few rates
    frames = numbered_frames(10)
    path = write_video(tmp_path / name, frames, codec=codec, pix_fmt=pix_fmt, fps=fps, codec_options=options)
    clip = load_video(path, tmp_path, fps=fps, max_frames=4)
    assert numbers(clip.frames) == clip.indices.tolist() == [0, 3, 6, 9]
    assert np.abs(clip.times - np.array([0, 3, 6, 9]) / fps).max() < 1e-3
    assert abs(clip.duration_seconds - 10 / fps) < 1e-3


@pytest.mark.parametrize(("name", "codec", "pix_fmt", "options"), CODECS)
def test_every_frame_of_a_longer_clip_is_the_right_one(
    tmp_path: Path,
    load_video: Callable[..., Video],
    write_video: Callable[..., Path],
    name: str,
    codec: str,
    pix_fmt: str,
    options: dict[str, str],
) -> None:
    path = write_video(
        tmp_path / name, numbered_frames(60), codec=codec, pix_fmt=pix_fmt, fps=25, codec_options=options
    )
    clip = load_video(path, tmp_path, fps=25, max_frames=60)
    assert numbers(clip.frames) == clip.indices.tolist() == list(range(60))
    assert np.abs(clip.times - np.arange(60) / 25).max() < 1e-3
    some = load_video(path, tmp_path, fps=7, max_frames=10)
    assert numbers(some.frames) == some.indices.tolist() == [0, 7, 13, 20, 26, 33, 39, 46, 52, 59]


def remux(source: Path, path: Path, shift_frames: int, drop: tuple[int, ...] = ()) -> Path:
    """The same packets in another file, shown earlier; those at the places in `drop` are lost."""
    with av.open(str(source)) as old, av.open(str(path), "w") as new:
        stream = old.streams.video[0]
        copy = new.add_stream_from_template(stream)
        for place, packet in enumerate(packet for packet in old.demux(stream) if packet.size):
            packet.pts -= shift_frames * packet.duration
            packet.dts -= shift_frames * packet.duration
            packet.stream = copy
            if place not in drop:
                new.mux(packet)
    return path


def test_frames_that_an_edit_list_hides_are_not_counted(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    whole = write_video(tmp_path / "whole.mp4", numbered_frames(30), fps=25)
    path = remux(whole, tmp_path / "edited.mp4", 10)
    with av.open(str(path)) as file:
        assert [packet.is_discard for packet in file.demux() if packet.size].count(True) == 10
    clip = load_video(path, tmp_path, fps=25, max_frames=20)
    assert clip.indices.tolist() == list(range(20))
    assert numbers(clip.frames) == list(range(10, 30))
    assert (clip.times[0], clip.duration_seconds) == (0.0, 0.8)


def test_frames_that_cannot_be_decoded_are_not_counted(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    # Without its first packet, the clip begins at the next one that stands alone, the third: the packets say otherwise.
    frames, options = numbered_frames(16), {"g": "2"}
    whole = write_video(tmp_path / "whole.mkv", frames, fps=25, codec="mpeg2video", codec_options=options)
    clip = load_video(remux(whole, tmp_path / "late.mkv", 0, drop=(0,)), tmp_path, fps=10, max_frames=16)
    assert clip.indices.tolist() == [0, 2, 5, 7, 10, 12]
    assert numbers(clip.frames) == [2, 4, 7, 9, 12, 14]
    assert np.abs(clip.times - clip.indices / 25).max() < 1e-3
    assert abs(clip.duration_seconds - 14 / 25) < 1e-3


# ---- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "libx264"), ("a.avi", "mpeg4"), ("a.webm", "libvpx-vp9")])
def test_a_clip_gives_the_frames_at_their_true_times(
    tmp_path: Path, name: str, codec: str, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    clip = load_video(write_video(tmp_path / name, gray_frames(10), codec=codec), tmp_path, fps=5, max_frames=4)
    assert clip.indices.tolist() == [0, 3, 6, 9]
    assert clip.times.tolist() == [0.0, 0.6, 1.2, 1.8]
    assert (clip.duration_seconds, clip.source_fps, clip.audio) == (2.0, 5.0, None)
    assert clip.frames.shape == (4, 48, 64, 3)
    assert np.abs(clip.frames.mean(axis=(1, 2, 3)) - [20, 80, 140, 200]).max() < 3


def test_uneven_and_late_times_are_kept(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    pts_ms = [500, 600, 900, 1700]
    path = write_video(tmp_path / "uneven.mkv", gray_frames(4), pts_ms=pts_ms)
    clip = load_video(path, tmp_path, fps=60, max_frames=64)
    assert clip.indices.tolist() == [0, 1, 2, 3]
    assert clip.times.tolist() == [0.0, 0.1, 0.4, 1.2]


def test_a_single_frame_is_repeated_once(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    clip = load_video(write_video(tmp_path / "one.mp4", gray_frames(1)), tmp_path)
    assert clip.indices.tolist() == [0, 0]
    assert clip.times.tolist() == [0.0, 0.0]
    assert np.array_equal(clip.frames[0], clip.frames[1])
    assert (clip.duration_seconds, clip.source_fps) == (0.2, 5.0)


def test_the_sound_track_comes_along_only_when_asked_for(
    tmp_path: Path, load_audio: Callable[..., Audio], load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    path = write_video(tmp_path / "a.mp4", gray_frames(10), sound=tone(16_000, 2.0))
    silent, heard = load_video(path, tmp_path), load_video(path, tmp_path, use_audio=True)
    assert silent.audio is None
    assert heard.audio is not None
    assert abs(len(heard.audio.samples) - 32_000) <= 2048  # AAC pads to frames of 1024
    assert abs(np.abs(np.fft.rfft(heard.audio.samples[:16_000])).argmax() - 440) <= 1
    assert heard.content != silent.content
    assert load_audio(path, tmp_path).content == heard.audio.content


def test_times_and_sound_are_in_the_content_and_not_in_the_picture(load_video: Callable[..., Video]) -> None:
    sound = {"array": tone(16_000), "sampling_rate": 16_000}
    frames = gray_frames(4)
    clip = load_video({"frames": frames, "fps": 2, "audio": sound})
    heard = load_video({"frames": frames, "fps": 2, "audio": sound}, use_audio=True)
    slow = load_video({"frames": frames, "fps": 1})
    other = load_video({"frames": frames + np.uint8(1), "fps": 2})
    assert [len(c.frames) for c in (clip, heard, slow, other)] == [4] * 4
    assert clip.picture == heard.picture == slow.picture != other.picture
    assert len({c.content for c in (clip, heard, slow, other)}) == 4


def test_a_clip_without_sound_names_the_remedy(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    path = write_video(tmp_path / "silent.mp4", gray_frames(4))
    with pytest.raises(MediaError, match=r"silent\.mp4: has no sound track; set use_audio to false$"):
        load_video(path, tmp_path, use_audio=True)
    with pytest.raises(MediaError, match=r"^<object with frames, fps>: has no sound track"):
        load_video({"frames": gray_frames(4), "fps": 5}, use_audio=True)


def test_sound_is_aligned_to_the_first_frame(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    ones = np.full(16_000, 0.5, np.float32)
    late = write_video(
        tmp_path / "late.mkv", gray_frames(10), sound=ones, sound_codec="pcm_s16le", sound_start_seconds=0.5
    )
    clip = load_video(late, tmp_path, use_audio=True)
    assert clip.audio is not None
    assert clip.audio.samples.shape == (24_000,)
    assert clip.audio.samples[:8000].max() == 0.0
    assert clip.audio.samples[8000:].min() > 0.49
    early = write_video(
        tmp_path / "early.mkv", gray_frames(3), pts_ms=[250, 500, 750], sound=ones, sound_codec="pcm_s16le"
    )
    clip = load_video(early, tmp_path, use_audio=True)
    assert clip.audio is not None
    assert clip.audio.samples.shape == (12_000,)


def test_decoded_frames_may_carry_their_sound(
    load_audio: Callable[..., Audio], load_video: Callable[..., Video]
) -> None:
    sound = {"array": tone(16_000), "sampling_rate": 16_000}
    clip = load_video({"frames": gray_frames(4), "fps": 4, "audio": sound}, use_audio=True)
    assert clip.audio is not None
    assert clip.audio.content == load_audio(sound).content


def test_rotation_is_applied(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    frames = np.zeros((4, 32, 64, 3), np.uint8)
    frames[:, :, 32:] = 255  # black left, white right
    path = write_video(tmp_path / "phone.mp4", frames)
    # The display matrix of the track header, as a phone held upright writes it: a quarter turn to the right.
    upright, turned = (np.array(rows, ">i4").tobytes() for rows in ([65536, 0, 0, 0, 65536], [0, 65536, 0, -65536, 0]))
    data = path.read_bytes()
    track = data.index(b"tkhd")
    at = data.index(upright, track)
    path.write_bytes(data[:at] + turned + data[at + len(turned) :])
    clip = load_video(path, tmp_path)
    assert clip.frames.shape[1:] == (64, 32, 3)
    assert clip.frames[:, :28].max() < 20  # left became top
    assert clip.frames[:, 36:].min() > 235


def test_times_that_cannot_be_trusted_are_refused(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    write_video(tmp_path / "raw.h264", gray_frames(4))
    with pytest.raises(MediaError, match=r"^raw\.h264: its frames carry no times; put it into an mp4 or mkv container"):
        load_video("raw.h264", tmp_path)
    one = write_video(tmp_path / "one.ts", gray_frames(4)).read_bytes()
    (tmp_path / "two.ts").write_bytes(one + one)
    with pytest.raises(MediaError, match=r"^two\.ts: its frame times run backwards; encode it again"):
        load_video("two.ts", tmp_path)


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        (np.zeros((4, 8, 8, 3), np.uint8), r'not a video; give .* or \{"frames", "fps"\}'),
        ({"frames": np.zeros((8, 8, 3), np.uint8), "fps": 5}, r"give uint8 \[F, H, W, 3\]"),
        ({"frames": np.zeros((0, 8, 8, 3), np.uint8), "fps": 5}, r"give uint8 \[F, H, W, 3\]"),
        ({"frames": np.zeros((4, 8, 8, 3), np.uint8), "fps": 0}, "its fps is 0.0"),
    ],
)
def test_bad_clips_are_refused(ref: Any, message: str, load_video: Callable[..., Video]) -> None:
    with pytest.raises(MediaError, match=message):
        load_video(ref)


def test_frames_beyond_their_limits_are_refused(
    tmp_path: Path,
    load_video: Callable[..., Video],
    write_video: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write_video(tmp_path / "a.mp4", gray_frames(5))
    monkeypatch.setattr(video, "MAX_FRAMES", 5)
    monkeypatch.setattr(video, "MAX_CLIP_BYTES", 4 * 48 * 64 * 3)
    assert load_video(path, tmp_path, fps=5, max_frames=4).frames.shape == (4, 48, 64, 3)
    monkeypatch.setattr(video, "MAX_CLIP_BYTES", 4 * 48 * 64 * 3 - 1)
    message = r"its 4 frames of 64 x 48 pixels hold 36864 bytes; at most 36863 are read: scale it down, or lower data\."
    with pytest.raises(MediaError, match=message):
        load_video(path, tmp_path, fps=5, max_frames=4)
    monkeypatch.setattr(video, "MAX_FRAMES", 4)
    with pytest.raises(MediaError, match="has 5 frames; at most 4 are read: cut it"):
        load_video(path, tmp_path, fps=5, max_frames=2)


def joined(path: Path, first: Path, second: Path, shift: int) -> Path:
    """One stream of both files' packets, the second's `shift` ticks later."""
    with av.open(str(first)) as one, av.open(str(second)) as two, av.open(str(path), "w") as new:
        copy = new.add_stream_from_template(one.streams.video[0])
        for number, old in enumerate((one, two)):
            for packet in (packet for packet in old.demux(video=0) if packet.size):
                packet.pts += number * shift
                packet.dts += number * shift
                packet.stream = copy
                new.mux(packet)
    return path


def test_a_frame_size_that_changes_is_scaled_to_the_first(
    tmp_path: Path,
    load_video: Callable[..., Video],
    write_video: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = write_video(tmp_path / "small.ts", numbered_frames(5, (48, 64)))
    large = write_video(tmp_path / "large.ts", numbered_frames(5, (96, 128)))
    path = joined(tmp_path / "both.ts", small, large, 90_000)
    clip = load_video(path, tmp_path, fps=5)
    assert clip.frames.shape == (10, 48, 64, 3)
    assert numbers(clip.frames) == [0, 1, 2, 3, 4] * 2
    # The header speaks of the first size alone: the limit is held against each frame.
    monkeypatch.setattr(container, "MAX_PIXELS", 96 * 128 - 1)
    with pytest.raises(MediaError, match="128 x 96 pixels; at most 12287 are read"):
        load_video(path, tmp_path, fps=5)


@pytest.mark.parametrize("size", [(47, 63), (1, 1), (2, 3)])
def test_odd_sizes_are_kept(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path], size: tuple[int, int]
) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (4, *size, 3), dtype=np.uint8)
    path = write_video(tmp_path / "odd.mkv", frames, codec="ffv1", pix_fmt="bgr0")
    assert np.array_equal(load_video(path, tmp_path, fps=5).frames, frames)
