"""Clips decoded in other processes, each by a deadline, and kept by content.

    part --open--> hash of its file --kept? no--> read --> Image | Audio | Video
                   worker             this process  worker

Decoders are written in C, for files that mean well: on others they may not return, crash, or take all memory. So none
of this happens in the process that trains. A worker is a fresh Python process that loads no torch; it is killed where
it is late, and another takes its place.
"""

from __future__ import annotations

import mmap
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import IO, Any

from motet.config.schema import VideoConfig
from motet.data.channel import Channel
from motet.data.clips import ClipCache
from motet.data.errors import MediaError
from motet.data.media import Media, load
from motet.data.reference import Reach, describe, unwrap
from motet.data.worker import Work
from motet.types import MediaPart

CLOSED = "the decoder is closed"
START_SECONDS = 120.0
"""For a worker to load its libraries, on a busy machine or from a slow disk."""
KILL_SECONDS = 5.0
"""For a worker that was killed to be gone."""
SHARED_BYTES = 64 << 20
"""Of memory that a worker's clips come through; of a larger one a part comes through the socket."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Keeps memory that a clip needed for the next clip: to get it anew takes as long as decoding a small image.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "PYTHONSAFEPATH": "1",
}
"""Of a worker, beside this process's own."""


class Decoder:
    """`motet.data.media.load` in worker processes, safe to call from several threads.

    The same file is the same clip, whether a row gives its path, address or bytes; threads that ask for it at the same
    time wait for one decoding. What is given is shared: read it, do not write into it. Objects that are decoded already
    are converted in this process and not kept. Close it, or use it as a context; the workers of a process that is
    killed end by themselves.

    Args:
        num_workers: processes, started when they are needed. 0: in this process, without a deadline.
        timeout_seconds: deadline for fetching and decoding one clip, from when a worker begins with it.
        cache_bytes: of decoded clips; those used last are kept.
    """

    def __init__(self, *, num_workers: int, timeout_seconds: float, cache_bytes: int) -> None:
        self._timeout_seconds = timeout_seconds
        self._cache = ClipCache(cache_bytes)
        self._lock = threading.Lock()
        self._is_closed = False
        self._workers: set[_Worker] = set()
        self._num_workers = num_workers
        self._slots: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        """Idle workers, those that ran last on top, over empty places."""
        for _ in range(num_workers):
            self._slots.put(None)

    def __call__(self, part: MediaPart, *, reach: Reach, video: VideoConfig) -> Media:
        """As `motet.data.media.load`. Raises MediaError also where the clip is late, or ends the process that decodes
        it, and RuntimeError where the decoder is closed or no worker can be started."""
        ref = unwrap(part.ref)
        if not isinstance(ref, str | PathLike | bytes | bytearray | memoryview):
            return load(part, reach=reach, video=video)
        if isinstance(ref, bytearray | memoryview):
            ref = bytes(ref)
        try:
            return self._decode(replace(part, ref=ref), reach, video)
        except MediaError as error:
            raise MediaError(f"{describe(part.ref)}: {error}") from error.__cause__

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers at once; they are gone when it returns. Calls in progress raise RuntimeError."""
        with self._lock:
            self._is_closed = True
            for worker in self._workers:
                worker.kill()
        for idle in [self._slots.get() for _ in range(self._num_workers)]:
            if idle:
                idle.close()
            self._slots.put(None)  # for a thread that waits, which will find the decoder closed

    def _decode(self, part: MediaPart, reach: Reach, video: VideoConfig) -> Media:
        with self._work() as work:
            key: tuple[Any, ...] = (part.kind, work.open(part, reach))
            if part.kind == "video":
                key += (part.use_audio, video.fps, video.max_frames)
            clip, is_ours = self._cache.claim(key)
            if is_ours:
                self._cache.settle(key, partial(work.read, part, video))
        return clip.result()  # of another thread, perhaps: it waits for that one without holding a worker

    @contextmanager
    def _work(self) -> Iterator[Work | _Worker]:
        if not self._num_workers:
            yield Work()
            return
        worker = self._slots.get()
        try:
            if worker and worker.has_ended:  # killed while it was idle, which is no clip's fault
                self._end(worker)
                worker = None
            if worker is None:
                worker = self._start()
                worker.wait_ready()
            worker.ends = time.monotonic() + self._timeout_seconds
            yield worker
        finally:
            if worker and not worker.is_idle:
                self._end(worker)
                worker = None
            self._slots.put(worker)

    def _start(self) -> _Worker:
        with self._lock:
            if self._is_closed:
                raise RuntimeError(CLOSED)
            worker = _Worker(self._timeout_seconds)
            self._workers.add(worker)
            return worker

    def _end(self, worker: _Worker) -> None:
        with self._lock:
            self._workers.remove(worker)
        worker.close()


class _Worker:
    """The process, seen from here: the methods of `Work`, by `ends`."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self.ends = time.monotonic() + START_SECONDS
        self.is_idle = False
        """Whether its last answer came whole: only then does the next request meet its answer."""
        self._is_killed = False
        ours, theirs = socket.socketpair()
        with theirs, _memory_file() as shared:
            shared.truncate(SHARED_BYTES)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "motet.data.worker", str(shared.fileno())],
                stdin=theirs.fileno(),
                pass_fds=[shared.fileno()],
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
                process_group=0,  # the terminal's Ctrl-C is for the run, which decides when it ends
            )
            self._channel = Channel(ours, mmap.mmap(shared.fileno(), SHARED_BYTES))

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait_ready(self) -> None:
        try:
            self._channel.receive(self.ends)
        except (EOFError, ConnectionError, TimeoutError) as error:
            raise RuntimeError(CLOSED if self._is_killed else "a process to decode media in did not start") from error
        self.is_idle = True

    def open(self, part: MediaPart, reach: Reach) -> str:
        return self._ask("open", part, reach)

    def read(self, part: MediaPart, video: VideoConfig) -> Media:
        return self._ask("read", part, video)

    def kill(self) -> None:
        """From whichever thread."""
        self._is_killed = True
        self._process.kill()

    def close(self) -> None:
        """Returns when the process is gone. From the thread that holds the worker."""
        self.kill()
        # One that waits in the kernel, for a network disk that is away, dies when that lets it go.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)
        self._channel.close()

    def _ask(self, method: str, *arguments: Any) -> Any:
        self.is_idle = False
        try:
            self._channel.send((method, arguments, self._timeout_seconds), self.ends)
            outcome, value = self._channel.receive(self.ends)
        except TimeoutError as error:
            raise MediaError(f"took longer than {self._timeout_seconds:g} s (data.decode_timeout_seconds)") from error
        except (EOFError, OSError) as error:
            if self._is_killed:
                raise RuntimeError(CLOSED) from error
            raise MediaError(f"ended the process that decoded it ({self._last_words()})") from error
        self.is_idle = True
        if outcome == "refused":
            raise MediaError(value)
        if outcome == "failed":
            raise RuntimeError(f"in the process that decodes media:\n{value}")
        return value

    def _last_words(self) -> str:
        status = self._process.wait()
        return signal.Signals(-status).name if status < 0 else f"status {status}"


def _memory_file() -> IO[bytes]:
    """In memory where there is such a thing; `/dev/shm` is tiny in some containers."""
    return open(os.memfd_create("motet-clips"), "r+b") if sys.platform == "linux" else tempfile.TemporaryFile()
