from __future__ import annotations

import mmap
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from motet.data.channel import PREFIX, Channel


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


@pytest.fixture
def channels(ends: tuple[socket.socket, socket.socket]) -> tuple[Channel, Channel]:
    """They share 1000 bytes."""
    shared = mmap.mmap(-1, 1000)
    return Channel(ends[0], shared), Channel(ends[1], shared)


def through(channels: tuple[Channel, Channel], value: Any) -> Any:
    """More than a socket holds has to be read while it is written."""
    writer = threading.Thread(target=channels[0].send, args=(value,))
    writer.start()
    received = channels[1].receive()
    writer.join()
    return received


def test_objects_come_through_with_their_arrays(channels: tuple[Channel, Channel]) -> None:
    frames = np.arange(3 << 20, dtype=np.uint8).reshape(3, 1024, 1024)
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    name, values = through(
        channels, ("video", {"frames": frames, "turned": turned, "none": np.zeros((0, 2), np.int64)})
    )
    assert name == "video"
    np.testing.assert_array_equal(values["frames"], frames)
    np.testing.assert_array_equal(values["turned"], turned)
    assert values["none"].shape == (0, 2) and values["none"].dtype == np.int64
    assert values["frames"].flags.writeable


@pytest.mark.parametrize(
    "sizes", [(400, 600), (400, 601), (1000, 1), (1001, 1), (1, 1001, 1), (0, 1000, 0), (999, 1, 1)]
)
def test_what_has_no_room_in_the_shared_memory_comes_through_the_socket(
    channels: tuple[Channel, Channel], sizes: tuple[int, ...]
) -> None:
    arrays = [np.full(size, 1 + number, np.uint8) for number, size in enumerate(sizes)]
    for array, expected in zip(through(channels, arrays), arrays, strict=True):
        np.testing.assert_array_equal(array, expected, strict=True)


def test_arrays_outlast_the_message_after_theirs(channels: tuple[Channel, Channel]) -> None:
    first = through(channels, np.ones(900, np.uint8))
    second = through(channels, np.zeros(900, np.uint8))
    assert (first.min(), second.max()) == (1, 0)


def test_messages_keep_apart(channels: tuple[Channel, Channel]) -> None:
    here, there = channels
    here.send([1, 1, 1])
    here.send("second")
    assert there.receive() == [1, 1, 1]
    assert there.receive() == "second"


def test_a_message_that_stops_midway_is_late(
    ends: tuple[socket.socket, socket.socket], channels: tuple[Channel, Channel]
) -> None:
    ends[0].sendall(PREFIX.pack(1000, 0) + b"x")
    with pytest.raises(TimeoutError):
        channels[1].receive(time.monotonic() + 0.05)


def test_a_message_that_nobody_reads_is_late(channels: tuple[Channel, Channel]) -> None:
    with pytest.raises(TimeoutError):
        channels[0].send(np.zeros(16 << 20, np.uint8), time.monotonic() + 0.05)


def test_a_deadline_that_has_passed_is_late_even_with_a_message_there(channels: tuple[Channel, Channel]) -> None:
    channels[0].send("there")
    with pytest.raises(TimeoutError):
        channels[1].receive(time.monotonic())
    assert channels[1].receive(time.monotonic() + 60) == "there"


@pytest.mark.parametrize("begun", [b"", b"\x05\x00", PREFIX.pack(1000, 0) + b"x"])
def test_an_end_that_goes_away_is_told(
    ends: tuple[socket.socket, socket.socket], channels: tuple[Channel, Channel], begun: bytes
) -> None:
    ends[0].sendall(begun)
    ends[0].close()
    with pytest.raises(EOFError):
        channels[1].receive()
