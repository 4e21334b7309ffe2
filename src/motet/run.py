"""The jobs that run on the parts: a training run, with what happens between its steps, and an evaluation."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from motet import algorithms, build, rewards
from motet.checkpoint import randomness
from motet.checkpoint.store import CheckpointStore, DiskFull
from motet.config.load import ConfigError, dump, load
from motet.config.schema import RunConfig
from motet.data.quarantine import Quarantine
from motet.data.rows import Rows
from motet.data.source import TaskSource, heldout
from motet.eval.alarms import Alarms
from motet.eval.evaluate import Evaluation, blinded
from motet.eval.evaluate import evaluate as evaluate_tasks
from motet.loop import NothingToLearn, Parts, Plan, Step, unless
from motet.loop import train as loop
from motet.metrics.log import MetricsLog
from motet.metrics.measures import group_metrics
from motet.metrics.stages import Stopwatch
from motet.report import page
from motet.rollout.ahead import RenderAhead
from motet.rollout.prompts import PromptCache, Render
from motet.rollout.record import GroupRecord
from motet.runtime.signals import stop_on_signals
from motet.runtime.watchdog import watchdog
from motet.types import Advantages, Sampling, Task
from motet.weights.shared import SharedWeights

RESUMABLE = ("run_dir", "steps", "deadline_seconds", "eval", "checkpoint", "features", "metrics")
"""Settings that may change when a run resumes; any other change would make it another run."""


def train(config: RunConfig, *, resume: bool = False) -> dict[str, Any] | None:
    """Run or resume the training run of the config; returns what `summary.json` holds, or None where it was stopped."""
    return asyncio.run(Run(config, resume=resume).train())


class Run:
    """One training run: the loop, and what happens between its steps (log, evaluate, save).

    The folder of a run holds config.toml, metrics.jsonl, groups.jsonl, alarms.jsonl, tensorboard/, checkpoints/,
    groups/, quarantine.jsonl, summary.json and report.html.
    """

    def __init__(self, config: RunConfig, *, resume: bool) -> None:
        self.config = config
        self.folder = Path(config.run_dir)
        self.store = CheckpointStore(
            self.folder / "checkpoints",
            keep_last=config.checkpoint.keep_last,
            keep_every_steps=config.checkpoint.keep_every_steps,
            about={"config": config.model_dump(mode="json"), "git_commit": _git_commit()},
        )
        self.resumed_step = _open_folder(config, self.folder, self.store, resume=resume)
        rows = Rows(config.data.train)
        self.decoder = build.decoder(config.data)
        load_media = Quarantine(self.decoder, self.folder / "quarantine.jsonl")
        self.sampler = build.sampler(config, Path(config.model.path), rows.base, load_media, lora=config.trainer.lora)
        self.source = TaskSource(rows, seed=config.seed, shuffle=config.data.shuffle, on_bad_row=config.data.on_bad_row)
        self.reward = rewards.build(config.reward)
        self.algorithm = algorithms.build(config.algorithm, max_tokens=config.rollout.max_tokens)
        self.trainer = build.trainer(config, self.sampler, self.algorithm)
        self.watch = Stopwatch()
        self.alarms = Alarms(drop=config.eval.alarm_drop)
        self.record = GroupRecord(
            self.folder / "groups",
            num_groups=config.metrics.report_groups,
            num_steps=config.steps,
            data=config.data,
            base=rows.base,
            resume_step=self.resumed_step,
        )
        self.first: dict[str, Any] = {"step": 0, "next_group": 0, "train_seconds": 0.0, "eval_before": None}
        self._heldout = self._load_heldout()
        self.last: Step | None = None
        self.saved_step = self.resumed_step
        self.overdue = False  # a checkpoint was due and did not fit on the disk
        self.evaluation: Evaluation | None = None  # of the last step, where it was evaluated
        self.started = self.step_started = time.monotonic()

    def _load_heldout(self) -> tuple[list[Task], Render] | None:
        data = self.config.data
        if data.heldout is None:
            return None
        rows = Rows(data.heldout)
        tasks = heldout(rows, max_rows=self.config.eval.max_rows, on_bad_row=data.on_bad_row)
        return tasks, self._render(rows.base)

    def _render(self, base: Path) -> Render:
        """Of rows whose media paths start from `base`."""
        data = self.config.data
        return PromptCache(
            build.skipping(self.sampler.renderer.at(base), data.on_bad_row), capacity_bytes=data.cache_bytes
        )

    async def train(self) -> dict[str, Any] | None:
        """Returns what `summary.json` holds; None where a signal stopped the run before its last step."""
        if self.resumed_step is not None:
            await self._restore(self.resumed_step)
        deadline = watchdog(self.watch, deadline_seconds=self.config.deadline_seconds, dump=self.folder / "stalled.txt")
        with self.decoder, self._log() as log, stop_on_signals() as self.stop, deadline:
            if self.resumed_step is None and (before := await self._evaluate()):
                self.first["eval_before"] = before.summary()
                log.log(0, before.metrics())
                self.alarms(before.metrics())
            self.started = time.monotonic() - self.first["train_seconds"]
            self.step_started = time.monotonic()
            try:
                await self._steps(log)
            finally:
                with self.watch.stage("save"):
                    await self.store.settled()
        if self.stop.is_set() and self._done() < self.config.steps:
            print(f"stopped after step {self._done()}; go on with: motet train {self.folder} --resume")
            return None
        return self._finish(time.monotonic() - self.started)

    async def _steps(self, log: MetricsLog) -> None:
        try:
            with self._ahead() as ahead:
                async with aclosing(loop(self._parts(ahead), self._plan(), self.stop)) as steps:
                    async for step in steps:
                        await self._after(step, log)
        except NothingToLearn as dry:
            await self._give_up(dry, log)
        if self.last is None:
            self.evaluation = await self._evaluate()  # where only the summary was missing
        elif self.saved_step != self.last.number:
            await self._save(self.last)

    def _log(self) -> MetricsLog:
        return MetricsLog(
            self.folder,
            num_steps=self.config.steps,
            tensorboard=self.config.metrics.tensorboard,
            wandb=self.config.metrics.wandb,
            about=self.config.model_dump(mode="json"),
            resume_step=self.resumed_step,
        )

    def _done(self) -> int:
        """Steps that the run has done, those before it was resumed included."""
        return self.last.number if self.last else self.first["step"]

    async def _after(self, step: Step, log: MetricsLog) -> None:
        """Evaluate and save where they are due, record and log."""
        metrics = _step_metrics(step, self.source.skipped, time.monotonic() - self.step_started)
        metrics |= self.sampler.features.metrics()
        last = step.number == self.config.steps
        self.last, self.evaluation = step, None
        if last or step.number % self.config.eval.every_steps == 0:
            self.evaluation = await self._evaluate()
            metrics |= self.evaluation.metrics() if self.evaluation else {}
        for group in step.groups:
            advantages = self.algorithm.advantages(group)
            self.record.offer(step.number, group, advantages if isinstance(advantages, Advantages) else None)
        log.groups(step.number, step.groups)
        log.log(step.number, metrics | self.watch.lap())
        for message in self.alarms(metrics):
            log.alarm(message)
        # After the log: what a checkpoint covers has been reported, whenever the run is killed.
        if last or self.overdue or step.number % self.config.checkpoint.every_steps == 0:
            await self._save_if_it_fits(step, log)
        self.step_started = time.monotonic()

    async def _give_up(self, dry: NothingToLearn, log: MetricsLog) -> None:
        """End the run well where it has learned something, and with an error where it never could."""
        if self.last is None:
            raise ValueError(
                f"no group taught anything ({dry}): rewards that are all equal within each group, or rows that cannot "
                f"be read; look at the rows, at reward.score and at rollout.temperature"
            )
        log.alarm(f"stopped after step {self.last.number}: no group teaches anything any more ({dry})")
        self.evaluation = self.evaluation or await self._evaluate()

    def _ahead(self) -> RenderAhead:
        """Rows of the next step are decoded and rendered beside this one, by as many threads as there are workers."""
        workers = self.config.data.decode_workers
        return RenderAhead(
            self.source,
            self._render(self.source.rows.base),
            depth=self.config.rollout.groups_per_step if workers else 0,
            num_threads=max(1, workers),
        )

    def _parts(self, ahead: RenderAhead) -> Parts:
        return Parts(
            source=ahead,
            render=ahead.render,
            engine=self.sampler.engine,
            reward=self.reward,
            algorithm=self.algorithm,
            trainer=self.trainer,
            sync=SharedWeights(self.sampler.engine),
            watch=self.watch,
        )

    def _plan(self) -> Plan:
        rollout = self.config.rollout
        return Plan(
            steps=self.config.steps,
            groups_per_step=rollout.groups_per_step,
            group_size=rollout.group_size,
            max_lag=self.config.max_lag,
            sampling=Sampling(
                max_tokens=rollout.max_tokens,
                temperature=rollout.temperature,
                top_p=rollout.top_p,
                top_k=rollout.top_k,
                seed=self.config.seed,
            ),
            row_tokens=self.config.trainer.row_tokens,
            first_step=self.first["step"] + 1,
            first_group=self.first["next_group"],
        )

    async def _evaluate(self) -> Evaluation | None:
        """None where there are no held-out rows, or the run is asked to stop."""
        if self._heldout is None:
            return None
        tasks, render = self._heldout
        max_tokens = self.config.eval.max_tokens or self.config.rollout.max_tokens
        asking = evaluate_tasks(
            tasks,
            render=render,
            engine=self.sampler.engine,
            reward=self.reward,
            max_tokens=max_tokens,
            num_threads=max(1, self.config.data.decode_workers),
        )
        with self.watch.stage("eval"):
            return await unless(self.stop, asking)

    async def _save_if_it_fits(self, step: Step, log: MetricsLog) -> None:
        """A full disk is no reason to lose what is learned: the run goes on, and tries again after every step."""
        try:
            await self._save(step)
        except DiskFull as full:
            log.alarm(str(full))
        self.overdue = self.saved_step != step.number

    async def _save(self, step: Step) -> None:
        state = {
            "step": step.number,
            "next_group": step.next_group,
            "source": step.source_state,
            "train_seconds": time.monotonic() - self.started,
            "eval_before": self.first["eval_before"],
            "random": randomness.state(),
        }
        accuracy = self.evaluation.overall.accuracy if self.evaluation else None
        with self.watch.stage("save"):
            await self.store.save(
                step.number,
                state=state,
                write=self.trainer.save,
                num_bytes=self.trainer.state_bytes,
                metric=accuracy,
            )
        self.saved_step = step.number

    async def _restore(self, step: int) -> None:
        self.first = self.store.load_state(step)
        await self.trainer.load(self.store.path(step))
        self.sampler.engine.version = self.trainer.version
        self.source.load_state_dict(self.first["source"])
        randomness.restore(self.first["random"])
        self.alarms.replay(self.folder / "metrics.jsonl", step)
        print(f"resuming after step {step} from {self.store.path(step)}")

    def _finish(self, train_seconds: float) -> dict[str, Any]:
        summary = {
            "eval_before": self.first["eval_before"],
            "eval_after": self.evaluation.summary() if self.evaluation else None,
            "train_seconds": train_seconds,
            "num_steps": self._done(),
            "num_towers_run": self.sampler.features.num_encoded,
            "config": self.config.model_dump(mode="json"),
        }
        path = self.folder / "summary.json"
        path.write_text(json.dumps(summary, indent=1))
        report = page.write(self.folder)
        print()
        if summary["eval_before"] and summary["eval_after"]:
            print(_verdict(summary["eval_before"]["accuracy"], summary["eval_after"]["accuracy"]))
        print(f"checkpoint {self.store.path(self._done())}\nreport     {report}\nsummary    {path}")
        return summary


def _verdict(before: float, after: float) -> str:
    """
    >>> _verdict(0.46, 0.8801)
    'held-out accuracy 0.46 -> 0.88 (+42 points)'
    """
    return f"held-out accuracy {before:.2f} -> {after:.2f} ({100 * (after - before):+.0f} points)"


def _open_folder(config: RunConfig, folder: Path, store: CheckpointStore, *, resume: bool) -> int | None:
    """Make the run's folder, or check that the run in it is the one to resume; the step to resume after, or None where
    the run begins: one that was killed before its first checkpoint begins again."""
    saved = folder / "config.toml"
    if not resume and saved.exists():
        raise ConfigError(f"run_dir = '{folder}': holds a run; resume it with --resume, remove it, or choose another")
    step = store.latest() if saved.exists() else None
    if step is not None and step >= config.steps and (folder / "summary.json").exists():
        raise ConfigError(f"steps = {config.steps}: the run has done {step}; raise steps to go on")
    if saved.exists():
        _check_same(load(saved, []), config, folder)
    folder.mkdir(parents=True, exist_ok=True)
    draft = saved.with_name("config.toml.draft")
    draft.write_text(dump(config))
    draft.replace(saved)
    return step


def _git_commit() -> str | None:
    """Of the checkout that this code runs from; None where it is installed otherwise."""
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


def _check_same(old: RunConfig, new: RunConfig, folder: Path) -> None:
    """Raises ConfigError where the run in the folder began with other settings than those that may change."""
    before, after = (config.model_dump(exclude=set(RESUMABLE)) for config in (old, new))
    for name in before:
        if before[name] != after[name]:
            raise ConfigError(
                f"{name}: is not what the run in {folder} began with; only {', '.join(RESUMABLE)} may change"
            )


def _step_metrics(step: Step, bad_rows: Mapping[str, int], seconds: float) -> dict[str, float]:
    """`bad_rows`: rows that could not be parsed since the run began, by reason."""
    num_tokens = sum(int(micro.cu_seqlens[-1]) for row in step.batch.grid for micro in row)
    return {
        **step.result.metrics,
        **group_metrics(step.groups),
        **{f"groups/skipped/{reason}": float(count) for reason, count in step.skipped.items()},
        **{f"rows/skipped/{reason}": float(count) for reason, count in bad_rows.items()},
        "data/age": float(step.result.version - 1 - step.batch.oldest_version),
        "tokens_per_second": num_tokens / seconds,
        "seconds/step": seconds,
    }


# ---- evaluate ----------------------------------------------------------------------------------


def evaluate(config: RunConfig, *, model: Path | None = None, blind: bool = False) -> dict[str, Any]:
    """Held-out accuracy of `model` (by default `model.path`), printed as a table; `blind` withholds all media."""
    assert config.data.heldout is not None
    rows = Rows(config.data.heldout)
    tasks = heldout(rows, max_rows=config.eval.max_rows, on_bad_row=config.data.on_bad_row)
    with build.decoder(config.data) as load_media:
        parts = build.sampler(config, model or Path(config.model.path), rows.base, load_media)
        render = build.skipping(parts.renderer, config.data.on_bad_row)
        if blind:
            tasks = [task for task in tasks if task.media]
        evaluation = asyncio.run(
            evaluate_tasks(
                tasks,
                render=(lambda task: render(blinded(task))) if blind else render,
                engine=parts.engine,
                reward=rewards.build(config.reward),
                max_tokens=config.eval.max_tokens or config.rollout.max_tokens,
                num_threads=max(1, config.data.decode_workers),
            )
        )
    print(evaluation.table())
    return evaluation.summary()
