from __future__ import annotations

import mmap
import signal
import socket
import subprocess
import sys
import tempfile

from motet.data.channel import Channel


def start(code: str) -> tuple[subprocess.Popen[bytes], Channel]:
    ours, theirs = socket.socketpair()
    with theirs, tempfile.TemporaryFile() as file:
        file.truncate(4096)
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(file.fileno())], stdin=theirs.fileno(), pass_fds=[file.fileno()]
        )
        channel = Channel(ours, mmap.mmap(file.fileno(), 4096))
    assert channel.receive() == ("ready", None)
    return process, channel


def test_it_loads_no_torch() -> None:
    code = "import sys, motet.data.worker; sys.exit(bool({'torch', 'transformers', 'pandas'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_ends_when_the_other_end_does() -> None:
    process, channel = start("from motet.data import worker; worker.main()")
    channel.close()
    assert process.wait(60) == 0


def test_its_alarm_ends_a_decoder_that_never_returns() -> None:
    # It waits in C and keeps the interpreter's lock, so that no Python code of the process can run.
    code = "import ctypes; from motet.data import worker; worker.Work.open = lambda *_: ctypes.PyDLL(None).pause()"
    process, channel = start(f"{code}; worker.main()")
    channel.send(("open", (None, None), 0.1 - 5.0))
    channel.close()
    assert process.wait(60) == -signal.SIGALRM
