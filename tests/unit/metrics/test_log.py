from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from motet.metrics.log import MetricsLog
from motet.types import Completion, Group, Prompt, Score, Task

STEP = {
    "reward/mean": 0.5,
    "loss": -0.00123,
    "entropy": 0.4321,
    "grad_norm": 0.75,
    "mismatch/mean": 1.5e-7,
    "completion/length_tokens": 2.5,
    "data/age": 0.0,
    "tokens_per_second": 812.4,
    "seconds/step": 3.44,
    "groups/skipped/no_spread": 2.0,
    "groups/skipped/too_long": 3.0,
    "lr": 1e-3,
}


def ticking(*seconds: float) -> Callable[[], float]:
    return iter(seconds).__next__


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_console_shows_one_aligned_line_per_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = ticking(0, 100, 110, 180, 1000)
    with MetricsLog(tmp_path, num_steps=20, tensorboard=False, clock=clock) as log:
        log.log(0, {"eval/accuracy": 0.46})
        log.log(1, STEP)
        log.log(10, {**STEP, "eval/accuracy": 0.875})
        log.log(20, STEP)
    fields = (
        "reward 0.500  loss -1.2e-03  entropy 0.432  grad  0.750  |new-old| 1.5e-07  length   2.5  age 0.0  "
        "   812 tok/s    3.4s  skipped  5"
    )
    assert capsys.readouterr().out.splitlines() == [
        "step  0/20 [>         ] eta      -  held-out 0.460",
        f"step  1/20 [>         ] eta  3m10s  {fields}",  # 19 steps to go at 10 s since step 0, not since the start
        f"step 10/20 [=====>    ] eta  1m20s  {fields}  held-out 0.875",  # 10 at 8 s
        f"step 20/20 [==========] eta     0s  {fields}",
    ]


def test_eta_after_resume_counts_the_steps_since(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MetricsLog(tmp_path, num_steps=1010, tensorboard=False, resume_step=8, clock=ticking(50, 70)) as log:
        log.log(10, {})
    assert capsys.readouterr().out == "step   10/1010 [>         ] eta  2h46m\n"  # 2 steps in 20 s, 1000 to go


def test_jsonl_has_every_metric_and_is_on_disk_at_once(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, num_steps=2, tensorboard=False, clock=ticking(0, 7.5, 8.5)) as log:
        log.log(1, STEP)
        assert records(tmp_path / "metrics.jsonl") == [{"step": 1, "unix_seconds": 7.5, **STEP}]
        log.log(2, {"grad_norm": inf, "loss": nan, "entropy": 1})
        assert records(tmp_path / "metrics.jsonl")[1] == {
            "step": 2,
            "unix_seconds": 8.5,
            "grad_norm": None,
            "loss": None,
            "entropy": 1.0,
        }
    assert not (tmp_path / "tensorboard").exists()


def test_an_alarm_is_seen_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MetricsLog(tmp_path, num_steps=2, tensorboard=False, clock=ticking(0, 1, 2)) as log:
        log.log(1, {})
        log.alarm("held-out accuracy fell to 0.31, 0.52 below its best")
    message = "held-out accuracy fell to 0.31, 0.52 below its best"
    assert capsys.readouterr().out.splitlines()[1] == f"! alarm: {message}"
    assert records(tmp_path / "alarms.jsonl") == [{"step": 1, "unix_seconds": 2, "message": message}]


def filled(folder: Path) -> None:
    with MetricsLog(folder, num_steps=9, tensorboard=False) as log:
        for step in range(5):
            log.log(step, {"loss": step})
            log.groups(step, [group(10 * step), group(10 * step + 1)])
            log.alarm(f"at {step}")


def group(number: int) -> Group:
    """Whose first completion spans versions 3 to 4."""
    nothing = np.zeros(0, np.float32)
    completions = [
        Completion(
            token_ids=nothing.astype(np.int32), logprobs=nothing, mask=nothing > 0, stop="eos", versions=v, text=""
        )
        for v in ((4, 4), (3, 4))
    ]
    return Group(
        id=number,
        task=Task(id=f"train-{number}", messages=(), answer="A", source=f"train.jsonl:{number + 1}"),
        prompt=Prompt(token_ids=nothing, positions=nothing, media=(), digest=f"d{number}"),
        completions=completions,
        scores=[Score(value=1.0), Score(value=0.25)],
    )


def test_groups_say_what_a_step_was_about(tmp_path: Path) -> None:
    filled(tmp_path)
    with MetricsLog(tmp_path, num_steps=9, tensorboard=False, resume_step=1) as log:
        log.groups(2, [group(7)])
    kept = records(tmp_path / "groups.jsonl")
    assert [r["group"] for r in kept] == [0, 1, 10, 11, 7]
    assert kept[-1] == {
        "step": 2,
        "group": 7,
        "task": "train-7",
        "source": "train.jsonl:8",
        "digest": "d7",
        "version": 3,
        "scores": [1.0, 0.25],
    }


def test_resume_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    filled(tmp_path)
    with MetricsLog(tmp_path, num_steps=9, tensorboard=False, resume_step=2) as log:
        log.log(3, {"loss": 30})
    assert [(r["step"], r["loss"]) for r in records(tmp_path / "metrics.jsonl")] == [(0, 0), (1, 1), (2, 2), (3, 30)]
    assert [r["message"] for r in records(tmp_path / "alarms.jsonl")] == ["at 0", "at 1", "at 2"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alarms.jsonl", "groups.jsonl", "metrics.jsonl"]


def test_resume_drops_a_line_that_a_crash_cut(tmp_path: Path) -> None:
    filled(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "unix')
    with MetricsLog(tmp_path, num_steps=9, tensorboard=False, resume_step=6):
        pass
    assert [r["step"] for r in records(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_a_new_run_starts_empty(tmp_path: Path) -> None:
    filled(tmp_path)
    with MetricsLog(tmp_path, num_steps=9, tensorboard=False):
        pass
    assert (tmp_path / "metrics.jsonl").read_text() == (tmp_path / "alarms.jsonl").read_text() == ""


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsLog(tmp_path, num_steps=4, tensorboard=True) as log:
        for step in (1, 2, 3):
            log.log(step, {"reward/mean": step / 4})
    with MetricsLog(tmp_path, num_steps=4, tensorboard=True, resume_step=1) as log:
        log.log(2, {"reward/mean": 0.9})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("reward/mean")
    assert [(e.step, round(e.value, 6)) for e in events] == [(1, 0.25), (2, 0.9)]


def leveldb_records(log: bytes) -> Iterator[bytes]:
    """Records of less than a block, after the file's own header of 7 bytes: checksum, length, type, data."""
    at = 0
    while at < len(log):
        _, length, kind = struct.unpack_from("<IHB", log, at)
        assert kind == 1, "one chunk a record"
        yield log[at + 7 : at + 7 + length]
        at += 7 + length


def test_weights_and_biases_gets_every_metric_and_a_resumed_run_goes_on_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for first, resume_step in ((1, None), (3, 2)):
        log = MetricsLog(
            tmp_path, num_steps=4, tensorboard=False, wandb="motet-test", about={"seed": 5}, resume_step=resume_step
        )
        with log:
            for step in (first, first + 1):
                log.log(step, {"reward/mean": step / 4})
    runs, history = [], []
    for path in sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb")):
        for data in leveldb_records(path.read_bytes()[7:]):
            record = Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                config = {item.key: item.value_json for item in record.run.config.update}
                runs.append((record.run.project, record.run.run_id, config["seed"]))
            if record.HasField("history"):
                items = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
                history.append((items["_step"], items["reward/mean"]))
    assert history == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert {(project, seed) for project, _, seed in runs} == {("motet-test", "5")}
    assert {run_id for _, run_id, _ in runs} == {(tmp_path / "wandb_id").read_text()}
