"""Sounds of every kind become one channel at 16 kHz."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from motet.data import container, sound
from motet.data.media import Audio, MediaError


def tone(rate: int, seconds: float = 1.0, hertz: float = 440.0) -> NDArray[np.float32]:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)).astype(np.float32)


def gray_frames(number: int, size: tuple[int, int] = (48, 64)) -> NDArray[np.uint8]:
    """Frame i has the level 20 + 20 i."""
    levels = np.arange(20, 20 + 20 * number, 20, dtype=np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (number, *size, 3)).copy()


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_a_tone_keeps_pitch_length_and_level_from_every_rate(
    tmp_path: Path, rate: int, load_audio: Callable[..., Audio], write_wav: Callable[..., Path]
) -> None:
    path = write_wav(tmp_path / "tone.wav", np.round(tone(rate) * 32767).astype(np.int16), rate)
    samples = load_audio(path, tmp_path).samples
    assert samples.dtype == np.float32
    assert samples.shape == (16_000,)
    assert np.abs(np.fft.rfft(samples)).argmax() == 440  # bins of 1 Hz
    # Not only the pitch: every sample away from the ends is the tone's.
    assert np.abs(samples - tone(16_000))[100:-100].max() < 1e-3


def test_lengths_are_right_to_one_sample(load_audio: Callable[..., Audio]) -> None:
    for rate in (8_000, 22_050, 44_100, 48_000):
        for num_samples in (rate, rate + 1, rate + 7, rate // 10):
            sound = {"array": np.zeros(num_samples, np.float32), "sampling_rate": rate}
            assert abs(len(load_audio(sound).samples) - num_samples * 16_000 / rate) <= 1
    with pytest.raises(MediaError, match="its sound is empty"):
        load_audio({"array": np.zeros(1, np.float32), "sampling_rate": 44_100})


def test_long_sounds_are_resampled_without_seams(
    monkeypatch: pytest.MonkeyPatch, load_audio: Callable[..., Audio]
) -> None:
    long = {"array": tone(44_100), "sampling_rate": 44_100}
    whole = load_audio(long).samples
    monkeypatch.setattr(sound, "BLOCK_SAMPLES", 1000)
    assert np.array_equal(load_audio(long).samples, whole)


def test_integers_are_scaled_and_channels_averaged(
    tmp_path: Path, load_audio: Callable[..., Audio], write_wav: Callable[..., Path]
) -> None:
    stereo = np.array([[16384, -8192], [-32768, -32768], [0, 32767]], np.int16)
    path = write_wav(tmp_path / "stereo.wav", stereo, 16_000)
    assert load_audio(path, tmp_path).samples.tolist() == [0.125, -1.0, 32767 / 65536]
    path = write_wav(tmp_path / "bytes.wav", np.array([128, 0, 192], np.uint8), 16_000)
    assert load_audio(path, tmp_path).samples.tolist() == [0.0, -1.0, 0.5]
    ints = {"array": np.array([1 << 30, -(1 << 31)], np.int32), "sampling_rate": 16_000}
    assert load_audio(ints).samples.tolist() == [0.5, -1.0]


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        (np.zeros(10, np.float32), r'<float32 array \[10\]>: not a sound; give .* or \{"array", "sampling_rate"\}'),
        ({"array": np.zeros(10, np.int64), "sampling_rate": 8000}, "sound of type int64; give floats, int16 or int32"),
        ({"array": np.zeros((800, 2)), "sampling_rate": 8000}, r"shape \[800, 2\]; give \[N\] or \[channels, N\]"),
        ({"array": np.zeros(0), "sampling_rate": 8000}, "its sound is empty"),
        ({"array": np.array([0.0, np.nan]), "sampling_rate": 8000}, "holds NaN or infinite samples"),
        ({"array": np.zeros(10), "sampling_rate": 0}, "its sampling rate is 0 Hz"),
        (b"RIFF\4\0\0\0oops", "<bytes, 12>: cannot be decoded"),
    ],
)
def test_bad_sounds_are_refused(ref: Any, message: str, load_audio: Callable[..., Audio]) -> None:
    with pytest.raises(MediaError, match=message):
        load_audio(ref)


def test_a_file_without_sound_is_refused(
    tmp_path: Path, load_audio: Callable[..., Audio], write_wav: Callable[..., Path], write_video: Callable[..., Path]
) -> None:
    path = write_video(tmp_path / "silent.mp4", gray_frames(4))
    with pytest.raises(MediaError, match=r"silent\.mp4: has no sound track$"):
        load_audio(path, tmp_path)
    empty = write_wav(tmp_path / "empty.wav", np.zeros(0, np.int16), 8000)
    with pytest.raises(MediaError, match=r"empty\.wav: "):
        load_audio(empty, tmp_path)


def test_a_sound_that_changes_its_rate_is_refused(tmp_path: Path, load_audio: Callable[..., Audio]) -> None:
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


def test_a_sound_beyond_the_limit_is_refused(
    tmp_path: Path,
    load_audio: Callable[..., Audio],
    write_wav: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write_wav(tmp_path / "a.wav", np.zeros(16_000, np.int16), 16_000)
    array = {"array": np.zeros(16_000, np.float32), "sampling_rate": 16_000}
    monkeypatch.setattr(container, "MAX_SECONDS", 1.0)
    for ref in (path, array):
        assert load_audio(ref, tmp_path).samples.shape == (16_000,)
    monkeypatch.setattr(container, "MAX_SECONDS", 0.9)
    for ref in (path, array):
        with pytest.raises(MediaError, match=r"lasts 1 s; at most 1 s are read: cut it"):
            load_audio(ref, tmp_path)


def test_an_absurd_header_is_refused_before_decoding(tmp_path: Path, load_audio: Callable[..., Audio]) -> None:
    head = b"fLaC\x80\x00\x00\x22" + (4096).to_bytes(2, "big") * 2 + bytes(6)
    # 20 bits of rate, 3 of channels, 5 of depth, 36 of length: two years at 1 kHz
    head += (1000 << 44 | 0 << 41 | 15 << 36 | (1 << 36) - 1).to_bytes(8, "big") + bytes(16)
    (tmp_path / "a.flac").write_bytes(head + bytes(1000))
    with pytest.raises(MediaError, match=r"^a\.flac: lasts 68719477 s; at most 3600 s are read: cut it"):
        load_audio("a.flac", tmp_path)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.wav", "pcm_u8"),
        ("a.wav", "pcm_s16le"),
        ("a.wav", "pcm_s24le"),
        ("a.wav", "pcm_s32le"),
        ("a.wav", "pcm_f32le"),
        ("a.wav", "pcm_f64le"),
        ("a.flac", "flac"),
    ],
)
@pytest.mark.parametrize("rate", [8_000, 192_000])
def test_every_sample_format_and_rate_is_read(
    tmp_path: Path,
    load_audio: Callable[..., Audio],
    write_sound: Callable[..., Path],
    name: str,
    codec: str,
    rate: int,
) -> None:
    left_and_right = np.broadcast_to(np.array([24576, -8192], np.int16), (rate // 4, 2))
    samples = load_audio(write_sound(tmp_path / name, left_and_right, rate, codec, "stereo"), tmp_path).samples
    assert samples.shape == (4000,)
    assert np.abs(samples[500:-500] - 0.25).max() < 1e-4  # the mean of 0.75 and -0.25; ends ring


@pytest.mark.parametrize("layout", ["mono", "stereo", "quad", "5.1", "7.1"])
@pytest.mark.parametrize(("name", "codec"), [("a.wav", "pcm_s16le"), ("a.flac", "flac")])
def test_every_channel_counts_the_same(
    tmp_path: Path,
    load_audio: Callable[..., Audio],
    write_sound: Callable[..., Path],
    name: str,
    codec: str,
    layout: str,
) -> None:
    num_channels = {"mono": 1, "stereo": 2, "quad": 4, "5.1": 6, "7.1": 8}[layout]
    levels = np.arange(1, num_channels + 1, dtype=np.int16) * 2048
    path = write_sound(tmp_path / name, np.broadcast_to(levels, (4000, num_channels)), 16_000, codec, layout)
    samples = load_audio(path, tmp_path).samples
    assert samples.tolist() == [float(levels.mean()) / 32768] * 4000


@pytest.mark.parametrize(("name", "codec"), [("a.mp3", "libmp3lame"), ("a.ogg", "libopus"), ("a.m4a", "aac")])
@pytest.mark.parametrize("num_channels", [1, 2, 8])
def test_lossy_codecs_keep_pitch_and_level(
    tmp_path: Path,
    load_audio: Callable[..., Audio],
    write_sound: Callable[..., Path],
    name: str,
    codec: str,
    num_channels: int,
) -> None:
    num_channels = min(num_channels, 2) if codec == "libmp3lame" else num_channels
    layout = {1: "mono", 2: "stereo", 8: "7.1"}[num_channels]
    channels = np.zeros((48_000, num_channels), np.int16)
    channels[:, 0] = np.round(tone(48_000) * 32767)
    samples = load_audio(write_sound(tmp_path / name, channels, 48_000, codec, layout), tmp_path).samples
    assert abs(len(samples) - 16_000) < 1500  # codecs pad to their frames
    spectrum = np.abs(np.fft.rfft(samples[2000:12_000]))
    assert abs(spectrum.argmax() * 1.6 - 440) <= 1.6
    assert abs(np.abs(samples[2000:12_000]).max() * num_channels - 0.5) < 0.05


@pytest.mark.parametrize("num_lost", [0, 2000, 8000])
def test_a_wav_that_was_cut_off_is_an_error(
    tmp_path: Path, load_audio: Callable[..., Audio], write_wav: Callable[..., Path], num_lost: int
) -> None:
    path = write_wav(tmp_path / "cut.wav", np.zeros(8000, np.int16), 16_000)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - num_lost])
    if not num_lost:
        assert load_audio(path, tmp_path).samples.shape == (8000,)
        return
    message = rf"cut\.wav: ends after {16044 - num_lost} of 16044 bytes: the file is cut short"
    with pytest.raises(MediaError, match=message):
        load_audio(path, tmp_path)


@pytest.mark.parametrize("stated", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_a_wav_that_was_streamed_states_no_size(
    tmp_path: Path, load_audio: Callable[..., Audio], write_wav: Callable[..., Path], stated: int
) -> None:
    path = write_wav(tmp_path / "a.wav", np.zeros(8000, np.int16), 16_000)
    data = bytearray(path.read_bytes())
    data[4:8] = data[40:44] = stated.to_bytes(4, "little")
    path.write_bytes(data)
    assert load_audio(path, tmp_path).samples.shape == (8000,)


@pytest.mark.parametrize(("name", "codec"), [("a.mka", "pcm_s16le"), ("a.flac", "flac"), ("a.m4a", "aac")])
def test_other_sounds_that_were_cut_off_are_errors(
    tmp_path: Path, load_audio: Callable[..., Audio], write_sound: Callable[..., Path], name: str, codec: str
) -> None:
    path = write_sound(tmp_path / name, np.round(tone(16_000) * 32767).astype(np.int16)[:, None], 16_000, codec, "mono")
    assert abs(len(load_audio(path, tmp_path).samples) - 16_000) < 1500
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(MediaError, match=r"cut short or damaged|cannot be decoded"):
        load_audio(path, tmp_path)


def test_floats_that_are_not_numbers_are_refused_in_files(tmp_path: Path, load_audio: Callable[..., Audio]) -> None:
    samples = np.zeros(16_000, np.float32)
    samples[9000] = np.nan
    with av.open(str(tmp_path / "nan.wav"), "w") as file:
        track: Any = file.add_stream("pcm_f32le", rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
        frame.sample_rate = 48_000
        file.mux(track.encode(frame))
    with pytest.raises(MediaError, match=r"^nan\.wav: its sound holds NaN or infinite samples"):
        load_audio("nan.wav", tmp_path)


def test_an_absurd_rate_is_refused(
    tmp_path: Path, load_audio: Callable[..., Audio], write_wav: Callable[..., Path]
) -> None:
    # The resampler's filter is as long as the rate is high: at 700 MHz it takes a gigabyte.
    for rate, is_read in ((768_000, True), (768_001, False), (700_000_000, False)):
        path = write_wav(tmp_path / "a.wav", np.zeros(9600, np.int16), rate)
        if is_read:
            assert load_audio(path, tmp_path).samples.shape == (200,)
        else:
            with pytest.raises(MediaError, match=f"its sampling rate is {rate} Hz; at most 768000 Hz are read"):
                load_audio(path, tmp_path)


def test_tags_in_an_old_encoding_do_not_matter(tmp_path: Path, load_audio: Callable[..., Audio]) -> None:
    with av.open(str(tmp_path / "a.wav"), "w") as file:
        file.metadata["title"] = "Mxller"
        track: Any = file.add_stream("pcm_s16le", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 16_000
        file.mux(track.encode(frame))
    data = (tmp_path / "a.wav").read_bytes()
    assert data.count(b"Mxller") == 1
    (tmp_path / "a.wav").write_bytes(data.replace(b"Mxller", "Müller".encode("latin-1")))
    assert load_audio("a.wav", tmp_path).samples.shape == (800,)
