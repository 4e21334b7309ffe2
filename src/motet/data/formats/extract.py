"""The two halves of a video clip as files: a picture of its middle, and its sound."""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
from PIL import Image

from motet.config.schema import VideoConfig
from motet.data import media
from motet.data.reference import MediaError, Reach, one_line
from motet.types import MediaPart


def picture(clip: Path, to: Path) -> None:
    """Write the frame shown at half of the clip's stated duration as PNG, upright. Raises MediaError."""
    try:
        pixels = _middle_frame(clip)
    except av.FFmpegError as error:
        raise MediaError(f"{clip}: cannot be decoded: {one_line(error)}") from error
    _write(to, lambda draft: Image.fromarray(pixels).save(draft, format="PNG"))


def sound(clip: Path, to: Path) -> None:
    """Write the sound as the trainer would hear it, mono at 16 kHz, as a WAV of 16 bits. Raises MediaError."""
    reach = Reach(roots=(clip.resolve().parent,), base=clip.parent)
    track = media.load(MediaPart(kind="audio", ref=str(clip.resolve())), reach=reach, video=VideoConfig())
    assert isinstance(track, media.Audio)
    samples = np.round(np.clip(track.samples, -1, 1) * 32767).astype("<i2")

    def write(draft: Path) -> None:
        with wave.open(str(draft), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(media.SAMPLE_RATE_HZ)
            file.writeframes(samples.tobytes())

    _write(to, write)


def _middle_frame(clip: Path) -> np.ndarray:
    """u8[H, W, 3]"""
    # FFmpeg may read this file alone: a playlist in it could name any other file or address.
    with clip.open("rb") as file, av.open(file, "r", options={"protocol_whitelist": "none"}) as container:
        stream = container.streams.best("video")
        if not isinstance(stream, av.VideoStream):
            raise MediaError(f"{clip}: has no picture track")
        middle_seconds = ((container.start_time or 0) + (container.duration or 0) / 2) / av.time_base
        frame = None
        for frame in container.decode(stream):
            if (frame.time or 0.0) + _frame_seconds(stream) > middle_seconds:
                break
        if frame is None:
            raise MediaError(f"{clip}: has no frames")
        return np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90)))


def _frame_seconds(stream: av.VideoStream) -> float:
    return float(1 / stream.average_rate) if stream.average_rate else 0.0


def _write(path: Path, write: Callable[[Path], None]) -> None:
    """Whole or not at all, so that an interrupted conversion goes on with the files it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    write(draft)
    draft.replace(path)
