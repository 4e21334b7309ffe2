"""The step on a policy whose every log-probability is a constant plus one parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log

import numpy as np
import pytest
import torch
from torch import Tensor

from motet.algorithms import DAPO, GRPO
from motet.batching.pack import collate
from motet.identity import prompt_digest
from motet.protocols import Algorithm
from motet.trainer.step import Mismatch, accumulate, total
from motet.types import Batch, MicroBatch, Sample


def sample(old: Sequence[float], advantage: float, modality: str) -> Sample:
    """A prompt of two tokens and completions with the given log-probabilities."""
    num = 2 + len(old)
    mask = np.arange(num) >= 2
    ids, positions = np.arange(num, dtype=np.int32), np.zeros((3, num), np.int32)
    return Sample(
        group_id=0,
        token_ids=ids,
        positions=positions,
        loss_mask=mask,
        logprobs=np.array([0, 0, *old], np.float32),
        advantages=np.where(mask, np.float32(advantage), np.float32(0)),
        version=0,
        media=(),
        digest=prompt_digest(ids[:2], positions[:, :2], ()),
        num_prompt_tokens=2,
        modality=modality,
    )


MICROS = [
    collate([sample([-1], 1.0, "image"), sample([-1, -2], -0.5, "audio")]),
    collate([sample([-0.5], 2.0, "image")]),
]
BATCH = Batch(grid=[[m] for m in MICROS], num_tokens=4, num_sequences=3, oldest_version=0)


@dataclass
class Policy:
    """Off by `shift` (one number for each sampled token of the batch) from what the engine said."""

    shift: Sequence[float] = (0, 0, 0, 0)
    parameter: Tensor = field(default_factory=lambda: torch.zeros((), requires_grad=True))
    num_forward: int = 0
    num_after_backward: int = 0

    def __call__(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        self.num_forward += 1
        mask = torch.as_tensor(micro.loss_mask)
        shift = torch.zeros(len(mask))
        shift[mask] = torch.tensor(self.shift[:3] if micro is MICROS[0] else self.shift[3:], dtype=torch.float32)
        new = torch.where(mask, torch.as_tensor(micro.logprobs) + shift + self.parameter, 0.0)
        entropy = torch.where(mask, torch.arange(len(mask)) * 0.5, 0.0)  # entries 1, 4, 5 and 1
        return new, entropy

    def after_backward(self) -> None:
        self.num_after_backward += 1
        assert self.num_after_backward == self.num_forward

    def run(
        self,
        algorithm: Algorithm,
        micros: Sequence[MicroBatch] = MICROS,
        reference: Callable[[MicroBatch], Tensor] | None = None,
    ) -> tuple[dict[str, float], dict[str, Mismatch], float]:
        part = accumulate(
            micros,
            BATCH,
            algorithm=algorithm,
            forward=self,
            reference=reference,
            after_backward=self.after_backward,
        )
        metrics, worst = total([part])
        assert self.parameter.grad is not None
        return metrics, worst, float(self.parameter.grad)


def rounded(worst: dict[str, Mismatch]) -> dict[str, Mismatch]:
    return {modality: replace(found, value=round(found.value, 5)) for modality, found in worst.items()}


def test_a_mean_over_sequences_is_one_over_the_whole_batch() -> None:
    policy = Policy()
    metrics, _, gradient = policy.run(GRPO())
    assert gradient == pytest.approx(-(1 - 0.5 + 2) / 3)
    assert metrics["loss"] == pytest.approx(-(1 - 0.5 + 2) / 3)
    assert policy.num_after_backward == 2


def test_a_mean_over_tokens_is_one_over_the_whole_batch() -> None:
    metrics, _, gradient = Policy().run(DAPO())
    assert gradient == pytest.approx(-(1 - 0.5 - 0.5 + 2) / 4)
    assert metrics["loss"] == pytest.approx(-(1 - 0.5 - 0.5 + 2) / 4)


def test_a_rank_divides_its_part_by_the_denominator_of_the_whole() -> None:
    assert Policy().run(GRPO(), MICROS[1:])[2] == pytest.approx(-2 / 3)
    assert Policy().run(DAPO(), MICROS[:1])[2] == pytest.approx(0)


def test_metrics_are_means_over_sampled_tokens() -> None:
    metrics, worst, _ = Policy(shift=(0.1, 0.15, -0.3, 0.05)).run(GRPO())
    assert metrics["entropy"] == pytest.approx((0.5 + 2 + 2.5 + 0.5) / 4)
    assert metrics["mismatch/mean"] == pytest.approx((0.1 + 0.15 + 0.3 + 0.05) / 4, rel=1e-5)
    assert metrics["mismatch/max"] == pytest.approx(0.3, rel=1e-5)
    assert metrics["ratio"] == pytest.approx((exp(0.1) + exp(0.15) + exp(-0.3) + exp(0.05)) / 4, rel=1e-5)
    assert (metrics["clip_low"], metrics["clip_high"]) == (1 / 4, 0)  # exp(-0.3) < 0.8 and the advantage is negative
    assert "kl" not in metrics and "mismatch" not in metrics
    assert rounded(worst) == {"image": Mismatch(0.1, "image", 0), "audio": Mismatch(0.3, "audio", 1)}


def test_the_worst_token_of_a_modality_may_stand_in_any_row() -> None:
    _, worst, _ = Policy(shift=(0.1, -0.3, 0.15, -0.2)).run(GRPO())
    assert rounded(worst) == {"image": Mismatch(0.2, "image", 0), "audio": Mismatch(0.3, "audio", 0)}


def test_the_reference_is_asked_for_every_row() -> None:
    """ref - new = log 2 on every token: k3 = 2 - log 2 - 1."""
    metrics, _, gradient = Policy().run(
        GRPO(kl_weight=0.5), reference=lambda micro: torch.as_tensor(micro.logprobs) + log(2)
    )
    assert metrics["kl"] == pytest.approx(1 - log(2), rel=1e-5)
    assert metrics["loss"] == pytest.approx(-2.5 / 3 + 0.5 * (1 - log(2)), rel=1e-5)
    assert gradient == pytest.approx(-2.5 / 3 + 0.5 * (1 - 2), rel=1e-5)  # of k3: 1 - exp(ref - new)


def test_ranks_add_up_and_the_worst_of_all_counts() -> None:
    first = (
        {"loss": 0.25, "media/mismatch": 0.0},
        {"image": Mismatch(0.1, "image", 0), "text": Mismatch(0.3, "text", 2)},
    )
    second = {"loss": -1.0, "media/mismatch": 0.0}, {"image": Mismatch(0.2, "image", 5)}
    empty: tuple[dict[str, float], dict[str, Mismatch]] = {"loss": 0.0, "media/mismatch": 0.0}, {}
    metrics, worst = total([empty, first, second])
    assert metrics == {
        "loss": -0.75,
        "media/mismatch": 0.0,
        "mismatch/max": 0.3,
        "mismatch/max/image": 0.2,
        "mismatch/max/text": 0.3,
    }
    assert worst == {"image": Mismatch(0.2, "image", 5), "text": Mismatch(0.3, "text", 2)}
