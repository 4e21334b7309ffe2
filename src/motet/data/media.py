"""Media references become canonical arrays with a name: resolve, decode, hash.

    ref (path, URI, bytes, object) --resolve--> file, bytes or object --decode--> Image | Audio | Video, with `content`

What is the same to see and hear has the same `content`, however the row refers to it. Sound is resampled once, here;
frames are chosen once, by `sample_frames`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

import av
import numpy as np
import PIL.Image
import PIL.ImageOps
from av.container import InputContainer
from blake3 import blake3
from numpy.typing import NDArray

from motet.config.schema import VideoConfig
from motet.data.reference import MediaError, describe, one_line, resolve
from motet.types import MediaPart

__all__ = ["Audio", "Image", "Media", "MediaError", "Video", "describe", "load", "sample_frames"]

SAMPLE_RATE_HZ = 16_000
MAX_PIXELS = 64_000_000
"""Of an image or a frame; larger ones are refused before they are decoded."""
MAX_SECONDS = 3600.0
"""Of a sound or a video; longer ones are refused before they are decoded."""
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""No more than these: some of Pillow's other formats (EPS) run foreign programs."""
RESAMPLE_BLOCK_SAMPLES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Image:
    pixels: NDArray[np.uint8]
    """[H, W, 3], RGB, upright, transparent parts on white"""
    content: str
    """Hash of the pixels."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audio:
    samples: NDArray[np.float32]
    """[N], mono at 16 kHz, full scale at -1 and 1"""
    content: str
    """Hash of the samples."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Video:
    """The sampled frames of a clip. Ten frames at 5 fps, of which four were asked for:

    Video(frames=u8[4, H, W, 3], times=[0.0, 0.6, 1.2, 1.8], indices=[0, 3, 6, 9],
          duration_seconds=2.0, source_fps=5.0, audio=None, content="5e1...")
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
    content: str
    """Hash of the frames, their times and the sound."""


Media = Image | Audio | Video


def load(part: MediaPart, *, roots: Sequence[Path], base: Path, video: VideoConfig) -> Media:
    """Decode the image, sound or video that `part` refers to.

    Relative paths start from `base`; every path must end up, symbolic links followed, under one of `roots`, or under
    `base` where there are none. Of `video`, `fps` and `max_frames` apply. Decoded objects are: for an image a PIL
    image or u8[H, W, 3] or u8[H, W]; for a sound `{"array", "sampling_rate"}`, the array [N] or [channels, N]; for a
    video `{"frames": u8[F, H, W, 3], "fps"}` and optionally `"audio"`, a sound in any form but a path.

    Raises MediaError for whatever is wrong with the reference or the file.
    """
    try:
        source = resolve(part.ref, roots=roots or (base,), base=base)
        if part.kind == "image":
            return _image(source)
        if part.kind == "audio":
            return _audio(source)
        return _video(source, use_audio=part.use_audio, fps=video.fps, max_frames=video.max_frames)
    except MediaError as error:
        raise MediaError(f"{describe(part.ref)}: {error}") from error.__cause__


def sample_frames(
    times: NDArray[np.float64], duration_seconds: float, fps: float, max_frames: int
) -> NDArray[np.int64]:
    """Which frames of a clip the model sees: i64[F], rising, F even and at most `max_frames`, at least 2.

    `times` f64[N] are the seconds of the clip's frames, from 0, in order. A clip that fits is sampled at `fps`: the
    frames nearest to k / fps. A longer one is sampled evenly from its first frame to its last: 10 frames at 5 fps
    with `max_frames = 4` give 0, 3, 6, 9. No frame is taken twice, so a clip slower than `fps` gives fewer. Models
    read frames in pairs: an odd number is made even with the clip's last frame or, where that is taken, by leaving it
    out. Only a clip of one frame repeats it: 0, 0.
    """
    last = len(times) - 1
    if last == 0:
        return np.zeros(2, np.int64)
    limit = max_frames - max_frames % 2
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


# ---- image -------------------------------------------------------------------------------------


def _image(source: Any) -> Image:
    if isinstance(source, Path | bytes):
        with _decoder_errors(), _open(source) as file, PIL.Image.open(file, formats=IMAGE_FORMATS) as image:
            pixels = _rgb(image)
    elif isinstance(source, PIL.Image.Image):
        with _decoder_errors():
            pixels = _rgb(source)
    elif isinstance(source, np.ndarray):
        rgb = np.repeat(source[..., None], 3, axis=-1) if source.ndim == 2 else source
        pixels = _uint8(rgb, "[H, W, 3] or [H, W]", ndim=3)
    else:
        raise MediaError("not an image; give a path, file:// or data URI, bytes, PIL image or uint8 array")
    return Image(pixels=pixels, content=_hash("image", pixels))


def _rgb(image: PIL.Image.Image) -> NDArray[np.uint8]:
    _check_pixels(image.width, image.height)
    image = PIL.ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise MediaError("its pixels are floats; save it with 8 bits per channel")
    if image.mode.startswith("I"):  # 16-bit gray, which Pillow's own conversion clips at 255 instead of scaling
        levels = np.asarray(image).astype(np.int64)
        if levels.min() < 0 or levels.max() > 65535:
            raise MediaError("its pixels have more than 16 bits; save it with 8 bits per channel")
        image = PIL.Image.fromarray(((levels + 128) // 257).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        white = PIL.Image.new("RGBA", image.size, "white")
        image = PIL.Image.alpha_composite(white, image.convert("RGBA"))
    return np.array(image.convert("RGB"))


def _uint8(pixels: NDArray[Any], shape: str, *, ndim: int) -> NDArray[np.uint8]:
    if pixels.dtype != np.uint8 or pixels.ndim != ndim or pixels.shape[-1] != 3 or not pixels.size:
        raise MediaError(f"{pixels.dtype} array of shape {list(pixels.shape)}; give uint8 {shape}, 0 to 255")
    return pixels


def _check_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise MediaError(f"{width} x {height} pixels; at most {MAX_PIXELS} are read: scale it down")


# ---- sound -------------------------------------------------------------------------------------


def _audio(source: Any, *, picture_start_seconds: float | None = None) -> Audio:
    """`picture_start_seconds`: when the first frame is shown, if the sound is a video's track."""
    sound = _sound(source)
    if sound is None:
        raise MediaError("has no sound track" + ("" if picture_start_seconds is None else "; set use_audio to false"))
    samples, rate, start_seconds = sound
    if picture_start_seconds is not None:
        delay_seconds = start_seconds - picture_start_seconds
        _check_seconds(abs(delay_seconds))
        delay = round(delay_seconds * rate)
        samples = np.concatenate([np.zeros(max(delay, 0), np.float32), samples[max(-delay, 0) :]])
    if not np.isfinite(samples).all():
        raise MediaError("its sound holds NaN or infinite samples")
    samples = _resample(samples, rate)
    if not len(samples):
        raise MediaError("its sound is empty")
    return Audio(samples=samples, content=_hash("audio", samples))


def _sound(source: Any) -> tuple[NDArray[np.float32], int, float] | None:
    """Samples of one channel f32[N], their rate in Hz, and when the first one is heard; None if there is no track."""
    if isinstance(source, Mapping) and {"array", "sampling_rate"} <= source.keys():
        array, rate = np.atleast_2d(np.asarray(source["array"])), int(source["sampling_rate"])
        if array.ndim > 2 or len(array) > 64:
            raise MediaError(f"sound of shape {list(array.shape)}; give [N] or [channels, N]")
        if not 0 < rate <= 768_000:
            raise MediaError(f"its sampling rate is {rate} Hz")
        return _mono(array), rate, 0.0
    if not isinstance(source, Path | bytes):
        raise MediaError('not a sound; give a path, file:// or data URI, bytes or {"array", "sampling_rate"}')
    blocks: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
    rate, start_seconds, num_samples = 0, 0.0, 0
    with _decoder_errors(), _container(source) as container:
        stream = container.streams.best("audio")
        if not isinstance(stream, av.AudioStream):
            return None
        for frame in container.decode(stream):
            if not rate:
                rate, start_seconds = frame.sample_rate, frame.time or 0.0
            if frame.sample_rate != rate:
                raise MediaError(f"its sample rate changes from {rate} to {frame.sample_rate} Hz; convert it to one")
            array = frame.to_ndarray()
            blocks.append(_mono(array if frame.format.is_planar else array.reshape(-1, frame.layout.nb_channels).T))
            num_samples += frame.samples
            _check_seconds(num_samples / rate)
        _check_complete(num_samples / max(rate, 1), stream)
    return np.concatenate(blocks), rate, start_seconds


def _mono(channels: NDArray[Any]) -> NDArray[np.float32]:
    """The mean over [C, N] samples; integers are scaled so that full scale is 1."""
    if channels.dtype == np.uint8:  # the one unsigned format: silence is 128
        channels = (channels.astype(np.float32) - 128) / 128
    elif channels.dtype in (np.int16, np.int32):
        channels = channels.astype(np.float32) / -float(np.iinfo(channels.dtype).min)
    elif channels.dtype.kind != "f":
        raise MediaError(f"sound of type {channels.dtype}; give floats, int16 or int32")
    return channels.astype(np.float32).mean(axis=0, dtype=np.float32)


def _resample(samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """f32[N * 16000 / rate], to one sample, by FFmpeg's default filter; of less than a millisecond nothing is left.
    The blocks only bound the size of a frame: the result has no seams."""
    if rate == SAMPLE_RATE_HZ or not len(samples):
        return samples
    resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
    resampled: list[av.AudioFrame] = []
    for begin in range(0, len(samples), RESAMPLE_BLOCK_SAMPLES):
        block = np.ascontiguousarray(samples[None, begin : begin + RESAMPLE_BLOCK_SAMPLES])
        frame = av.AudioFrame.from_ndarray(block, format="flt", layout="mono")
        frame.sample_rate = rate
        resampled += resampler.resample(frame)
    resampled += resampler.resample(None)
    return np.concatenate([np.zeros(0, np.float32), *(frame.to_ndarray()[0] for frame in resampled)])


# ---- video -------------------------------------------------------------------------------------


def _video(source: Any, *, use_audio: bool, fps: float, max_frames: int) -> Video:
    sound: Any = source
    if isinstance(source, Path | bytes):
        times, start_seconds, duration_seconds = _frame_times(source)
        indices = sample_frames(times, duration_seconds, fps, max_frames)
        frames = _pick_frames(source, indices)
    elif isinstance(source, Mapping) and {"frames", "fps"} <= source.keys():
        clip, clip_fps = _uint8(np.asarray(source["frames"]), "[F, H, W, 3]", ndim=4), float(source["fps"])
        if not 0 < clip_fps < float("inf"):
            raise MediaError(f"its fps is {clip_fps}")
        times, start_seconds, duration_seconds = np.arange(len(clip)) / clip_fps, 0.0, len(clip) / clip_fps
        indices = sample_frames(times, duration_seconds, fps, max_frames)
        frames, sound = clip[indices], source.get("audio")
    else:
        raise MediaError('not a video; give a path, file:// or data URI, bytes or {"frames", "fps"}')
    if use_audio and sound is None:
        raise MediaError('has no sound track; give {"audio"} beside its frames or set use_audio to false')
    audio = _audio(sound, picture_start_seconds=start_seconds) if use_audio else None
    microseconds = np.round(times[indices] * 1e6).astype(np.int64)
    return Video(
        frames=frames,
        times=times[indices],
        indices=indices,
        duration_seconds=duration_seconds,
        source_fps=len(times) / duration_seconds,
        audio=audio,
        content=_hash("video", frames, microseconds.tobytes(), audio.content.encode() if audio else b""),
    )


def _frame_times(source: Path | bytes) -> tuple[NDArray[np.float64], float, float]:
    """Seconds of every frame from the first one, f64[N]; when the first one is shown; how long the clip lasts."""
    pts: list[int] = []
    last_ticks = 0
    with _decoder_errors(), _container(source) as container:
        stream = _picture_stream(container)
        tick = _tick(stream)
        for frame in container.decode(stream):
            if frame.pts is None:
                raise MediaError("its frames carry no times; put it into an mp4 or mkv container")
            pts.append(frame.pts)
            last_ticks = frame.duration
            _check_seconds(float((frame.pts - pts[0]) * tick))
        if not pts:
            raise MediaError("has no frames")
        times = (np.array(pts) - pts[0]) * tick.numerator / tick.denominator
        if (np.diff(times) < 0).any():
            raise MediaError("its frame times run backwards; encode it again")
        # Not every container says how long the last frame lasts.
        last_seconds = float(last_ticks * tick) or times[-1] / max(len(times) - 1, 1) or 1.0
        duration_seconds = float(times[-1] + last_seconds)
        _check_complete(duration_seconds, stream)
    return times, float(pts[0] * tick), duration_seconds


def _pick_frames(source: Path | bytes, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
    """u8[F, H, W, 3]. A second decoding pass, so that a long clip is never in memory whole."""
    picked: dict[int, NDArray[np.uint8]] = {}
    with _decoder_errors(), _container(source) as container:
        stream = _picture_stream(container)
        for index, frame in enumerate(container.decode(stream)):
            if index in indices:
                pixels = frame.to_ndarray(format="rgb24", width=stream.width, height=stream.height)
                picked[index] = np.rot90(pixels, round(frame.rotation / 90))
            if index == indices[-1]:
                break
    return np.stack([picked[index] for index in indices.tolist()])


def _picture_stream(container: InputContainer) -> av.VideoStream:
    stream = container.streams.best("video")
    if not isinstance(stream, av.VideoStream):
        raise MediaError("has no picture track")
    _check_pixels(stream.width, stream.height)
    return stream


# ---- what the decoders share -------------------------------------------------------------------


def _hash(kind: str, array: NDArray[Any], *more: bytes) -> str:
    digest = blake3(f"{kind} {array.dtype.str} {array.shape} ".encode())
    for data in (array.tobytes(), *more):
        digest.update(data)
    return digest.hexdigest()


def _open(source: Path | bytes) -> BinaryIO:
    return BytesIO(source) if isinstance(source, bytes) else source.open("rb")


@contextmanager
def _container(source: Path | bytes) -> Iterator[InputContainer]:
    # FFmpeg may read this file alone: a playlist in it could name any other file or address.
    with _open(source) as file, av.open(file, "r", options={"protocol_whitelist": "none"}) as container:
        _check_seconds((container.duration or 0) / av.time_base)
        yield container


@contextmanager
def _decoder_errors() -> Iterator[None]:
    """Decoders raise almost anything on damaged input: OSError, SyntaxError, struct.error, IndexError, ..."""
    try:
        yield
    except MediaError:
        raise
    except PIL.UnidentifiedImageError as error:
        raise MediaError(f"cannot be decoded: not one of {', '.join(IMAGE_FORMATS)}") from error
    except Exception as error:
        raise MediaError(f"cannot be decoded: {one_line(error)}") from error


def _tick(stream: av.AudioStream | av.VideoStream) -> Fraction:
    """Seconds of one unit of the stream's times."""
    assert stream.time_base is not None
    return stream.time_base


def _check_seconds(seconds: float) -> None:
    if seconds > MAX_SECONDS:
        raise MediaError(f"lasts {seconds:.0f} s; at most {MAX_SECONDS:.0f} s are read: cut it")


def _check_complete(seconds: float, stream: av.AudioStream | av.VideoStream) -> None:
    """FFmpeg ends a file that was cut off without complaint. Containers that list their frames (mp4, avi) state how
    long each track should be; for others FFmpeg may report the length of the whole file as that of a track."""
    stated_seconds = float((stream.duration or 0) * _tick(stream))
    if stream.frames and seconds < 0.9 * stated_seconds:
        raise MediaError(f"ends after {seconds:.1f} of {stated_seconds:.1f} s: the file is cut short or damaged")
