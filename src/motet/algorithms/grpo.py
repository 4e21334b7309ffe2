"""GRPO: Group Relative Policy Optimization.

    A_i  = (r_i - mean(r)) / std(r)             over the G rewards of one prompt
    r_it = policy(y_it) / behaviour(y_it)
    loss = mean over samples i of  1/|y_i| sum_t [ -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i) + kl_weight k3_it ]

"DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", arXiv:2402.03300.

Left out:
1. Process rewards: one score per completion is what our rewards give.
2. The small constant added to the deviation: a group without spread is skipped, so nothing is divided by zero.
3. Weighting of the KL term on data of an older policy: it is averaged over the tokens as they were sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from motet.algorithms.advantages import Scale, centred
from motet.algorithms.losses import Metrics, add_kl, clipped_terms, log_ratios, sequence_means
from motet.types import Advantages, Group, LossInputs, Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPO:
    """`scale = "none"` keeps the mean as baseline and does not divide by the deviation."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    scale: Scale = "std"
    kl_weight: float = 0.0

    denominator: ClassVar[Literal["sequences"]] = "sequences"

    @property
    def needs_reference(self) -> bool:
        return self.kl_weight > 0

    def advantages(self, group: Group) -> Advantages | Skip:
        return centred(group, scale=self.scale)

    def loss(self, inputs: LossInputs) -> tuple[Tensor, Metrics]:
        ratios = log_ratios(inputs).exp()
        terms, metrics = clipped_terms(ratios, inputs, clip_low=self.clip_low, clip_high=self.clip_high)
        terms, metrics = add_kl(terms, metrics, inputs, kl_weight=self.kl_weight)
        return sequence_means(terms, inputs).sum(), metrics
