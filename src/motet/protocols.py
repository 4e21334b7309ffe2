"""The six boundaries of Motet. What runs behind one is nobody else's business."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from motet.types import (
    Advantages,
    Batch,
    Completion,
    FloatArray,
    Group,
    LossInputs,
    Prompt,
    Sampling,
    Score,
    Skip,
    StepResult,
    Task,
)

if TYPE_CHECKING:
    from torch import Tensor


class Source(Protocol):
    """Rows without end. Resumable: after `load_state_dict(state)` the next task is the one that came next when
    `state_dict()` was called."""

    def __iter__(self) -> Iterator[Task]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Engine(Protocol):
    """Samples. One prompt in, one completion out; equal (weights, prompt, sampling, key) draw equal tokens where
    the backend is deterministic. What it reads equals the prompt's ids and media, or it refuses."""

    async def generate(self, prompt: Prompt, sampling: Sampling, *, key: str) -> Completion: ...
    async def suspend(self) -> None:
        """Stop stepping and give memory back."""

    async def resume(self) -> None: ...


class Reward(Protocol):
    """Scores a whole group, so that judges and pairwise rewards fit. Returns one score per completion, in order."""

    async def __call__(self, task: Task, completions: Sequence[Completion]) -> list[Score]: ...


class Algorithm(Protocol):
    """Two pure functions. `loss` returns sums, never means: the trainer alone divides, by the denominators of the
    whole batch, so the result does not depend on how the batch is cut."""

    @property
    def denominator(self) -> Literal["tokens", "sequences"]:
        """What the summed loss is divided by: `Batch.num_tokens` or `Batch.num_sequences`."""

    @property
    def needs_reference(self) -> bool:
        """Whether `LossInputs.ref_logprobs` must be given."""

    def advantages(self, group: Group) -> Advantages | Skip: ...
    def loss(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss as a sum (scalar, differentiable), and metrics as sums over masked tokens (detached scalars)."""


class Trainer(Protocol):
    """Learns. `step` runs one optimizer step on the batch and returns the new weight version."""

    async def step(self, batch: Batch) -> StepResult: ...
    async def logprobs(self, batch: Batch) -> list[list[FloatArray]]:
        """Log-probabilities of the labels under the current weights: f32[T] for every micro-batch of the grid."""

    @property
    def state_bytes(self) -> int:
        """How much `save` writes, about."""

    async def save(self, path: Path) -> Awaitable[None]:
        """Copies the state to the host; what it returns ends when all of it is in the folder `path`."""

    async def load(self, path: Path) -> None:
        """Go on from what `save` wrote."""


class WeightSync(Protocol):
    """Moves weights. When `publish(version)` returns, every engine serves `version`."""

    async def publish(self, version: int) -> None: ...
