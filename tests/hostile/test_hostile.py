"""Every hostile file ends, soon, in a clip or in one line that says why not; and nothing is left behind."""

from __future__ import annotations

import gc
import json
import os
import runpy
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from motet.config.schema import VideoConfig
from motet.data.decode import Decoder
from motet.data.media import Media, MediaError, describe
from motet.data.quarantine import Quarantine
from motet.data.reference import Reach
from motet.types import MediaKind, MediaPart

MAKE = runpy.run_path(str(Path(__file__).with_name("make.py")))
DEADLINE_SECONDS = 5.0
SLACK_SECONDS = 10.0
"""For a worker to be killed and another to start on a busy machine."""
MAX_GROWTH_BYTES = 256 << 20
NEVER_END = ("tracks/10000_frames_of_3000x3000.avi",)


class Outcome(NamedTuple):
    kind: MediaKind
    ref: str
    must_fail: bool
    message: str | None
    """None where it was read."""
    seconds: float


class Run(NamedTuple):
    outcomes: list[Outcome]
    good: Counter[str]
    """How often each good file was read, after all the others."""
    quarantine: list[dict[str, str]]
    growth_bytes: int
    """Of this process."""
    pids: set[int]
    """Of the workers."""
    files_left: set[str]
    """Descriptors open now that were not before."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder, list_folder = tmp_path_factory.mktemp("hostile"), tmp_path_factory.mktemp("run")
    hostile = [tuple(file) for file in MAKE["make"](folder)]
    reach = Reach(roots=(folder, Path("/dev"), Path("/proc")), base=folder)
    files_before, pids = set(os.listdir("/proc/self/fd")), set()
    with Decoder(num_workers=2, timeout_seconds=DEADLINE_SECONDS, cache_bytes=16 << 20) as decoder:
        load = Quarantine(decoder, list_folder / "quarantine.jsonl")

        def read(kind: MediaKind, ref: str) -> Media:
            try:
                return load(MediaPart(kind=kind, ref=ref), reach=reach, video=VideoConfig())
            finally:
                pids.update(worker._process.pid for worker in list(decoder._workers))

        good = [(kind, f"good.{suffix}") for kind, suffix in MAKE["kinds"]()]
        for kind, name in good:
            read(kind, name)
        before = resident_bytes()
        with growing(folder / "growing.wav", MAKE["goods"]()["wav"]), ThreadPoolExecutor(2) as threads:
            hostile.append(("audio", "growing.wav", False))
            outcomes = list(threads.map(lambda file: outcome(read, *file), hostile))
        gc.collect()
        growth_bytes = resident_bytes() - before
        read_again = Counter(name for kind, name in good if read(kind, name))
    lines = (list_folder / "quarantine.jsonl").read_text().splitlines()
    files_left = set(os.listdir("/proc/self/fd")) - files_before
    return Run(outcomes, read_again, [json.loads(line) for line in lines], growth_bytes, pids, files_left)


def outcome(read: Callable[..., Any], kind: MediaKind, ref: str, must_fail: bool) -> Outcome:
    started = time.monotonic()
    message = None
    try:
        read(kind, ref)
    except MediaError as error:
        message = str(error)
    return Outcome(kind, ref, must_fail, message, time.monotonic() - started)


@contextmanager
def growing(path: Path, start: bytes) -> Iterator[None]:
    """A file that gets longer while it is read, up to 200 MB."""
    done = threading.Event()

    def grow() -> None:
        with path.open("ab", buffering=0) as file:
            while file.tell() < 200_000_000 and not done.is_set():
                file.write(bytes(1 << 20))

    path.write_bytes(start)
    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def resident_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def test_there_are_enough_of_them(run: Run) -> None:
    assert len(run.outcomes) >= 300
    assert sum(outcome.must_fail for outcome in run.outcomes) >= 200


def test_the_same_files_are_made_each_time() -> None:
    goods = MAKE["goods"]()
    for family in ("cut", "noise", "flipped", "sounds"):
        first, second = (list(MAKE[family](goods, MAKE["np"].random.default_rng(1))) for _ in range(2))
        assert first == second


def test_what_must_fail_does(run: Run) -> None:
    assert [outcome.ref for outcome in run.outcomes if outcome.must_fail and outcome.message is None] == []


def test_a_failure_is_one_line_that_names_the_reference(run: Run) -> None:
    failed = [outcome for outcome in run.outcomes if outcome.message is not None]
    for outcome in failed:
        assert outcome.message is not None
        assert outcome.message.isprintable(), outcome
        name, reason = outcome.message[: len(describe(outcome.ref))], outcome.message[len(describe(outcome.ref)) :]
        assert name == describe(outcome.ref)
        assert reason.startswith(": ") and len(reason) > 10, outcome


def test_none_takes_longer_than_its_deadline(run: Run) -> None:
    late = [outcome for outcome in run.outcomes if outcome.seconds > DEADLINE_SECONDS + SLACK_SECONDS]
    assert late == []
    stopped = {outcome.ref for outcome in run.outcomes if outcome.message and "took longer than 5 s" in outcome.message}
    assert stopped >= set(NEVER_END)


def test_good_files_are_still_read(run: Run) -> None:
    assert run.good == {f"good.{suffix}": 1 for _, suffix in MAKE["kinds"]()}


def test_each_failure_is_in_quarantine_with_its_reason(run: Run) -> None:
    named = Counter((line["kind"], f"{line['ref']}: {line['reason']}") for line in run.quarantine)
    failed = Counter((o.kind, o.message) for o in run.outcomes if o.message is not None)
    assert named == failed


def test_nothing_is_left_behind(run: Run) -> None:
    assert len(run.pids) >= 2 + len(NEVER_END)
    assert [pid for pid in run.pids if Path(f"/proc/{pid}").exists()] == []
    assert run.files_left == set()
    assert run.growth_bytes < MAX_GROWTH_BYTES
