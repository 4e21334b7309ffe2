"""A run is stopped at any moment, by SIGKILL, SIGTERM or a full disk, and goes on as if it had not been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from motet.checkpoint import dcp
from motet.checkpoint.store import CheckpointStore
from motet.data.rows import Rows
from motet.data.source import TaskSource

SMALL = (
    "rollout.groups_per_step=4",
    "rollout.group_size=4",
    "eval.max_rows=9",
    "eval.every_steps=4",
    "checkpoint.every_steps=2",
    "metrics.tensorboard=false",
    "metrics.report_groups=2",
)
TIMING = ("seconds/", "unix_seconds", "tokens_per_second", "features/")
"""Metrics that say how long things took and what memory held, which no two runs share."""


@pytest.fixture
def small(settings_for: Callable[[Path], list[str]], tmp_path: Path) -> Callable[..., list[str]]:
    """Settings of a small run in `tmp_path / name`."""

    def settings(name: str, *more: str) -> list[str]:
        return [*settings_for(tmp_path / name), *SMALL, *more]

    return settings


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "motet.cli", "train", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_step(process: subprocess.Popen[str], run: Path, step: int) -> None:
    """Until the step is in the metrics of the run."""
    while not any(record["step"] == step for record in records(run / "metrics.jsonl")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)


def records(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def metrics(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if not k.startswith(TIMING)} for r in records(run / "metrics.jsonl")]


def state(run: Path, step: int) -> dict[str, torch.Tensor]:
    return dict(dcp.stream(run / "checkpoints" / f"step-{step:06d}", lambda name: True))


def assert_same_end(run: Path, reference: Path, step: int) -> None:
    """Weights, optimizer, metrics and rows used, bit for bit."""
    ours, theirs = state(run, step), state(reference, step)
    assert ours.keys() == theirs.keys() and any(name.startswith("optimizer/") for name in ours)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert metrics(run) == metrics(reference)
    assert records(run / "groups.jsonl") == records(reference / "groups.jsonl")
    ends = [json.loads((r / "summary.json").read_text()) for r in (run, reference)]
    for name in ("eval_before", "eval_after", "num_steps"):
        assert ends[0][name] == ends[1][name]


@pytest.fixture(scope="module")
def whole(settings_for: Any, tmp_path_factory: pytest.TempPathFactory, motet: Any) -> Path:
    """Eight steps that nothing interrupts."""
    run = tmp_path_factory.mktemp("whole") / "run"
    done = motet("train", *settings_for(run), *SMALL, "steps=8")
    assert done.returncode == 0, done.stderr
    return run


def test_killed_and_resumed_it_equals_the_run_that_was_not(small: Any, tmp_path: Path, motet: Any, whole: Path) -> None:
    run = tmp_path / "killed"
    process = start(*small("killed", "steps=8"))
    wait_for_step(process, run, 4)
    process.kill()
    process.communicate()
    assert not (run / "summary.json").exists()
    done = motet("train", *small("killed", "steps=8"), "--resume")
    assert done.returncode == 0, done.stderr
    assert "resuming after step" in done.stdout
    assert_same_end(run, whole, 8)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_saves_and_says_how_to_go_on(
    small: Any, tmp_path: Path, motet: Any, whole: Path, number: signal.Signals
) -> None:
    run = tmp_path / "stopped"
    process = start(*small("stopped", "steps=8", "checkpoint.every_steps=100"))
    wait_for_step(process, run, 3)
    process.send_signal(number)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    last = out.splitlines()[-1]
    step = int(last.split()[3].rstrip(";"))
    assert last == f"stopped after step {step}; go on with: motet train {run} --resume"
    assert 3 <= step < 8
    assert CheckpointStore(run / "checkpoints", keep_last=2).latest() == step
    done = motet("train", run, "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_end(run, whole, 8)


def test_before_the_first_checkpoint_it_begins_again(small: Any, tmp_path: Path, motet: Any, whole: Path) -> None:
    run = tmp_path / "early"
    process = start(*small("early", "steps=8"))
    while not (run / "config.toml").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    process.kill()
    process.communicate()
    done = motet("train", *small("early", "steps=8"), "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_end(run, whole, 8)


def test_with_lag_no_row_is_lost_or_used_twice(small: Any, world: Path, tmp_path: Path, motet: Any) -> None:
    run = tmp_path / "lagging"
    words = small("lagging", "steps=8", "max_lag=1")
    process = start(*words)
    wait_for_step(process, run, 4)
    process.kill()
    process.communicate()
    done = motet("train", *words, "--resume")
    assert done.returncode == 0, done.stderr
    taken = [record["task"] for record in records(run / "groups.jsonl")]
    tasks = iter(TaskSource(Rows(world / "toy" / "train.jsonl"), seed=0))
    assert taken == [next(tasks).id for _ in taken]
    assert [record["group"] for record in records(run / "groups.jsonl")] == list(range(len(taken)))
    ages = [record["data/age"] for record in metrics(run) if "data/age" in record]
    assert len(ages) == 8 and min(ages) >= 0 and max(ages) <= 1


def test_another_configuration_is_refused_by_name(small: Any, motet: Any, whole: Path) -> None:
    words = [w for w in small("unused", "steps=9") if not w.startswith("run_dir=")]
    done = motet("train", *words, f"run_dir={whole}", "rollout.temperature=0.5", "--resume")
    assert done.returncode == 2
    assert done.stderr.startswith("motet: error: rollout: ") and len(done.stderr.splitlines()) == 1


FULL = """
set -e
mount -t tmpfs -o size="$1" tmpfs "$2"
shift 2
"$@"
"""


def test_a_full_disk_is_an_alarm_and_the_run_goes_on_once_there_is_space(small: Any, tmp_path: Path) -> None:
    """On a file system of its own, as root of a namespace of its own. A reward fills the disk, and empties it when two
    saves did not fit."""
    disk, filler = tmp_path / "disk", tmp_path / "disk" / "filler"
    disk.mkdir()
    (tmp_path / "fills.py").write_text(
        f"""
import os, shutil
from pathlib import Path
RUN, FILLER = Path({str(disk / "run")!r}), Path({str(filler)!r})

def reward(task, completion):
    alarms = (RUN / "alarms.jsonl").read_text() if (RUN / "alarms.jsonl").exists() else ""
    if (RUN / "checkpoints" / "step-000002").exists() and not alarms.count("no space"):
        if not FILLER.exists():
            free = shutil.disk_usage(FILLER.parent).free
            with FILLER.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, free - (4 << 20))
    elif alarms.count("no space") == 2:  # at the step that was due, and at the next
        FILLER.unlink(missing_ok=True)
    return (len(completion.text) % 3 + hash(completion.text) % 2) / 3
"""
    )
    words = small(
        "disk/run", "steps=8", "reward.score.kind=function", "reward.score.path=fills:reward", "eval.every_steps=99"
    )
    command = [sys.executable, "-m", "motet.cli", "train", *words, "checkpoint.keep_last=1"]
    shell = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", FULL + 'cp -r "$KEEP"/run "$OUT"']
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONHASHSEED": "0", "KEEP": str(disk)}
    environment["OUT"] = str(tmp_path / "kept")
    done = subprocess.run(
        [*shell, "bash", "120m", str(disk), *command], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "kept"
    alarms = [a for a in records(run / "alarms.jsonl") if "no space on the disk" in a["message"]]
    assert [a["step"] for a in alarms] == [4, 5]
    assert alarms[0]["message"].startswith("checkpoint of step 4: no space on the disk of ")
    store = CheckpointStore(run / "checkpoints", keep_last=1)
    assert store.latest() == 8
    assert [r["step"] for r in records(run / "metrics.jsonl")] == list(range(9))
