"""Clips that could not be read, named once with the reason and refused at once when they come again."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from blake3 import blake3

from motet.config.schema import VideoConfig
from motet.data.errors import MediaError
from motet.data.media import Media
from motet.data.reference import Reach, describe, unwrap
from motet.types import MediaPart


class Quarantine:
    """`load`, a Decoder or `motet.data.media.load`, that tries no clip twice: one may have cost its whole deadline.

    `path` gets a line per clip, as soon as it has failed:

        {"kind": "video", "ref": "clips/17.mp4", "reason": "cannot be decoded: moov atom not found", "clip": "9c1..."}

    `clip` is a hash of what the row says and, for a path, of the file's size and time of change: a file that was
    replaced is tried again. The list outlives the run, so that a resumed one draws the same groups; to try a clip
    again, delete its line. Decoded objects are always tried. Safe to call from several threads.
    """

    def __init__(self, load: Callable[..., Media], path: Path) -> None:
        self._load = load
        self._path = path
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        if path.exists():
            self._reopen()

    def __len__(self) -> int:
        return len(self._reasons)

    def __call__(self, part: MediaPart, *, reach: Reach, video: VideoConfig) -> Media:
        """As `motet.data.media.load`."""
        clip = _identity(part, reach)
        if clip is None:
            return self._load(part, reach=reach, video=video)
        name = describe(part.ref)
        if clip in self._reasons:
            raise MediaError(f"{name}: {self._reasons[clip]}")
        try:
            return self._load(part, reach=reach, video=video)
        except MediaError as error:
            self._add(clip, kind=part.kind, ref=name, reason=str(error).removeprefix(f"{name}: "))
            raise

    def _add(self, clip: str, *, kind: str, ref: str, reason: str) -> None:
        line = json.dumps({"kind": kind, "ref": ref, "reason": reason, "clip": clip})
        with self._lock:
            if clip in self._reasons:
                return  # another thread failed at it too
            self._reasons[clip] = reason
            with self._path.open("a") as file:
                file.write(f"{line}\n")

    def _reopen(self) -> None:
        """A line without its end was cut by a crash, and goes."""
        lines = self._path.read_text().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        if whole != lines:
            draft = self._path.with_name(f"{self._path.name}.draft")
            draft.write_text("".join(whole))
            draft.replace(self._path)
        for line in whole:
            entry = json.loads(line)
            self._reasons[entry["clip"]] = entry["reason"]


def _identity(part: MediaPart, reach: Reach) -> str | None:
    """None where `part` refers to an object that is decoded already."""
    ref: Any = unwrap(part.ref)
    name = blake3(f"{part.kind} {part.use_audio} ".encode())
    if isinstance(ref, bytes | bytearray | memoryview):
        return name.update(ref).hexdigest()
    if not isinstance(ref, str | PathLike):
        return None
    place = os.path.join(reach.base, fspath(ref))
    name.update(place.encode(errors="surrogatepass"))
    try:
        stat = os.stat(place)
        name.update(f" {stat.st_size} {stat.st_mtime_ns}".encode())
    except (OSError, ValueError):  # an address, data, or a path that leads nowhere
        name.update(b" nowhere")
    return name.hexdigest()
