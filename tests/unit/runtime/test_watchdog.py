"""Processes that stand still in a stage, and one that does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from motet.runtime.watchdog import EXIT_STATUS

STANDS_STILL = """
import sys, time
from pathlib import Path
from motet.metrics.stages import Stopwatch
from motet.runtime.watchdog import watchdog

def stuck_in_a_collective():
    time.sleep(60)

watch = Stopwatch()
with watchdog(watch, deadline_seconds=0.4, dump=Path(sys.argv[1])):
    for _ in range(8):
        with watch.stage("render"):
            time.sleep(0.1)
    print("quick stages pass", flush=True)
    with watch.stage("train"):
        stuck_in_a_collective()
"""


def test_a_stage_over_its_deadline_ends_the_process_with_the_stacks_of_all_threads(tmp_path: Path) -> None:
    dump = tmp_path / "stalled.txt"
    done = subprocess.run([sys.executable, "-c", STANDS_STILL, dump], capture_output=True, text=True, timeout=60)
    assert done.returncode == EXIT_STATUS
    assert done.stdout == "quick stages pass\n"
    assert done.stderr.startswith("motet: error: the stage 'train' took longer than 0.4 s (deadline_seconds)")
    assert len(done.stderr.splitlines()) == 1
    assert str(dump) in done.stderr
    assert "stuck_in_a_collective" in dump.read_text()
