from __future__ import annotations

import base64
import wave
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from motet.config.schema import VideoConfig
from motet.data import media
from motet.data.media import Audio, Image, MediaError, Video, describe, load, sample_frames
from motet.types import MediaPart


def load_image(ref: Any, base: Path = Path("/"), roots: tuple[Path, ...] = ()) -> Image:
    loaded = load(MediaPart(kind="image", ref=ref), roots=roots, base=base, video=VideoConfig())
    assert isinstance(loaded, Image)
    return loaded


def load_audio(ref: Any, base: Path = Path("/")) -> Audio:
    loaded = load(MediaPart(kind="audio", ref=ref), roots=(), base=base, video=VideoConfig())
    assert isinstance(loaded, Audio)
    return loaded


def load_video(ref: Any, base: Path = Path("/"), *, use_audio: bool = False, **config: Any) -> Video:
    part = MediaPart(kind="video", ref=ref, use_audio=use_audio)
    loaded = load(part, roots=(), base=base, video=VideoConfig(**config))
    assert isinstance(loaded, Video)
    return loaded


def png(image: PIL.Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def write_wav(path: Path, samples: NDArray[Any], rate: int) -> Path:
    """Samples [N] or [N, channels], uint8 or int16."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(samples.itemsize)
        file.setframerate(rate)
        file.writeframes(np.ascontiguousarray(samples).tobytes())
    return path


def tone(rate: int, seconds: float = 1.0, hertz: float = 440.0) -> NDArray[np.float32]:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)).astype(np.float32)


def write_video(
    path: Path,
    frames: NDArray[np.uint8],
    *,
    fps: int = 5,
    pts_ms: list[int] | None = None,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    sound: NDArray[np.float32] | None = None,
    sound_codec: str = "aac",
    sound_start_seconds: float = 0.0,
    options: dict[str, str] | None = None,
) -> Path:
    """Sound is mono at 16 kHz; `pts_ms` replaces the constant rate."""
    with av.open(str(path), "w", options=options or {}) as container:
        picture: Any = container.add_stream(codec, rate=1000 if pts_ms else fps)
        picture.height, picture.width, picture.pix_fmt = *frames.shape[1:3], pix_fmt
        track: Any = None if sound is None else container.add_stream(sound_codec, rate=16_000, layout="mono")
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = (pts_ms[number], Fraction(1, 1000)) if pts_ms else (number, Fraction(1, fps))
            container.mux(picture.encode(frame))
        container.mux(picture.encode())
        if sound is not None:
            sample_format = track.format.name
            values = (sound * 32767).astype(np.int16) if sample_format.startswith("s16") else sound
            block = av.AudioFrame.from_ndarray(values[None], format=sample_format, layout="mono")
            block.sample_rate, block.time_base = 16_000, Fraction(1, 16_000)
            block.pts = round(sound_start_seconds * 16_000)
            container.mux(track.encode(block))
            container.mux(track.encode())
    return path


def gray_frames(number: int, size: tuple[int, int] = (48, 64)) -> NDArray[np.uint8]:
    """Frame i has the level 20 + 20 i."""
    levels = np.arange(20, 20 + 20 * number, 20, dtype=np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (number, *size, 3)).copy()


RGB = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


# ---- references --------------------------------------------------------------------------------


def test_the_same_image_has_one_content_however_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "a b.png"
    PIL.Image.fromarray(RGB).save(path)
    data = path.read_bytes()
    refs = [
        "a b.png",
        path,
        str(path),
        path.as_uri(),  # a%20b.png
        data,
        "data:image/png;base64," + base64.b64encode(data).decode(),
        {"bytes": data, "path": "elsewhere.png"},
        {"bytes": None, "path": "a b.png"},
        PIL.Image.open(path),
        RGB,
    ]
    loaded = [load_image(ref, tmp_path) for ref in refs]
    assert all(np.array_equal(image.pixels, RGB) for image in loaded)
    assert len({image.content for image in loaded}) == 1
    assert len(loaded[0].content) == 64
    other = RGB.copy()
    other[0, 0, 0] += 1
    assert load_image(other).content != loaded[0].content
    assert load_image(RGB.reshape(6, 4, 3)).content != loaded[0].content


def test_paths_are_held_to_the_roots(tmp_path: Path) -> None:
    inside, outside = tmp_path / "rows", tmp_path / "media"
    inside.mkdir()
    outside.mkdir()
    PIL.Image.fromarray(RGB).save(outside / "a.png")
    (inside / "link.png").symlink_to(outside / "a.png")
    for ref in ("../media/a.png", str(outside / "a.png"), (outside / "a.png").as_uri(), "link.png"):
        with pytest.raises(MediaError, match=r"a\.png|link\.png: lies outside data\.media_roots \(.*rows\); add"):
            load_image(ref, inside)
        assert load_image(ref, inside, roots=(inside, outside)).pixels.shape == (4, 6, 3)
    with pytest.raises(MediaError, match="lies outside"):
        load_image("link.png", inside, roots=(inside,))
    # The base is where relative paths start, not a root beside those that are given.
    PIL.Image.fromarray(RGB).save(inside / "b.png")
    with pytest.raises(MediaError, match="lies outside"):
        load_image("b.png", inside, roots=(outside,))


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("gone.png", r"^gone\.png: no such file: .*/gone\.png$"),
        (".", r"^\.: no such file"),
        (
            "https://a.org/x.png",
            r"^https://a\.org/x\.png: https:// is not supported in this version; download the file",
        ),
        ("s3://bucket/x.png", "s3:// is not supported"),
        ("file://x.png", r"^file://x\.png: a file:// URI takes an absolute path, as in file:///data/a\.png$"),
        ("data:image/png,abc", "only base64 data URIs are read"),
        ("data:image/png;base64,a*bcd", "not valid base64"),
        ("a\0b\n", r"^'a\\x00b\\n': not a usable path"),
        ("x" * 5000, r"^x{60}\.\.\. \(5000 characters\): not a usable path"),
        (b"1234", r"^<bytes, 4>: cannot be decoded: not one of PNG, JPEG"),
        (17, r"^<int>: not an image; give a path"),
        ({"url": "a.png"}, r"^<object with url>: not an image"),
        ({"bytes": None, "path": None}, r"^<object with bytes, path>: not an image"),
        (np.zeros((2, 2, 3), np.float32), r"^<float32 array \[2, 2, 3\]>: float32 array of shape .*; give uint8"),
        (np.zeros((2, 2, 4), np.uint8), r"give uint8 \[H, W, 3\] or \[H, W\]"),
        (np.zeros((0, 2, 3), np.uint8), r"give uint8"),
    ],
)
def test_a_bad_reference_is_one_line_with_its_name(tmp_path: Path, ref: Any, message: str) -> None:
    with pytest.raises(MediaError, match=message) as caught:
        load_image(ref, tmp_path)
    assert "\n" not in str(caught.value)


def test_long_references_are_shortened_from_121_characters_on() -> None:
    assert describe("a" * 120) == "a" * 120
    assert describe("a" * 121) == "a" * 60 + "... (121 characters)"
    assert describe({"bytes": b"123", "path": None}) == "<bytes, 3>"
    assert describe({"bytes": b"123", "path": "x.wav"}) == "x.wav"


# ---- images ------------------------------------------------------------------------------------


def test_transparent_parts_are_white(tmp_path: Path) -> None:
    rgba = np.array([[[255, 0, 0, 255], [255, 0, 0, 128], [255, 0, 0, 0]]], np.uint8)
    PIL.Image.fromarray(rgba).save(tmp_path / "rgba.png")
    expected = [[[255, 0, 0], [255, 127, 127], [255, 255, 255]]]
    assert load_image("rgba.png", tmp_path).pixels.tolist() == expected
    # One colour of a palette can be the transparent one.
    palette = PIL.Image.fromarray(np.array([[0, 1]], np.uint8), mode="P")
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.save(tmp_path / "palette.png", transparency=1)
    assert load_image("palette.png", tmp_path).pixels.tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_sixteen_bit_gray_is_scaled_to_eight(tmp_path: Path) -> None:
    levels = np.array([[0, 128, 129, 257 * 100, 65535]], np.uint16)
    PIL.Image.fromarray(levels).save(tmp_path / "gray.png")
    assert load_image("gray.png", tmp_path).pixels.tolist() == [[[0] * 3, [0] * 3, [1] * 3, [100] * 3, [255] * 3]]
    assert load_image(PIL.Image.open(tmp_path / "gray.png")).content == load_image("gray.png", tmp_path).content


def test_gray_is_three_equal_channels(tmp_path: Path) -> None:
    gray = np.array([[0, 7], [200, 255]], np.uint8)
    PIL.Image.fromarray(gray).save(tmp_path / "gray.png")
    assert load_image("gray.png", tmp_path).pixels.tolist() == [[[0] * 3, [7] * 3], [[200] * 3, [255] * 3]]
    assert load_image(gray).content == load_image("gray.png", tmp_path).content


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    stored = np.zeros((16, 32, 3), np.uint8)
    stored[:, 16:] = 255  # black left, white right
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # shown rotated by a quarter to the right: left becomes top
    PIL.Image.fromarray(stored).save(tmp_path / "phone.jpg", exif=exif)
    pixels = load_image("phone.jpg", tmp_path).pixels
    assert pixels.shape == (32, 16, 3)
    assert pixels[:14].max() < 20
    assert pixels[18:].min() > 235


def test_a_truncated_png_is_an_error_that_names_it(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    PIL.Image.fromarray(noise).save(tmp_path / "whole.png")
    data = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(MediaError, match=r"^cut\.png: cannot be decoded: .*truncated"):
        load_image("cut.png", tmp_path)
    with PIL.Image.open(tmp_path / "cut.png") as lazy, pytest.raises(MediaError, match=r"^<PngImageFile>: .*truncated"):
        load_image(lazy)


def test_pixels_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MAX_PIXELS", 100)
    assert load_image(PIL.Image.new("RGB", (20, 5))).pixels.shape == (5, 20, 3)
    with pytest.raises(MediaError, match="101 x 1 pixels; at most 100 are read: scale it down"):
        load_image(PIL.Image.new("RGB", (101, 1)))
    with pytest.raises(MediaError, match="1 x 101 pixels"):
        load_image(png(PIL.Image.new("RGB", (1, 101))))


def test_formats_that_run_foreign_programs_are_not_read(tmp_path: Path) -> None:
    PIL.Image.fromarray(RGB).save(tmp_path / "a.eps")
    with pytest.raises(MediaError, match=r"^a\.eps: cannot be decoded: not one of PNG"):
        load_image("a.eps", tmp_path)
    for name in ("a.webp", "a.gif", "a.bmp", "a.tiff", "a.ppm"):
        PIL.Image.fromarray(RGB).save(tmp_path / name)
        assert load_image(name, tmp_path).pixels.shape == (4, 6, 3)


def test_float_and_deep_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="its pixels are floats"):
        load_image(PIL.Image.fromarray(np.zeros((2, 2), np.float32)))
    with pytest.raises(MediaError, match="more than 16 bits"):
        load_image(PIL.Image.fromarray(np.full((2, 2), 65536, np.int32)))
    assert load_image(PIL.Image.fromarray(np.full((1, 1), 65535, np.int32))).pixels.tolist() == [[[255, 255, 255]]]


# ---- sounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_a_tone_keeps_pitch_length_and_level_from_every_rate(tmp_path: Path, rate: int) -> None:
    path = write_wav(tmp_path / "tone.wav", np.round(tone(rate) * 32767).astype(np.int16), rate)
    samples = load_audio(path, tmp_path).samples
    assert samples.dtype == np.float32
    assert samples.shape == (16_000,)
    assert np.abs(np.fft.rfft(samples)).argmax() == 440  # bins of 1 Hz
    # Not only the pitch: every sample away from the ends is the tone's.
    assert np.abs(samples - tone(16_000))[100:-100].max() < 1e-3


def test_lengths_are_right_to_one_sample() -> None:
    for rate in (8_000, 22_050, 44_100, 48_000):
        for num_samples in (rate, rate + 1, rate + 7, rate // 10):
            sound = {"array": np.zeros(num_samples, np.float32), "sampling_rate": rate}
            assert abs(len(load_audio(sound).samples) - num_samples * 16_000 / rate) <= 1
    with pytest.raises(MediaError, match="its sound is empty"):
        load_audio({"array": np.zeros(1, np.float32), "sampling_rate": 44_100})


def test_long_sounds_are_resampled_without_seams(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = {"array": tone(44_100), "sampling_rate": 44_100}
    whole = load_audio(sound).samples
    monkeypatch.setattr(media, "RESAMPLE_BLOCK_SAMPLES", 1000)
    assert np.array_equal(load_audio(sound).samples, whole)


def test_integers_are_scaled_and_channels_averaged(tmp_path: Path) -> None:
    stereo = np.array([[16384, -8192], [-32768, -32768], [0, 32767]], np.int16)
    path = write_wav(tmp_path / "stereo.wav", stereo, 16_000)
    assert load_audio(path, tmp_path).samples.tolist() == [0.125, -1.0, 32767 / 65536]
    path = write_wav(tmp_path / "bytes.wav", np.array([128, 0, 192], np.uint8), 16_000)
    assert load_audio(path, tmp_path).samples.tolist() == [0.0, -1.0, 0.5]
    ints = {"array": np.array([1 << 30, -(1 << 31)], np.int32), "sampling_rate": 16_000}
    assert load_audio(ints).samples.tolist() == [0.5, -1.0]


def test_the_same_sound_has_one_content_however_it_is_given(tmp_path: Path) -> None:
    # Multiples of 1/32768, so that int16 and float32 say the same.
    samples = np.round(tone(44_100, 0.1) * 32768) / 32768
    path = write_wav(tmp_path / "a.wav", (samples * 32768).astype(np.int16), 44_100)
    with av.open(str(tmp_path / "float.wav"), "w") as container:
        track: Any = container.add_stream("pcm_f32le", rate=44_100, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None].astype(np.float32), format="flt", layout="mono")
        frame.sample_rate = 44_100
        container.mux(track.encode(frame))
    data = path.read_bytes()
    refs = [
        "a.wav",
        "float.wav",
        data,
        "data:audio/wav;base64," + base64.b64encode(data).decode(),
        {"bytes": data, "path": None},
        {"array": samples, "sampling_rate": 44_100},
        {"array": samples.tolist(), "sampling_rate": 44_100},
        {"array": np.stack([samples, samples]), "sampling_rate": 44_100},
    ]
    contents = {load_audio(ref, tmp_path).content for ref in refs}
    assert len(contents) == 1
    assert load_audio({"array": samples, "sampling_rate": 48_000}).content not in contents


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        (np.zeros(10, np.float32), r'<float32 array \[10\]>: not a sound; give .* or \{"array", "sampling_rate"\}'),
        ({"array": np.zeros(10, np.int64), "sampling_rate": 8000}, "sound of type int64; give floats, int16 or int32"),
        ({"array": np.zeros((800, 2)), "sampling_rate": 8000}, r"shape \[800, 2\]; give \[N\] or \[channels, N\]"),
        ({"array": np.zeros(0), "sampling_rate": 8000}, "its sound is empty"),
        ({"array": np.array([0.0, np.nan]), "sampling_rate": 8000}, "holds NaN or infinite samples"),
        ({"array": np.zeros(10), "sampling_rate": 0}, "its sampling rate is 0 Hz"),
        (b"RIFFnonsense", "<bytes, 12>: cannot be decoded"),
    ],
)
def test_bad_sounds_are_refused(ref: Any, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        load_audio(ref)


def test_a_file_without_sound_is_refused(tmp_path: Path) -> None:
    path = write_video(tmp_path / "silent.mp4", gray_frames(4))
    with pytest.raises(MediaError, match=r"silent\.mp4: has no sound track$"):
        load_audio(path, tmp_path)
    empty = write_wav(tmp_path / "empty.wav", np.zeros(0, np.int16), 8000)
    with pytest.raises(MediaError, match=r"empty\.wav: "):
        load_audio(empty, tmp_path)


def test_a_sound_that_changes_its_rate_is_refused(tmp_path: Path) -> None:
    joined = b""
    for rate in (16_000, 44_100):
        path = tmp_path / f"{rate}.aac"
        with av.open(str(path), "w", format="adts") as container:
            track: Any = container.add_stream("aac", rate=rate, layout="mono")
            frame = av.AudioFrame.from_ndarray(tone(rate)[None], format="fltp", layout="mono")
            frame.sample_rate = rate
            container.mux(track.encode(frame))
            container.mux(track.encode())
        joined += path.read_bytes()
    with pytest.raises(MediaError, match="its sample rate changes from 16000 to 44100 Hz"):
        load_audio(joined)


def test_sounds_and_clips_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = write_wav(tmp_path / "a.wav", np.zeros(16_000, np.int16), 16_000)
    clip = write_video(tmp_path / "a.mp4", gray_frames(5))
    live = write_video(tmp_path / "live.mkv", gray_frames(10), sound=tone(16_000, 2.0), options={"live": "1"})
    monkeypatch.setattr(media, "MAX_SECONDS", 1.0)
    assert load_audio(sound, tmp_path).samples.shape == (16_000,)
    assert load_video(clip, tmp_path).duration_seconds == 1.0
    monkeypatch.setattr(media, "MAX_SECONDS", 0.9)
    # A recording that was streamed does not say beforehand how long it is.
    for load_it, path in ((load_audio, sound), (load_video, clip), (load_audio, live), (load_video, live)):
        with pytest.raises(MediaError, match=r"lasts 1 s; at most 1 s are read: cut it"):
            load_it(path, tmp_path)


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


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.floats(0.001, 2.0), min_size=1, max_size=60),
    fps=st.floats(0.1, 60.0),
    max_frames=st.integers(2, 33),
)
def test_sampled_frames_rise_in_pairs_within_the_limit(steps: list[float], fps: float, max_frames: int) -> None:
    times = np.concatenate([[0.0], np.cumsum(steps)])
    indices = sample_frames(times, float(times[-1]) + 0.1, fps, max_frames)
    assert indices[0] == 0
    assert indices[-1] < len(times)
    assert (np.diff(indices) > 0).all()
    assert len(indices) % 2 == 0
    assert 2 <= len(indices) <= max_frames


# ---- videos ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "libx264"), ("a.avi", "mpeg4"), ("a.webm", "libvpx-vp9")])
def test_a_clip_gives_the_frames_at_their_true_times(tmp_path: Path, name: str, codec: str) -> None:
    clip = load_video(write_video(tmp_path / name, gray_frames(10), codec=codec), tmp_path, fps=5, max_frames=4)
    assert clip.indices.tolist() == [0, 3, 6, 9]
    assert clip.times.tolist() == [0.0, 0.6, 1.2, 1.8]
    assert (clip.duration_seconds, clip.source_fps, clip.audio) == (2.0, 5.0, None)
    assert clip.frames.shape == (4, 48, 64, 3)
    assert np.abs(clip.frames.mean(axis=(1, 2, 3)) - [20, 80, 140, 200]).max() < 3


def test_uneven_and_late_times_are_kept(tmp_path: Path) -> None:
    pts_ms = [500, 600, 900, 1700]
    path = write_video(tmp_path / "uneven.mkv", gray_frames(4), pts_ms=pts_ms)
    clip = load_video(path, tmp_path, fps=60, max_frames=64)
    assert clip.indices.tolist() == [0, 1, 2, 3]
    assert clip.times.tolist() == [0.0, 0.1, 0.4, 1.2]


def test_a_single_frame_is_repeated_once(tmp_path: Path) -> None:
    clip = load_video(write_video(tmp_path / "one.mp4", gray_frames(1)), tmp_path)
    assert clip.indices.tolist() == [0, 0]
    assert clip.times.tolist() == [0.0, 0.0]
    assert np.array_equal(clip.frames[0], clip.frames[1])
    assert (clip.duration_seconds, clip.source_fps) == (0.2, 5.0)


def test_the_same_clip_has_one_content_however_it_is_given(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (10, 16, 32, 3), dtype=np.uint8)
    path = write_video(tmp_path / "a.mkv", frames, codec="ffv1", pix_fmt="bgr0")  # lossless
    data = path.read_bytes()
    refs = [
        "a.mkv",
        data,
        "data:video/x-matroska;base64," + base64.b64encode(data).decode(),
        {"bytes": data, "path": None},
        {"frames": frames, "fps": 5},
    ]
    clips = [load_video(ref, tmp_path) for ref in refs]
    assert all(np.array_equal(clip.frames, frames[[0, 2, 5, 7]]) for clip in clips)
    assert len({clip.content for clip in clips}) == 1
    # The same pictures at another pace are another clip.
    slower = load_video({"frames": frames[[0, 2, 5, 7]], "fps": 2})
    assert np.array_equal(slower.frames, clips[0].frames)
    assert slower.content != clips[0].content


def test_the_sound_track_comes_along_only_when_asked_for(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", gray_frames(10), sound=tone(16_000, 2.0))
    silent, heard = load_video(path, tmp_path), load_video(path, tmp_path, use_audio=True)
    assert silent.audio is None
    assert heard.audio is not None
    assert abs(len(heard.audio.samples) - 32_000) <= 2048  # AAC pads to frames of 1024
    assert abs(np.abs(np.fft.rfft(heard.audio.samples[:16_000])).argmax() - 440) <= 1
    assert heard.content != silent.content
    assert load_audio(path, tmp_path).content == heard.audio.content


def test_a_clip_without_sound_names_the_remedy(tmp_path: Path) -> None:
    path = write_video(tmp_path / "silent.mp4", gray_frames(4))
    with pytest.raises(MediaError, match=r"silent\.mp4: has no sound track; set use_audio to false$"):
        load_video(path, tmp_path, use_audio=True)
    with pytest.raises(MediaError, match=r"^<object with frames, fps>: has no sound track"):
        load_video({"frames": gray_frames(4), "fps": 5}, use_audio=True)


def test_sound_is_aligned_to_the_first_frame(tmp_path: Path) -> None:
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


def test_decoded_frames_may_carry_their_sound() -> None:
    sound = {"array": tone(16_000), "sampling_rate": 16_000}
    clip = load_video({"frames": gray_frames(4), "fps": 4, "audio": sound}, use_audio=True)
    assert clip.audio is not None
    assert clip.audio.content == load_audio(sound).content


def test_rotation_is_applied(tmp_path: Path) -> None:
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


def test_a_clip_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    path = write_video(tmp_path / "cut.mp4", gray_frames(10), codec="mpeg4", options={"movflags": "faststart"})
    assert load_video(path, tmp_path).duration_seconds == 2.0
    with av.open(str(path)) as container:
        starts = sorted(packet.pos for packet in container.demux() if packet.pos is not None)
    # Between two frames, so that no frame is damaged: only the header tells.
    path.write_bytes(path.read_bytes()[: starts[5]])
    with pytest.raises(MediaError, match=r"cut\.mp4: ends after 1\.0 of 2\.0 s: the file is cut short or damaged"):
        load_video(path, tmp_path)


def test_times_that_cannot_be_trusted_are_refused(tmp_path: Path) -> None:
    write_video(tmp_path / "raw.h264", gray_frames(4))
    with pytest.raises(MediaError, match=r"^raw\.h264: its frames carry no times; put it into an mp4 or mkv container"):
        load_video("raw.h264", tmp_path)
    one = write_video(tmp_path / "one.ts", gray_frames(4)).read_bytes()
    (tmp_path / "two.ts").write_bytes(one + one)
    with pytest.raises(MediaError, match=r"^two\.ts: its frame times run backwards; encode it again"):
        load_video("two.ts", tmp_path)


def test_a_playlist_reaches_no_other_file(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    write_video(tmp_path / "secret.ts", gray_frames(4))
    (rows / "list.mp4").write_text("ffconcat version 1.0\nfile secret.ts\n")
    write_video(rows / "secret.ts", gray_frames(4))
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{(tmp_path / 'secret.ts').as_uri()}\n#EXT-X-ENDLIST\n"
    (rows / "list.m3u8").write_text(playlist)
    for name in ("list.mp4", "list.m3u8"):
        with pytest.raises(MediaError, match="cannot be decoded"):
            load_video(name, rows)


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        (np.zeros((4, 8, 8, 3), np.uint8), r'not a video; give .* or \{"frames", "fps"\}'),
        ({"frames": np.zeros((8, 8, 3), np.uint8), "fps": 5}, r"give uint8 \[F, H, W, 3\]"),
        ({"frames": np.zeros((0, 8, 8, 3), np.uint8), "fps": 5}, r"give uint8 \[F, H, W, 3\]"),
        ({"frames": np.zeros((4, 8, 8, 3), np.uint8), "fps": 0}, "its fps is 0.0"),
    ],
)
def test_bad_clips_are_refused(ref: Any, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        load_video(ref)


def test_a_sound_is_no_video(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", np.zeros(800, np.int16), 8000)
    with pytest.raises(MediaError, match=r"a\.wav: has no picture track"):
        load_video(path, tmp_path)


def test_frames_beyond_the_pixel_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", gray_frames(2))
    monkeypatch.setattr(media, "MAX_PIXELS", 64 * 48 - 1)
    with pytest.raises(MediaError, match="64 x 48 pixels"):
        load_video(path, tmp_path)
