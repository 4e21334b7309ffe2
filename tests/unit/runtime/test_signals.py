"""Real signals to real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from motet.runtime.signals import stop_on_signals

WAITS = """
import asyncio, sys, time
from motet.runtime.signals import stop_on_signals

async def main():
    with stop_on_signals() as stop:
        print("ready", flush=True)
        if sys.argv[1] == "idle":
            await stop.wait()
        else:
            time.sleep(60)
    print("saved", flush=True)

asyncio.run(main())
"""


def _start(how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", WAITS, how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks(number: signal.Signals) -> None:
    process = _start("idle")
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.splitlines()[-1] == "saved"
    assert out.splitlines()[0].startswith("stopping")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_ends_at_once_even_a_process_that_is_busy(number: signal.Signals) -> None:
    process = _start("busy")
    process.send_signal(number)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("stopping")
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "saved" not in out


def test_handlers_are_as_before_afterwards() -> None:
    import asyncio

    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    inside = []

    async def main() -> None:
        with stop_on_signals():
            inside.extend(signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT))

    asyncio.run(main())
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
    assert not set(inside) & set(before)


def test_in_another_thread_nothing_is_heard() -> None:
    import asyncio

    heard = []

    async def main() -> None:
        with stop_on_signals() as stop:
            time.sleep(0.01)
            heard.append(stop.is_set())

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert heard == [False]
    assert signal.getsignal(signal.SIGTERM) == before
