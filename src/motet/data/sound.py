"""Sounds become one channel at 16 kHz, resampled once, here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from numpy.typing import NDArray

from motet.data.container import (
    check_seconds,
    content_hash,
    decoder_errors,
    one_thread,
    open_container,
    packets,
)
from motet.data.errors import MediaError

SAMPLE_RATE_HZ = 16_000
MAX_SAMPLE_RATE_HZ = 768_000
MAX_CHANNELS = 64
FULL_SCALE = {np.dtype(np.uint8): 1 << 7, np.dtype(np.int16): 1 << 15, np.dtype(np.int32): 1 << 31}
BLOCK_SAMPLES = 1 << 16
"""Of each channel, held at the source's rate at once; the result has no seams."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audio:
    samples: NDArray[np.float32]
    """[N], mono at 16 kHz, full scale at -1 and 1"""
    content: str
    """Hash of the samples."""


def read_audio(source: Any, *, picture_start_seconds: float | None = None) -> Audio:
    """Decode a file (a path or bytes) or `{"array", "sampling_rate"}`, the array [N] or [channels, N].

    `picture_start_seconds` is when the first frame is shown, if the sound is a video's track: the first sample of
    what is returned belongs there.
    """
    if isinstance(source, Mapping) and {"array", "sampling_rate"} <= source.keys():
        samples = _read_array(source, picture_start_seconds or 0.0)
    elif isinstance(source, Path | bytes):
        with decoder_errors(), open_container(source) as container:
            samples = _read_track(container, picture_start_seconds)
    else:
        raise MediaError('not a sound; give a path, address, data URI, bytes or {"array", "sampling_rate"}')
    if not len(samples):
        raise MediaError("its sound is empty")
    return Audio(samples=samples, content=content_hash("audio", samples))


def _read_array(source: Mapping[str, Any], picture_start_seconds: float) -> NDArray[np.float32]:
    array, rate = np.atleast_2d(np.asarray(source["array"])), int(source["sampling_rate"])
    if array.ndim > 2 or len(array) > MAX_CHANNELS:
        raise MediaError(f"sound of shape {list(array.shape)}; give [N] or [channels, N]")
    _check_rate(rate)
    check_seconds(array.shape[1] / rate)
    blocks = (_mono(array[:, at : at + BLOCK_SAMPLES]) for at in range(0, array.shape[1], BLOCK_SAMPLES))
    return _resample(_align(blocks, rate, -picture_start_seconds), rate)


def _read_track(container: InputContainer, picture_start_seconds: float | None) -> NDArray[np.float32]:
    stream = container.streams.best("audio")
    if not isinstance(stream, av.AudioStream):
        raise MediaError("has no sound track" + ("" if picture_start_seconds is None else "; set use_audio to false"))
    frames = _frames(container, stream)
    first = next(frames, None)
    if first is None:
        return np.zeros(0, np.float32)
    rate, start_seconds = first.sample_rate, first.time or 0.0
    delay_seconds = 0.0 if picture_start_seconds is None else start_seconds - picture_start_seconds
    return _resample(_align(_blocks(chain([first], frames)), rate, delay_seconds), rate)


def _frames(container: InputContainer, stream: av.AudioStream) -> Iterator[av.AudioFrame]:
    """The decoded track, which must have one sample rate, an end, and the length that its file states."""
    one_thread(stream)
    rate, num_samples = 0, 0
    for packet in packets(container, stream):
        for frame in packet.decode():
            assert isinstance(frame, av.AudioFrame)
            if not rate:
                rate = frame.sample_rate
                _check_rate(rate)
            if frame.sample_rate != rate:
                raise MediaError(f"its sample rate changes from {rate} to {frame.sample_rate} Hz; convert it to one")
            num_samples += frame.samples
            check_seconds(num_samples / rate)
            yield frame


def _check_rate(rate: int) -> None:
    if not 0 < rate <= MAX_SAMPLE_RATE_HZ:
        raise MediaError(f"its sampling rate is {rate} Hz; at most {MAX_SAMPLE_RATE_HZ} Hz are read")


def _blocks(frames: Iterator[av.AudioFrame]) -> Iterator[NDArray[np.float32]]:
    """One channel, in blocks: a codec's frames are so short that converting each would take longer than decoding."""
    waiting: list[NDArray[Any]] = []
    num_waiting = 0
    for frame in map(_Packed(), frames):
        array = frame.to_ndarray()
        array = array if frame.format.is_planar else array.reshape(-1, frame.layout.nb_channels).T
        is_other = waiting and (len(array), array.dtype) != (len(waiting[0]), waiting[0].dtype)
        if is_other or num_waiting > BLOCK_SAMPLES:
            yield _mono(np.concatenate(waiting, axis=1))
            waiting, num_waiting = [], 0
        waiting.append(array)
        num_waiting += array.shape[1]
    if waiting:
        yield _mono(np.concatenate(waiting, axis=1))


class _Packed:
    """Interleaves frames of so many channels that PyAV, which looks for the end of a list of at most eight planes,
    would read on behind it."""

    def __init__(self) -> None:
        self._packer: av.AudioResampler | None = None

    def __call__(self, frame: av.AudioFrame) -> av.AudioFrame:
        if not frame.format.is_planar or frame.layout.nb_channels < 8:
            return frame
        if self._packer is None:
            self._packer = av.AudioResampler(format=frame.format.packed.name)
        (packed,) = self._packer.resample(frame)
        return packed


def _mono(channels: NDArray[Any]) -> NDArray[np.float32]:
    """The mean over [C, N] samples; integers are scaled so that full scale is 1."""
    if channels.dtype not in FULL_SCALE and channels.dtype.kind != "f":
        raise MediaError(f"sound of type {channels.dtype}; give floats, int16 or int32")
    samples = channels[0].astype(np.float32)
    for channel in channels[1:]:  # numpy's own mean takes ten times as long over so short an axis
        samples += channel.astype(np.float32)
    samples /= len(channels)
    if channels.dtype == np.uint8:  # the one unsigned format: silence is 128
        samples -= 128
    samples /= FULL_SCALE.get(channels.dtype, 1)
    if not np.isfinite(samples).all():
        raise MediaError("its sound holds NaN or infinite samples")
    return samples


def _align(blocks: Iterator[NDArray[np.float32]], rate: int, delay_seconds: float) -> Iterator[NDArray[np.float32]]:
    """The sound after so much silence, or without what comes before."""
    check_seconds(abs(delay_seconds))
    delay = round(delay_seconds * rate)
    for at in range(0, delay, BLOCK_SAMPLES):
        yield np.zeros(min(BLOCK_SAMPLES, delay - at), np.float32)
    early = max(-delay, 0)
    for block in blocks:
        yield block[early:]
        early = max(early - len(block), 0)


def _resample(blocks: Iterator[NDArray[np.float32]], rate: int) -> NDArray[np.float32]:
    """f32[N * 16000 / rate], to one sample, by FFmpeg's default filter; of less than a millisecond nothing is left."""
    resampled: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
    if rate == SAMPLE_RATE_HZ:
        return np.concatenate([*resampled, *blocks])
    resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
    for block in filter(len, blocks):
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(block[None]), format="flt", layout="mono")
        frame.sample_rate = rate
        resampled += [out.to_ndarray()[0] for out in resampler.resample(frame)]
    resampled += [out.to_ndarray()[0] for out in resampler.resample(None)]
    return np.concatenate(resampled)
