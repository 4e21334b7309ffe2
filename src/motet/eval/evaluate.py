"""Held-out accuracy: greedy answers, in all, by kind of row and by modality, with a confidence interval."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from motet.metrics.measures import wilson_interval
from motet.protocols import Engine, Reward
from motet.rollout.prompts import Render
from motet.types import MediaPart, Prompt, Sampling, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Mean of the rewards' `accuracy` part (their value, where a reward has no such part) over rows."""

    accuracy: float
    num_rows: int
    interval: tuple[float, float]
    """95 %, Wilson"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    overall: Accuracy
    by_kind: dict[str, Accuracy]
    by_modality: dict[str, Accuracy]
    num_dropped: int
    """Rows that were not asked: prompts over the budget and, where they are skipped, media that cannot be read."""

    def metrics(self) -> dict[str, float]:
        low, high = self.overall.interval
        return {
            "eval/accuracy": self.overall.accuracy,
            "eval/accuracy_low": low,
            "eval/accuracy_high": high,
            **{f"eval/kind/{kind}": a.accuracy for kind, a in self.by_kind.items()},
            **{f"eval/modality/{modality}": a.accuracy for modality, a in self.by_modality.items()},
        }

    def summary(self) -> dict[str, Any]:
        """As it stands in `summary.json`."""

        def entry(a: Accuracy) -> dict[str, Any]:
            return {"accuracy": a.accuracy, "num_rows": a.num_rows, "interval": list(a.interval)}

        return {
            **entry(self.overall),
            "num_dropped": self.num_dropped,
            "by_kind": {kind: entry(a) for kind, a in self.by_kind.items()},
            "by_modality": {modality: entry(a) for modality, a in self.by_modality.items()},
        }

    def table(self) -> str:
        """For the console."""
        rows = [("all", self.overall), *sorted(self.by_modality.items()), *sorted(self.by_kind.items())]
        lines = [
            f"{name:20} {a.accuracy:6.3f}  [{a.interval[0]:.3f}, {a.interval[1]:.3f}]  {a.num_rows:5} rows"
            for name, a in rows
        ]
        return "\n".join(lines)


async def evaluate(
    tasks: Sequence[Task], *, render: Render, engine: Engine, reward: Reward, max_tokens: int, num_threads: int = 1
) -> Evaluation:
    """Ask every task once, greedily. `num_threads` render. Raises what a row, the engine or the reward raises."""
    with ThreadPoolExecutor(num_threads) as threads:
        prompts = list(threads.map(render, tasks))
    asked = [(task, prompt) for task, prompt in zip(tasks, prompts, strict=True) if isinstance(prompt, Prompt)]
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0)

    async def ask(task: Task, prompt: Prompt) -> float:
        completion = await engine.generate(prompt, sampling, key=f"eval/{task.id}")
        (score,) = await reward(task, [completion])
        value = score.parts.get("accuracy", score.value)
        if not 0 <= value <= 1:
            raise ValueError(
                f"{task.source}: accuracy {value:g} is not within 0 and 1; give the score a part `accuracy`"
            )
        return value

    values = await asyncio.gather(*(ask(task, prompt) for task, prompt in asked))
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    by_modality: defaultdict[str, list[float]] = defaultdict(list)
    for (task, _), value in zip(asked, values, strict=True):
        by_kind[task.kind or "other"].append(value)
        by_modality[task.modality].append(value)
    return Evaluation(
        overall=_accuracy(values),
        by_kind={kind: _accuracy(v) for kind, v in by_kind.items()},
        by_modality={modality: _accuracy(v) for modality, v in by_modality.items()},
        num_dropped=len(tasks) - len(asked),
    )


def _accuracy(values: Sequence[float]) -> Accuracy:
    total = len(values)
    mean = sum(values) / total if total else 0.0
    return Accuracy(accuracy=mean, num_rows=total, interval=wilson_interval(round(sum(values)), total))


def blinded(task: Task) -> Task:
    """The task without its media: what its text alone gives away."""
    messages = tuple(
        replace(message, parts=tuple(part for part in message.parts if not isinstance(part, MediaPart)))
        for message in task.messages
    )
    return replace(task, messages=messages)
