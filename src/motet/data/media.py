"""Media references become canonical arrays with a name: resolve, decode, hash.

    ref (path, address, bytes, object) --resolve--> file, bytes or object --decode--> Image | Audio | Video, `content`

What is the same to see and hear has the same `content`, however the row refers to it. Sound is resampled once, in
`sound.py`; frames are chosen once, by `sample_frames` in `video.py`.
"""

from __future__ import annotations

from typing import Any

from motet.config.schema import VideoConfig
from motet.data.image import Image, read_image
from motet.data.reference import MediaError, Reach, describe, resolve
from motet.data.sound import SAMPLE_RATE_HZ, Audio, read_audio
from motet.data.video import Video, read_video, sample_frames
from motet.types import MediaPart

__all__ = [
    "SAMPLE_RATE_HZ",
    "Audio",
    "Image",
    "Media",
    "MediaError",
    "Reach",
    "Video",
    "describe",
    "load",
    "read",
    "sample_frames",
]

Media = Image | Audio | Video


def load(part: MediaPart, *, reach: Reach, video: VideoConfig) -> Media:
    """Decode the image, sound or video that `part` refers to.

    Of `video`, `fps` and `max_frames` apply. Decoded objects are: for an image a PIL image or u8[H, W, 3] or u8[H, W];
    for a sound `{"array", "sampling_rate"}`, the array [N] or [channels, N]; for a video
    `{"frames": u8[F, H, W, 3], "fps"}` and optionally `"audio"`, a sound in any form but a path.

    Raises MediaError for whatever is wrong with the reference or the file.
    """
    try:
        return read(part, resolve(part.ref, reach), video=video)
    except MediaError as error:
        raise MediaError(f"{describe(part.ref)}: {error}") from error.__cause__


def read(part: MediaPart, source: Any, *, video: VideoConfig) -> Media:
    """Decode what `part` was resolved to. Raises MediaError, which does not name the reference."""
    if part.kind == "image":
        return read_image(source)
    if part.kind == "audio":
        return read_audio(source)
    return read_video(source, use_audio=part.use_audio, fps=video.fps, max_frames=video.max_frames)
