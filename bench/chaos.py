"""Runs of a tiny job killed with SIGKILL at random moments, saves included, and resumed until they end.

    python bench/chaos.py [--runs 50] [--jobs 2] [--seed 0] [--keep FOLDER]

One run is not interrupted. Every other one is killed once at a random moment of its life and, on every second run,
once more while a checkpoint is being written; then it is resumed to its end. The last line says how many ended on the
weights, optimizer and rows of the run that was not interrupted, bit for bit; the exit status is 1 if one did not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

STEPS = 6
REWARD = """
def reward(task, completion):
    return float(len(completion.text) % 4) / 3
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    folder: Path
    seconds: float
    """Of the life of the run that was not interrupted."""

    def command(self, run: Path) -> list[str]:
        settings = {
            "run_dir": run,
            "steps": STEPS,
            "model.path": self.folder / "tiny",
            "data.train": self.folder / "toy" / "train.jsonl",
            "data.video.min_pixels": 4096,
            "data.video.max_pixels": 65536,
            "rollout.groups_per_step": 3,
            "rollout.group_size": 4,
            "rollout.max_tokens": 6,
            "reward.score.kind": "function",
            "reward.score.path": "chaos_reward:reward",
            "trainer.optimizer.lr": 3e-4,
            "checkpoint.every_steps": 1,
            "metrics.tensorboard": "false",
        }
        words = [f"{name}={value}" for name, value in settings.items()]
        return [sys.executable, "-m", "motet.cli", "train", *words]

    def start(self, run: Path) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [*self.command(run), "--resume"]
        return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def build(folder: Path) -> Job:
    """The inputs, and how long a run takes that is left alone."""
    motet = [sys.executable, "-m", "motet.cli"]
    subprocess.run([*motet, "tiny", folder / "tiny", "--warm-steps", "0"], check=True)
    subprocess.run([*motet, "data", "toy", folder / "toy", "--train", "45", "--heldout", "9"], check=True)
    (folder / "chaos_reward.py").write_text(REWARD)
    started = time.monotonic()
    end(Job(folder=folder, seconds=0).start(folder / "reference"))
    return Job(folder=folder, seconds=time.monotonic() - started)


def end(process: subprocess.Popen[str]) -> None:
    _, error = process.communicate(timeout=300)
    if process.returncode != 0:
        raise RuntimeError(f"exit status {process.returncode}: {error}")


def kill_when(process: subprocess.Popen[str], due: Callable[[], bool]) -> bool:
    """Whether the process was alive to be killed."""
    while not due():
        if process.poll() is not None:
            return False
        time.sleep(0.001)
    process.kill()
    process.communicate()
    return True


def torment(job: Job, number: int, seed: int) -> tuple[list[str], str]:
    """The moments at which run `number` was killed, and the fingerprint of its end."""
    draw = random.Random(f"{seed}/{number}")
    run = job.folder / f"run-{number}"
    moments = []
    ends = time.monotonic() + draw.uniform(0, job.seconds)
    if kill_when(job.start(run), lambda: time.monotonic() >= ends):
        moments.append(where(run))
    if number % 2 == 0 and not is_done(run):
        step = draw.randint(1, STEPS)
        pattern = f".tmp-step-{step:06d}-*"
        if kill_when(job.start(run), lambda: any((run / "checkpoints").glob(pattern))):
            moments.append("in a save")
    if not is_done(run):  # the moment may have come after its end
        end(job.start(run))
    return moments, fingerprint(run)


def is_done(run: Path) -> bool:
    return (run / "summary.json").exists()


def where(run: Path) -> str:
    folders = [f.name for f in (run / "checkpoints").glob("*")] if (run / "checkpoints").exists() else []
    if any(name.startswith(".tmp") for name in folders):
        return "in a save"
    return "between saves" if folders else "before the first save"


def fingerprint(run: Path) -> str:
    """Of the last checkpoint's tensors, as their files' hashes, and of the rows that every step took."""
    manifest = json.loads((run / "checkpoints" / f"step-{STEPS:06d}" / "manifest.json").read_text())
    tensors = {name: entry["blake3"] for name, entry in manifest["files"].items() if name.endswith(".distcp")}
    rows = (run / "groups.jsonl").read_bytes()
    return blake3(json.dumps(tensors, sort_keys=True).encode() + rows).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2, help="side by side")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(args.jobs) as pool:
        job = build(Path(temporary))
        reference = fingerprint(job.folder / "reference")
        print(f"an uninterrupted run takes {job.seconds:.1f} s alone and ends on {reference[:12]}", flush=True)
        moments: Counter[str] = Counter()
        num_equal = 0
        for number, result in enumerate(pool.map(lambda n: torment(job, n, args.seed), range(args.runs))):
            killed, found = result
            moments.update(killed)
            num_equal += found == reference
            print(f"run {number:2}: killed {', '.join(killed) or 'never'}; ends on {found[:12]}", flush=True)
    print(f"killed {sum(moments.values())} times: {dict(moments)}")
    print(f"{num_equal} of {args.runs} runs end on the bits of the uninterrupted one")
    return 0 if num_equal == args.runs else 1


if __name__ == "__main__":
    sys.exit(main())
