"""One optimizer step over a grid of micro-batches, the same for every backend.

Losses come as sums; here alone they are divided, by the denominators of the whole batch. So the gradient does not
depend on how the batch was cut into rows, nor on which rank a row went to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from motet.protocols import Algorithm
from motet.trainer.proof import prove
from motet.types import Batch, LossInputs, MicroBatch

Forward = Callable[[MicroBatch], tuple[Tensor, Tensor]]
"""Log-probabilities of labels (with gradient) and entropies (detached): f32[T] each, 0 where the loss mask is off."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """|new - old| log-probability of one token, and where it stands."""

    value: float
    modality: str
    position: int
    """Index of the token within its completion."""


def accumulate(
    micros: Sequence[MicroBatch],
    batch: Batch,
    *,
    algorithm: Algorithm,
    forward: Forward,
    reference: Callable[[MicroBatch], Tensor] | None,
    after_backward: Callable[[], None],
) -> tuple[dict[str, float], dict[str, Mismatch]]:
    """Add the gradient of the batch's loss over this rank's micro-batches.

    Args:
        micros: this rank's column of `batch.grid`.
        batch: for its denominators.
        reference: log-probabilities f32[T] of the frozen reference, where the algorithm needs them.
        after_backward: called after each backward pass.

    Returns: this rank's part of the metrics, which add up, and the worst mismatch of each modality; see `total`.

    Raises ValueError, before anything is computed, where a sample is not what it was rendered as; see `prove`.
    """
    proof = prove(micros)
    denominator = {"tokens": batch.num_tokens, "sequences": batch.num_sequences}[algorithm.denominator]
    sums: dict[str, float] = {"loss": 0.0, "entropy": 0.0, "mismatch": 0.0}
    worst: dict[str, Mismatch] = {}
    for micro in micros:
        new, entropy = forward(micro)
        inputs = _inputs(micro, new, reference(micro) if reference else None)
        loss, counted = algorithm.loss(inputs)
        (loss / denominator).backward()
        after_backward()
        distance = (new.detach() - inputs.old_logprobs).abs() * inputs.mask
        counted = {**counted, "loss": loss.detach(), "entropy": entropy.sum(), "mismatch": distance.sum()}
        for name, value in counted.items():
            sums[name] = sums.get(name, 0.0) + float(value)
        for found in _worst(micro, distance):
            _keep_worse(worst, found)
    means = {name: value / batch.num_tokens for name, value in sums.items() if name not in ("loss", "mismatch")}
    metrics = proof | means
    metrics["loss"] = sums["loss"] / denominator
    metrics["mismatch/mean"] = sums["mismatch"] / batch.num_tokens
    return metrics, worst


def total(
    parts: Sequence[tuple[dict[str, float], dict[str, Mismatch]]],
) -> tuple[dict[str, float], dict[str, Mismatch]]:
    """What `accumulate` returns on each rank, taken together."""
    metrics: dict[str, float] = {}
    worst: dict[str, Mismatch] = {}
    for sums, mismatches in parts:
        for name, value in sums.items():
            metrics[name] = metrics.get(name, 0.0) + value
        for found in mismatches.values():
            _keep_worse(worst, found)
    metrics["mismatch/max"] = max(found.value for found in worst.values())
    metrics |= {f"mismatch/max/{modality}": found.value for modality, found in worst.items()}
    return metrics, worst


def _keep_worse(worst: dict[str, Mismatch], found: Mismatch) -> None:
    if found.modality not in worst or found.value > worst[found.modality].value:
        worst[found.modality] = found


def _inputs(micro: MicroBatch, new: Tensor, reference: Tensor | None) -> LossInputs:
    def on_device(array: object) -> Tensor:
        return torch.as_tensor(array, device=new.device)

    return LossInputs(
        new_logprobs=new,
        old_logprobs=on_device(micro.logprobs),
        advantages=on_device(micro.advantages),
        mask=on_device(micro.loss_mask),
        cu_seqlens=on_device(micro.cu_seqlens),
        ref_logprobs=reference,
    )


def _worst(micro: MicroBatch, distance: Tensor) -> list[Mismatch]:
    """The largest mismatch of each sample."""
    found = []
    bounds = micro.cu_seqlens.tolist()
    for modality, start, end in zip(micro.modalities, bounds, bounds[1:], strict=False):
        at = int(distance[start:end].argmax())
        first = int(micro.loss_mask[start:end].argmax())
        found.append(Mismatch(float(distance[start + at]), modality, at - first))
    return found
