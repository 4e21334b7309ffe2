"""Where metrics go: a line on the console per step, `metrics.jsonl`, TensorBoard, Weights & Biases; and alarms."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from motet.types import Group

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

CONSOLE = (
    ("reward/mean", "reward {:5.3f}"),
    ("loss", "loss {:+8.1e}"),
    ("entropy", "entropy {:5.3f}"),
    ("grad_norm", "grad {:6.3f}"),
    ("mismatch/mean", "|new-old| {:7.1e}"),
    ("completion/length_tokens", "length {:5.1f}"),
    ("data/age", "age {:3.1f}"),
    ("tokens_per_second", "{:6.0f} tok/s"),
    ("seconds/step", "{:5.1f}s"),
    ("groups/skipped/", "skipped {:2.0f}"),
    ("eval/accuracy", "held-out {:5.3f}"),
)
"""Metrics that a console line shows, where they are there, and how. A name that ends in `/` stands for the sum of all
below it. What is not in every line comes last, so that the rest stays aligned."""

BAR_WIDTH = 10


class MetricsLog:
    """Writes into the folder of a run.

    `metrics.jsonl` has one line per call of `log`: `step`, `unix_seconds` and the metrics, NaN and infinity as null,
    since JSON has no words for them. `alarms.jsonl` has `step`, `unix_seconds` and `message`. `groups.jsonl` has a line
    per group that a step took, in order: `step`, `group`, the row's `task` and `source`, the prompt's `digest`, the
    oldest weight `version` and the `scores`. Every line is flushed.

    `wandb` is a project of Weights & Biases, and `about` what the run there says of its settings.

    `resume_step` is the step of the checkpoint that the run goes on from: what was logged after it is dropped, as it
    will be logged anew. None starts a new run and drops all.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_steps: int,
        tensorboard: bool,
        wandb: str | None = None,
        about: Mapping[str, Any] | None = None,
        resume_step: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._num_steps = num_steps
        self._tensorboard = tensorboard
        self._wandb = wandb
        self._about = about
        self._resume_step = resume_step
        self._clock = clock
        self._step = self._first_step = resume_step or 0

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._started = self._clock()
        with ExitStack() as stack:
            self._metrics = stack.enter_context(_reopen(self._folder / "metrics.jsonl", self._resume_step))
            self._alarms = stack.enter_context(_reopen(self._folder / "alarms.jsonl", self._resume_step))
            self._groups = stack.enter_context(_reopen(self._folder / "groups.jsonl", self._resume_step))
            self._writer = self._open_tensorboard(stack) if self._tensorboard else None
            self._run = self._open_wandb(stack, self._wandb) if self._wandb else None
            self._files = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report `step`, the number of optimizer steps done; 0 is before the first."""
        self._step = step
        now = self._clock()
        if step == self._first_step:
            self._started = now  # an evaluation before the first step says nothing about how long a step takes
        values = {name: float(value) for name, value in metrics.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        _append(self._metrics, {"step": step, "unix_seconds": now, **finite})
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step, walltime=now)
        if self._run is not None:
            self._run.log(values, step=step)
        print("  ".join((self._progress(step, now), *_fields(values))), flush=True)

    def groups(self, step: int, groups: Sequence[Group]) -> None:
        """Report what a step was about: which rows, what the model read, how it scored."""
        for group in groups:
            record = {
                "step": step,
                "group": group.id,
                "task": group.task.id,
                "source": group.task.source,
                "digest": group.prompt.digest,
                "version": min(completion.versions[0] for completion in group.completions),
                "scores": [score.value for score in group.scores],
            }
            _append(self._groups, record)

    def alarm(self, message: str) -> None:
        """Say that the run needs a human eye."""
        _append(self._alarms, {"step": self._step, "unix_seconds": self._clock(), "message": message})
        print(f"! alarm: {message}", flush=True)

    def _progress(self, step: int, now: float) -> str:
        done = step - self._first_step
        eta = _duration((now - self._started) / done * (self._num_steps - step)) if done else "-"
        width = len(str(self._num_steps))
        return f"step {step:{width}}/{self._num_steps} [{_bar(step / self._num_steps)}] eta {eta:>6}"

    def _open_tensorboard(self, stack: ExitStack) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        purge_step = None if self._resume_step is None else self._resume_step + 1
        writer = SummaryWriter(str(self._folder / "tensorboard"), purge_step=purge_step)
        stack.callback(writer.close)
        return writer

    def _open_wandb(self, stack: ExitStack, project: str) -> Any:
        """The run there has the name of the run folder; its id is kept, so that a resumed run goes on with it."""
        try:
            import wandb
        except ImportError as error:
            raise ValueError("metrics.wandb needs wandb: pip install 'motet[wandb]'") from error

        id_file = self._folder / "wandb_id"
        if self._resume_step is None or not id_file.exists():
            id_file.write_text(secrets.token_hex(8))
        run = wandb.init(
            project=project,
            name=self._folder.name,
            id=id_file.read_text(),
            resume="allow",
            dir=self._folder,
            config=dict(self._about or {}),
        )
        stack.callback(run.finish)
        return run


def _reopen(path: Path, last_step: int | None) -> TextIO:
    """The file, with the lines up to `last_step` alone. A line without its end was cut by a crash, and goes too."""
    kept = ""
    if last_step is not None and path.exists():
        lines = path.read_text().splitlines(keepends=True)
        kept = "".join(line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= last_step)
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(kept)
    draft.replace(path)
    return path.open("a")


def _append(file: TextIO, record: Mapping[str, object]) -> None:
    file.write(json.dumps(record, allow_nan=False) + "\n")
    file.flush()


def _fields(metrics: Mapping[str, float]) -> list[str]:
    fields = []
    for name, form in CONSOLE:
        values = [v for k, v in metrics.items() if k == name or (name.endswith("/") and k.startswith(name))]
        if values:
            fields.append(form.format(sum(values)))
    return fields


def _bar(share: float) -> str:
    full = int(share * BAR_WIDTH)
    return ("=" * full + ">" * (full < BAR_WIDTH)).ljust(BAR_WIDTH)


def _duration(seconds: float) -> str:
    """`45s`, `1m20s`, `2h05m`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
