"""Stopping a run from outside: the first SIGTERM or SIGINT asks it to stop, the second ends the process at once.

A scheduler sends SIGTERM some time before it kills, a terminal sends SIGINT on Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """Within it, the event is set by the first signal. Enter it in a coroutine.

    A thread of its own hears the signals: the main one may be busy for long in a kernel or a collective. Outside the
    main thread of a process, which alone may handle signals, nothing is heard and the event is never set.
    """
    stop = asyncio.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    hears, tells = socket.socketpair()
    tells.setblocking(False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in STOPPING}
    previous = signal.set_wakeup_fd(tells.fileno())
    thread = threading.Thread(target=_hear, args=(hears, asyncio.get_running_loop(), stop), daemon=True)
    thread.start()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        tells.close()
        thread.join()
        hears.close()


def _hear(hears: socket.socket, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Python writes the number of every signal that has a handler to the socket, whatever the main thread does."""
    asked = False
    while numbers := hears.recv(1):
        if numbers[0] not in STOPPING:
            continue
        if asked:
            os._exit(128 + numbers[0])
        asked = True
        print("stopping: the step is finished or its rollouts are abandoned, then saved; once more ends at once")
        loop.call_soon_threadsafe(stop.set)
