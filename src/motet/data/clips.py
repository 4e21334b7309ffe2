"""Decoded clips, kept by content: what several rows refer to is decoded once, also where they ask at the same time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

from motet.data.media import Audio, Image, Media


class ClipCache:
    """The clips used last, up to `capacity_bytes` of arrays. Safe to use from several threads."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Future[Media]] = OrderedDict()
        self._running: dict[Hashable, Future[Media]] = {}
        self.num_bytes = 0

    def claim(self, key: Hashable) -> tuple[Future[Media], bool]:
        """The clip, now or later, and whether the caller is the one to `settle` it."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key], False
            if key in self._running:
                return self._running[key], False
            clip = self._running[key] = Future()
            return clip, True

    def settle(self, key: Hashable, decode: Callable[[], Media]) -> None:
        """Decode what was claimed. What `decode` raises goes to all who wait; the next to ask tries again."""
        clip = self._running[key]
        try:
            media = decode()
        except BaseException as error:
            with self._lock:
                del self._running[key]
            clip.set_exception(error)
            return
        with self._lock:
            del self._running[key]
            self._keep(key, clip, num_bytes(media))
        clip.set_result(media)

    def _keep(self, key: Hashable, clip: Future[Media], num_clip_bytes: int) -> None:
        if num_clip_bytes > self._capacity_bytes:
            return  # all others would have to go for nothing
        self._kept[key] = clip
        self.num_bytes += num_clip_bytes
        while self.num_bytes > self._capacity_bytes:
            self.num_bytes -= num_bytes(self._kept.popitem(last=False)[1].result())


def num_bytes(media: Media) -> int:
    """Of its arrays."""
    if isinstance(media, Image):
        return media.pixels.nbytes
    if isinstance(media, Audio):
        return media.samples.nbytes
    return (
        media.frames.nbytes + media.times.nbytes + media.indices.nbytes + (num_bytes(media.audio) if media.audio else 0)
    )
