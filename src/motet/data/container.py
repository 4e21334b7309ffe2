"""What the decoders share: limits, how a file is opened, and what its header and its end must agree on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import av
import numpy as np
import PIL.Image
from av.container import InputContainer
from blake3 import blake3
from numpy.typing import NDArray

from motet.data.errors import MediaError, one_line

MAX_PIXELS = 64_000_000
"""Of an image or a frame; larger ones are refused before they are decoded."""
MAX_SECONDS = 3600.0
"""Of a sound or a video; longer ones are refused before they are decoded."""
READ_BYTES = 1 << 18
"""Read from a file at once."""
STATED_BY_TRACK = ("mov,mp4,m4a,3gp,3g2,mj2", "avi", "flac")
"""Containers whose header says how long each track is; for others FFmpeg guesses, or takes the length of the file."""
STATED_BY_FILE = ("matroska,webm",)
"""Containers whose header says how long the longest track is."""

Track = av.AudioStream | av.VideoStream


def content_hash(kind: str, array: NDArray[Any], *more: bytes) -> str:
    """Name of decoded media: of a kind, and of all that is to be seen or heard."""
    digest = blake3(f"{kind} {array.dtype.str} {array.shape} ".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    for data in more:
        digest.update(data)
    return digest.hexdigest()


def open_file(source: Path | bytes) -> BinaryIO:
    return BytesIO(source) if isinstance(source, bytes) else source.open("rb")


@contextmanager
def open_container(source: Path | bytes) -> Iterator[InputContainer]:
    # FFmpeg may read this file alone: a playlist in it could name any other file or address.
    options = {"protocol_whitelist": "none"}
    with open_file(source) as file:
        _check_size(file)
        # Tags are of no concern, in whatever encoding they are.
        with av.open(file, "r", options=options, metadata_errors="replace", buffer_size=READ_BYTES) as container:
            check_seconds((container.duration or 0) / av.time_base)
            yield container


@contextmanager
def decoder_errors(remedy: str = "") -> Iterator[None]:
    """Decoders raise almost anything on damaged input: OSError, SyntaxError, struct.error, IndexError, ..."""
    try:
        yield
    except MediaError:
        raise
    except PIL.UnidentifiedImageError as error:
        raise MediaError(f"cannot be decoded: {remedy}") from error
    except Exception as error:
        raise MediaError(f"cannot be decoded: {one_line(error)}") from error


def one_thread(track: Track) -> None:
    """A process that decodes has its own core, and not more than that."""
    if track.codec_context is None:
        raise MediaError("there is no decoder for it; convert it to a common codec, such as H.264, VP9 or AAC")
    track.codec_context.thread_count = 1
    track.codec_context.thread_type = "NONE"


def tick(track: Track) -> Fraction:
    """Seconds of one unit of the track's times."""
    assert track.time_base is not None
    return track.time_base


def packets(container: InputContainer, track: Track) -> Iterator[av.Packet]:
    """The track's packets in the order of decoding; the last one is empty and drains the decoder.

    Raises MediaError where the track is longer than `MAX_SECONDS`, or ends before its file's header says.
    """
    limit = int(MAX_SECONDS / tick(track))
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for packet in container.demux():
        number, pts = packet.stream.index, packet.pts
        if pts is not None:
            starts[number] = min(starts.get(number, pts), pts)
            ends[number] = max(ends.get(number, pts), pts + (packet.duration or 0))
        if number == track.index:
            if pts is not None and ends[number] - starts[number] > limit:
                check_seconds(float((ends[number] - starts[number]) * tick(track)))
            yield packet
    if container.format.name in STATED_BY_TRACK and track.index in ends:
        seconds = float((ends[track.index] - starts[track.index]) * tick(track))
        check_complete(seconds, float((track.duration or 0) * tick(track)))
    elif container.format.name in STATED_BY_FILE:
        bases = {stream.index: stream.time_base or Fraction(0) for stream in container.streams}
        seconds = max((float(end * bases[number]) for number, end in ends.items()), default=0.0)
        check_complete(seconds, (container.duration or 0) / av.time_base)


def _check_size(file: BinaryIO) -> None:
    """WAV and AVI state their size at the front, where FFmpeg goes by that of the file. A recorder that could not go
    back to fill it in leaves 0 or about the largest number; some miscount by a few bytes."""
    head = file.read(8)
    stated = int.from_bytes(head[4:], "little") + len(head)
    size = file.seek(0, SEEK_END)
    file.seek(0)
    if head[:4] == b"RIFF" and size + 1024 < stated < 0x7FFF0000:
        raise MediaError(f"ends after {size} of {stated} bytes: the file is cut short")


def check_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise MediaError(f"{width} x {height} pixels; at most {MAX_PIXELS} are read: scale it down")


def check_seconds(seconds: float) -> None:
    if seconds > MAX_SECONDS:
        raise MediaError(f"lasts {seconds:.0f} s; at most {MAX_SECONDS:.0f} s are read: cut it")


def check_complete(seconds: float, stated_seconds: float) -> None:
    """FFmpeg ends a file that was cut off without complaint. Encoders pad, and headers round."""
    if seconds < 0.98 * stated_seconds - 0.1:
        raise MediaError(f"ends after {seconds:.1f} of {stated_seconds:.1f} s: the file is cut short or damaged")
