"""What a file may be, say and hold, whatever is decoded from it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.stream import Disposition
from numpy.typing import NDArray

from motet.data import container
from motet.data.media import Audio, MediaError, Video


def tone(rate: int, seconds: float = 1.0, hertz: float = 440.0) -> NDArray[np.float32]:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)).astype(np.float32)


def gray_frames(number: int, size: tuple[int, int] = (48, 64)) -> NDArray[np.uint8]:
    """Frame i has the level 20 + 20 i."""
    levels = np.arange(20, 20 + 20 * number, 20, dtype=np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (number, *size, 3)).copy()


def test_a_clip_that_was_cut_off_is_an_error(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    path = write_video(tmp_path / "cut.mp4", gray_frames(10), codec="mpeg4", options={"movflags": "faststart"})
    assert load_video(path, tmp_path).duration_seconds == 2.0
    with av.open(str(path)) as container:
        starts = sorted(packet.pos for packet in container.demux() if packet.pos is not None)
    # Between two frames, so that no frame is damaged: only the header tells.
    path.write_bytes(path.read_bytes()[: starts[5]])
    with pytest.raises(MediaError, match=r"cut\.mp4: ends after 1\.0 of 2\.0 s: the file is cut short or damaged"):
        load_video(path, tmp_path)


def test_a_matroska_clip_that_was_cut_off_is_an_error(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    path = write_video(tmp_path / "cut.mkv", gray_frames(10), codec="ffv1", pix_fmt="bgr0", sound=tone(16_000, 2.0))
    assert load_video(path, tmp_path).duration_seconds == 2.0
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(MediaError, match=r"cut\.mkv: ends after \d\.\d of 2\.\d s: the file is cut short or damaged"):
        load_video(path, tmp_path)


def test_a_picture_may_end_before_its_sound(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    for name in ("a.mkv", "a.mp4"):
        path = write_video(tmp_path / name, gray_frames(5), sound=tone(16_000, 6.0))
        clip = load_video(path, tmp_path, use_audio=True)
        assert clip.audio is not None
        assert clip.duration_seconds == 1.0
        assert abs(len(clip.audio.samples) - 96_000) < 2048


@pytest.mark.parametrize("num_frames", [1, 2, 3])
def test_slow_clips_in_matroska_are_whole(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path], num_frames: int
) -> None:
    for name, codec in (("a.mkv", "libx264"), ("a.webm", "libvpx-vp9")):
        path = write_video(tmp_path / name, gray_frames(num_frames), codec=codec, fps=Fraction(1, 5))
        assert load_video(path, tmp_path).duration_seconds == 5.0 * num_frames


def test_a_playlist_reaches_no_other_file(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
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


def test_a_sound_is_no_video(tmp_path: Path, load_video: Callable[..., Video], write_wav: Callable[..., Path]) -> None:
    path = write_wav(tmp_path / "a.wav", np.zeros(800, np.int16), 8000)
    with pytest.raises(MediaError, match=r"a\.wav: has no picture track"):
        load_video(path, tmp_path)


def test_frames_beyond_the_pixel_limit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    path = write_video(tmp_path / "a.mp4", gray_frames(2))
    monkeypatch.setattr(container, "MAX_PIXELS", 64 * 48 - 1)
    with pytest.raises(MediaError, match="64 x 48 pixels"):
        load_video(path, tmp_path)


def test_a_clip_beyond_the_limit_is_refused(
    tmp_path: Path,
    load_audio: Callable[..., Audio],
    load_video: Callable[..., Video],
    write_video: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clip = write_video(tmp_path / "a.mp4", gray_frames(5))
    live = write_video(tmp_path / "live.mkv", gray_frames(10), sound=tone(16_000, 2.0), options={"live": "1"})
    array = {"frames": gray_frames(5), "fps": 5}
    monkeypatch.setattr(container, "MAX_SECONDS", 1.0)
    assert load_video(clip, tmp_path).duration_seconds == 1.0
    assert load_video(array).duration_seconds == 1.0
    monkeypatch.setattr(container, "MAX_SECONDS", 0.9)
    # A recording that was streamed does not say beforehand how long it is.
    for load_it, ref in ((load_video, clip), (load_video, live), (load_audio, live), (load_video, array)):
        with pytest.raises(MediaError, match=r"lasts 1 s; at most 1 s are read: cut it"):
            load_it(ref, tmp_path)


def test_of_several_tracks_the_best_is_read(tmp_path: Path, load_video: Callable[..., Video]) -> None:
    with av.open(str(tmp_path / "two.mkv"), "w") as file:
        tracks: list[Any] = [file.add_stream("ffv1", rate=5) for _ in range(3)]
        for track, height in zip(tracks, (16, 48, 32), strict=True):
            track.height, track.width, track.pix_fmt = height, 64, "bgr0"
        tracks[1].disposition = Disposition.default
        for number in range(4):
            for track in tracks:
                pixels = np.full((track.height, 64, 3), 20 * number, np.uint8)
                file.mux(track.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        for track in tracks:
            file.mux(track.encode())
    assert load_video("two.mkv", tmp_path, fps=5).frames.shape == (4, 48, 64, 3)


def test_the_cover_of_a_song_is_no_video(
    tmp_path: Path, load_audio: Callable[..., Audio], load_video: Callable[..., Video]
) -> None:
    with av.open(str(tmp_path / "song.mp3"), "w") as file:
        song: Any = file.add_stream("libmp3lame", rate=16_000, layout="mono")
        cover: Any = file.add_stream("png", rate=1)
        cover.height, cover.width, cover.pix_fmt = 16, 16, "rgb24"
        cover.disposition = Disposition.attached_pic
        file.mux(cover.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")))
        file.mux(cover.encode())
        frame = av.AudioFrame.from_ndarray(tone(16_000)[None], format="fltp", layout="mono")
        frame.sample_rate = 16_000
        file.mux(song.encode(frame))
        file.mux(song.encode())
    assert abs(len(load_audio("song.mp3", tmp_path).samples) - 16_000) < 1500
    with pytest.raises(MediaError, match=r"^song\.mp3: has no picture track"):
        load_video("song.mp3", tmp_path)


def test_a_codec_without_a_decoder_is_named(
    tmp_path: Path, load_video: Callable[..., Video], write_video: Callable[..., Path]
) -> None:
    path = write_video(tmp_path / "a.mkv", gray_frames(2), codec="mjpeg", pix_fmt="yuvj420p")
    data = path.read_bytes()
    assert data.count(b"V_MJPEG") == 1
    path.write_bytes(data.replace(b"V_MJPEG", b"V_XXXXX"))
    with pytest.raises(MediaError, match=r"a\.mkv: there is no decoder for it; convert it to a common codec"):
        load_video(path, tmp_path)
