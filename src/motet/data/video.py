"""Videos become a few of their frames, with the times at which their file shows them.

The times come from the packets, so that choosing costs no decoding; then the clip is decoded once, up to the last
chosen frame, and only the chosen ones become pixels. Not every container keeps frames' times, and not every packet
holds one frame. So each decoded frame is held against the time it should have; where they differ, the frames' own
times are gathered by a decoding pass before the one that picks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from av.container import InputContainer
from av.stream import Disposition
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from motet.data.container import (
    check_pixels,
    check_seconds,
    content_hash,
    decoder_errors,
    one_thread,
    open_container,
    packets,
    tick,
)
from motet.data.errors import MediaError
from motet.data.image import check_uint8
from motet.data.sound import Audio, read_audio

MAX_FRAMES = 500_000
"""Of a clip, so that an hour may have 120 a second."""
MAX_CLIP_BYTES = 2 << 30
"""Of the frames that are given to the model."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Video:
    """The sampled frames of a clip. Ten frames at 5 fps, of which four were asked for:

    Video(frames=u8[4, H, W, 3], times=[0.0, 0.6, 1.2, 1.8], indices=[0, 3, 6, 9],
          duration_seconds=2.0, source_fps=5.0, audio=None, picture="b20...", content="5e1...")
    """

    frames: NDArray[np.uint8]
    """[F, H, W, 3], RGB, upright; F is even"""
    times: NDArray[np.float64]
    """[F], seconds from the first frame of the clip, as its file states them"""
    indices: NDArray[np.int64]
    """[F], which frames of the clip these are"""
    duration_seconds: float
    """Of the whole clip, until its last frame ends."""
    source_fps: float
    """Mean over the whole clip."""
    audio: Audio | None
    """The sound track where the row asks for it; its first sample belongs to the first frame."""
    picture: str
    """Hash of the frames."""
    content: str
    """Hash of the frames, their times and the sound."""


class Timing(NamedTuple):
    """When the frames of a clip are shown."""

    pts: NDArray[np.int64]
    """[N], rising, in ticks of the track"""
    times: NDArray[np.float64]
    """[N], seconds from the first frame"""
    start_seconds: float
    duration_seconds: float


def read_video(source: Any, *, use_audio: bool, fps: float, max_frames: int) -> Video:
    """Decode a file (a path or bytes) or `{"frames": u8[F, H, W, 3], "fps"}`, optionally with `"audio"`."""
    sound: Any = source
    start_seconds = 0.0
    if isinstance(source, Path | bytes):
        with decoder_errors(), open_container(source) as container:
            timing, indices, frames = _read_track(container, fps, max_frames, use_audio)
        times, start_seconds, duration_seconds = timing.times, timing.start_seconds, timing.duration_seconds
    elif isinstance(source, Mapping) and {"frames", "fps"} <= source.keys():
        clip, clip_fps = check_uint8(np.asarray(source["frames"]), "[F, H, W, 3]", ndim=4), float(source["fps"])
        if not 0 < clip_fps < float("inf"):
            raise MediaError(f"its fps is {clip_fps}")
        times, duration_seconds = np.arange(len(clip)) / clip_fps, len(clip) / clip_fps
        check_seconds(duration_seconds)
        indices = sample_frames(times, duration_seconds, fps, max_frames, with_sound=use_audio)
        frames, sound = clip[indices], source.get("audio")
    else:
        raise MediaError('not a video; give a path, address, data URI, bytes or {"frames", "fps"}')
    if use_audio and sound is None:
        raise MediaError('has no sound track; give {"audio"} beside its frames or set use_audio to false')
    audio = read_audio(sound, picture_start_seconds=start_seconds) if use_audio else None
    microseconds = np.round(times[indices] * 1e6).astype(np.int64)
    picture = content_hash("video", frames)
    return Video(
        frames=frames,
        times=times[indices],
        indices=indices,
        duration_seconds=duration_seconds,
        source_fps=len(times) / duration_seconds,
        audio=audio,
        picture=picture,
        content=content_hash("video", microseconds, picture.encode(), audio.content.encode() if audio else b""),
    )


def sample_frames(
    times: NDArray[np.float64], duration_seconds: float, fps: float, max_frames: int, *, with_sound: bool = False
) -> NDArray[np.int64]:
    """Which frames of a clip the model sees: i64[F], rising, F even and at most `max_frames`, at least 2.

    `times` f64[N] are the seconds of the clip's frames, from 0, in order. A clip that fits is sampled at `fps`: the
    frames nearest to k / fps. A longer one is sampled evenly from its first frame to its last: 10 frames at 5 fps
    with `max_frames = 4` give 0, 3, 6, 9. No frame is taken twice, so a clip slower than `fps` gives fewer. Models
    read frames in pairs: an odd number is made even with the clip's last frame or, where that is taken, by leaving it
    out. Only a clip of one frame repeats it: 0, 0.

    With sound, pairs stand a whole number of seconds apart, as only such times have an order among those of the sound
    that sampler and trainer agree on (`motet.models.qwen3_omni.timing`): `fps` gives way to the nearest 2 / n at which
    the clip fits and has a frame for every time.
    """
    last = len(times) - 1
    if last == 0:
        return np.zeros(2, np.int64)
    limit = max_frames - max_frames % 2
    if with_sound:
        # A clip may be a hundredth slower than its frames would have to be: broadcast rates are a thousandth off.
        needed = max(2 * duration_seconds / limit - 1e-6, 2 * duration_seconds / len(times) - 0.01)
        fps = 2 / max(1, round(2 / fps), ceil(needed))
    # Seconds are rounded fractions: without a little slack, rounding would change the rule or break a tie.
    if fps * duration_seconds <= limit + 1e-6:
        ideal = np.arange(ceil(fps * duration_seconds)) / fps
    else:
        ideal = np.linspace(0.0, times[last], limit)
    after = np.searchsorted(times, ideal).clip(1, last)
    is_after_nearer = times[after] - ideal < ideal - times[after - 1] - 1e-6
    indices = np.unique(np.where(is_after_nearer, after, after - 1))
    if len(indices) % 2:
        indices = indices[:-1] if indices[-1] == last else np.append(indices, last)
    return indices.astype(np.int64)


def _read_track(
    container: InputContainer, fps: float, max_frames: int, with_sound: bool
) -> tuple[Timing, NDArray[np.int64], NDArray[np.uint8]]:
    stream = container.streams.best("video")
    if not isinstance(stream, av.VideoStream) or stream.disposition & Disposition.attached_pic:
        raise MediaError("has no picture track")
    one_thread(stream)
    check_pixels(stream.width, stream.height)
    clip = list(packets(container, stream))  # still compressed: no larger than the file
    timing = _packet_times(clip, stream)
    if timing is not None:
        indices = sample_frames(timing.times, timing.duration_seconds, fps, max_frames, with_sound=with_sound)
        frames = _pick(clip, stream, indices, timing.pts)
        if frames is not None:
            return timing, indices, frames
        stream.codec_context.flush_buffers()
    timing = _frame_times(clip, stream, container.format.name)
    stream.codec_context.flush_buffers()
    indices = sample_frames(timing.times, timing.duration_seconds, fps, max_frames, with_sound=with_sound)
    frames = _pick(clip, stream, indices, None)
    assert frames is not None
    return timing, indices, frames


def _packet_times(clip: Sequence[av.Packet], stream: av.VideoStream) -> Timing | None:
    """As the container states them, if it states them for all packets; those that an edit list hides are left out."""
    shown = [(packet.pts, packet.duration or 0) for packet in clip if packet.size and not packet.is_discard]
    pts = sorted(start for start, _ in shown if start is not None)
    if not pts or len(pts) < len(shown):
        return None
    last_ticks = max(duration for start, duration in shown if start == pts[-1])
    return _timing(pts, last_ticks, stream)


def _frame_times(clip: Sequence[av.Packet], stream: av.VideoStream, container_format: str) -> Timing:
    """As the decoder finds them, which takes as long as decoding the clip."""
    pts: list[int] = []
    last_ticks = 0
    for frame in _decode(clip):
        if frame.pts is None:
            raise MediaError("its frames carry no times; put it into an mp4 or mkv container")
        pts.append(frame.pts)
        last_ticks = frame.duration
    if not pts:
        raise MediaError("has no frames")
    if container_format == "avi":  # numbers frames in the order of decoding: the times are right, but not whose
        pts.sort()
    if (np.diff(pts) < 0).any():
        raise MediaError("its frame times run backwards; encode it again")
    return _timing(pts, last_ticks, stream)


def _timing(pts: Sequence[int], last_ticks: int, stream: av.VideoStream) -> Timing:
    seconds = tick(stream)
    if len(pts) > MAX_FRAMES:
        raise MediaError(f"has {len(pts)} frames; at most {MAX_FRAMES} are read: cut it")
    times = (np.array(pts) - pts[0]) * seconds.numerator / seconds.denominator
    # Not every container says how long the last frame lasts.
    last_seconds = float(last_ticks * seconds) or times[-1] / max(len(times) - 1, 1) or 1.0
    duration_seconds = float(times[-1] + last_seconds)
    check_seconds(duration_seconds)
    return Timing(np.array(pts, np.int64), times, float(pts[0] * seconds), duration_seconds)


def _decode(clip: Sequence[av.Packet]) -> Iterator[av.VideoFrame]:
    for packet in clip:
        for frame in packet.decode():
            assert isinstance(frame, av.VideoFrame)
            yield frame


def _pick(
    clip: Sequence[av.Packet], stream: av.VideoStream, indices: NDArray[np.int64], pts: NDArray[np.int64] | None
) -> NDArray[np.uint8] | None:
    """u8[F, H, W, 3], all of the first one's size; None where a frame's time is not the one in `pts`."""
    wanted, expected = indices.tolist(), None if pts is None else pts.tolist()
    reformatter = VideoReformatter()
    frames: NDArray[np.uint8] | None = None
    width = height = num_picked = 0
    for index, frame in enumerate(_decode(clip)):
        if expected is not None and (index >= len(expected) or frame.pts != expected[index]):
            return None
        check_pixels(frame.width, frame.height)
        if index != wanted[num_picked]:
            continue
        if frame.is_corrupt:
            raise MediaError(f"its frame {index} is damaged; encode it again")
        if frames is None:
            width, height = frame.width, frame.height
            _check_clip(len(wanted), width, height)
        rgb = reformatter.reformat(frame, width=width, height=height, format="rgb24", threads=1)
        pixels = np.rot90(rgb.to_ndarray(), round(frame.rotation / 90))
        if frames is None:
            frames = np.empty((len(wanted), *pixels.shape), np.uint8)
        repeats = wanted.count(index)  # a still comes twice
        frames[num_picked : num_picked + repeats] = pixels
        num_picked += repeats
        if num_picked == len(wanted):
            return frames
    return None


def _check_clip(num_frames: int, width: int, height: int) -> None:
    num_bytes = num_frames * width * height * 3
    if num_bytes > MAX_CLIP_BYTES:
        raise MediaError(
            f"its {num_frames} frames of {width} x {height} pixels hold {num_bytes} bytes; at most {MAX_CLIP_BYTES} "
            "are read: scale it down, or lower data.video.max_frames"
        )
