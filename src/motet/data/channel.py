"""Objects over a socket between a process and its own child; their arrays go past the pickle.

    socket:         sizes, pickle                arrays that have no more room beside
    shared memory:  array array array ...

A socket costs a pair of system calls for every few hundred kilobytes, shared memory two copies: for an image that is
the difference between a third of the decoding and a tenth.
"""

from __future__ import annotations

import mmap
import pickle
import socket
import time
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

import numpy as np

PREFIX = Struct("<QQ")
"""Bytes of the pickle, and how many arrays come after it."""
SIZE = Struct("<Q")


class Channel:
    """One end. Of a call that raises, the rest is still on its way: nothing can follow it.

    `ends` is when sending or receiving must be done, on the clock of `time.monotonic`; None waits for ever. Raises
    TimeoutError then, and EOFError or ConnectionError where the other end is gone.

    Args:
        end: of a pair of sockets.
        shared: the same memory at both ends; the ends take turns, so that it holds one message.
    """

    def __init__(self, end: socket.socket, shared: mmap.mmap) -> None:
        self._socket = end
        self._shared = shared

    def send(self, value: Any, ends: float | None = None) -> None:
        arrays: list[pickle.PickleBuffer] = []
        head = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
        views: list[Any] = [array.raw() for array in arrays]
        sizes = [view.nbytes for view in views]
        rest = []
        for place, view in zip(self._places(sizes), views, strict=True):
            if place is None:
                rest.append(view)
            else:
                self._shared[place] = view
        first = PREFIX.pack(len(head), len(views)) + b"".join(map(SIZE.pack, sizes)) + head
        for data in (first, *rest):
            self._socket.settimeout(_remaining(ends))
            self._socket.sendall(data)

    def receive(self, ends: float | None = None) -> Any:
        num_bytes, num_arrays = PREFIX.unpack(self._read(PREFIX.size, ends))
        sizes = [size for (size,) in SIZE.iter_unpack(self._read(SIZE.size * num_arrays, ends))]
        head = self._read(num_bytes, ends)
        arrays = []
        for place, size in zip(self._places(sizes), sizes, strict=True):
            arrays.append(self._read(size, ends) if place is None else self._copy(place))
        return pickle.loads(head, buffers=arrays)

    def close(self) -> None:
        self._socket.close()
        self._shared.close()

    def _places(self, sizes: Sequence[int]) -> Iterator[slice | None]:
        """Where in the shared memory each array is, while there is room."""
        end = 0
        for size in sizes:
            start, end = end, end + size
            yield slice(start, end) if end <= len(self._shared) else None

    def _copy(self, place: slice) -> memoryview:
        with memoryview(self._shared) as shared, shared[place] as view:
            return np.array(view, np.uint8).data

    def _read(self, num_bytes: int, ends: float | None) -> memoryview:
        view = np.empty(num_bytes, np.uint8).data  # a bytearray would be filled with zeros first
        at = 0
        while at < num_bytes:
            self._socket.settimeout(_remaining(ends))
            num_read = self._socket.recv_into(view[at:])
            if not num_read:
                raise EOFError
            at += num_read
        return view


def _remaining(ends: float | None) -> float | None:
    if ends is None:
        return None
    seconds = ends - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
