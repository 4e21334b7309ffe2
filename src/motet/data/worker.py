"""The process that fetches and decodes clips: `python -m motet.data.worker 5`, where standard input is a socket and
file 5 memory that is shared with who asks.

It answers one request at a time, and ends when the socket does, or by its own alarm in a decoder that never returns.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import resource
import signal
import socket
import sys
import traceback
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

from blake3 import blake3

from motet.config.schema import VideoConfig
from motet.data import media
from motet.data.channel import Channel
from motet.data.container import open_file
from motet.data.errors import MediaError, one_line
from motet.data.media import Media
from motet.data.reference import Reach, resolve
from motet.types import MediaPart

MEMORY_BYTES = 8 << 30
"""Address space of a process that decodes. The largest clip that is read takes less."""
GRACE_SECONDS = 5.0
"""By which the alarm comes after the deadline, at which the other end would have killed this process."""


class Work:
    """Opens a clip, and decodes the one opened last."""

    def __init__(self) -> None:
        self._source: Any = None

    def open(self, part: MediaPart, reach: Reach) -> str:
        """Find or fetch the file; hash of its bytes. Raises MediaError, which does not name the reference."""
        self._source = resolve(part.ref, reach)
        assert isinstance(self._source, Path | bytes), "objects already decoded are not sent here"
        try:
            with open_file(self._source) as file:
                return hashlib.file_digest(file, blake3).hexdigest()  # type: ignore[arg-type]
        except OSError as error:
            raise MediaError(f"cannot be read: {one_line(error)}") from error

    def read(self, part: MediaPart, video: VideoConfig) -> Media:
        """Decode it. Raises MediaError, which does not name the reference."""
        source, self._source = self._source, None
        return media.read(part, source, video=video)


def main() -> None:
    _confine()
    shared = mmap.mmap(int(sys.argv[1]), 0)
    channel, work = Channel(socket.socket(fileno=sys.stdin.fileno()), shared), Work()
    channel.send(("ready", None))
    # The libraries print there what they raise as well, and warn: what is wrong with a clip is in its MediaError.
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere), suppress(EOFError, ConnectionError):
        while True:
            method, arguments, seconds = channel.receive()
            signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_SECONDS)
            channel.send(_answer(getattr(work, method), arguments))
            signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(method: Any, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "done", method(*arguments)
    except MediaError as error:
        return "refused", str(error)
    except MemoryError:
        return "refused", f"takes more than {MEMORY_BYTES >> 30} GiB of memory to decode"
    except Exception:
        return "failed", traceback.format_exc()


def _confine() -> None:
    # Ctrl-C and a scheduler's SIGTERM go to all processes of a run; it is the run that decides when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for limit, num_bytes in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(limit)[1]
        num_bytes = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
        resource.setrlimit(limit, (num_bytes, num_bytes))
    if sys.platform == "linux":  # where memory runs out, this process goes before the one that trains
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
