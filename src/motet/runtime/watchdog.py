"""A run that stands still says where, and ends: a hung collective or a dead server would hold its GPUs for days."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from motet.metrics.stages import Stopwatch

EXIT_STATUS = 70
"""EX_SOFTWARE of sysexits.h: neither the user's mistake nor a traceback."""


@contextmanager
def watchdog(watch: Stopwatch, *, deadline_seconds: float, dump: Path) -> Iterator[None]:
    """Within it, a stage of `watch` that runs longer than `deadline_seconds` ends the process with `EXIT_STATUS`.

    The stacks of all threads go to the file `dump` first, and a line with the stage's name to stderr. The process is
    not asked: what stands still cannot clean up, and the next run resumes from the last checkpoint.
    """
    done = threading.Event()
    thread = threading.Thread(target=_look, args=(watch, deadline_seconds, dump, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _look(watch: Stopwatch, deadline_seconds: float, dump: Path, done: threading.Event) -> None:
    while not done.wait(min(1.0, deadline_seconds / 4)):
        name, seconds = watch.longest()
        if seconds <= deadline_seconds:
            continue
        with dump.open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        print(
            f"motet: error: the stage {name!r} took longer than {deadline_seconds:g} s (deadline_seconds); the stacks "
            f"of all threads are in {dump}; go on with --resume",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_STATUS)
