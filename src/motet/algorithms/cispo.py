"""CISPO: Clipped Importance Sampling weight Policy Optimization.

    A_i  = (r_i - mean(r)) / std(r)
    w_it = sg(clip(r_it, 1 - low, 1 + high)),     r_it = policy(y_it) / behaviour(y_it); sg stops the gradient
    loss = mean over all tokens of the batch of  -w_it A_i log policy(y_it) + kl_weight k3_it

"MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", arXiv:2506.13585. Clipping the objective,
as GRPO does, takes the gradient from rare tokens whose probability rises fast, and those are the turns of a reasoning;
here only the weight is bounded and every token keeps its gradient.

The paper sets no lower bound and tunes the upper one without printing it. So `clip_low` is unset, and `clip_high` is 4:
a weight of at most 5.

Left out:
1. The paper's early stop of repeating completions: it is a matter of sampling.
2. The paper's formula averages over the tokens of one group; ours over those of the whole batch.
3. The paper has no KL term; it is offered all the same and is 0 unless set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from motet.algorithms.advantages import Scale, centred
from motet.algorithms.losses import Metrics, add_kl, log_ratios, masked_advantages, ratio_metrics
from motet.types import Advantages, Group, LossInputs, Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CISPO:
    clip_low: float | None = None
    """None: no lower bound."""
    clip_high: float = 4.0
    scale: Scale = "std"
    kl_weight: float = 0.0

    denominator: ClassVar[Literal["tokens"]] = "tokens"

    @property
    def needs_reference(self) -> bool:
        return self.kl_weight > 0

    def advantages(self, group: Group) -> Advantages | Skip:
        return centred(group, scale=self.scale)

    def loss(self, inputs: LossInputs) -> tuple[Tensor, Metrics]:
        ratios = log_ratios(inputs).detach().exp()
        low, high = 0.0 if self.clip_low is None else 1 - self.clip_low, 1 + self.clip_high
        new_logprobs = torch.where(inputs.mask, inputs.new_logprobs, 0.0)
        terms = -ratios.clamp(low, high) * masked_advantages(inputs) * new_logprobs
        metrics = ratio_metrics(ratios, inputs.mask, below=ratios < low, above=ratios > high)
        terms, metrics = add_kl(terms, metrics, inputs, kl_weight=self.kl_weight)
        return terms.sum(), metrics
