"""Dr. GRPO: GRPO done right, without its two biases.

    A_i  = r_i - mean(r)
    loss = mean over samples i of
           1/max_tokens sum_t [ -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i) + kl_weight k3_it ]

"Understanding R1-Zero-Like Training: A Critical Perspective", arXiv:2503.20783. Dividing by |y_i| makes long wrong
answers cheap, and dividing by std(r) favours prompts that are almost always or almost never solved. Here the divisor
is a constant, `max_tokens`, the longest completion that sampling allows, and the centred reward stays as it is.

Left out:
1. `scale`: not dividing by the deviation is the method.
2. The paper's prompt templates: they are a matter of data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from motet.algorithms.advantages import centred
from motet.algorithms.losses import Metrics, add_kl, clipped_terms, log_ratios
from motet.types import Advantages, Group, LossInputs, Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGRPO:
    max_tokens: int
    """Longest completion: the constant that every sample's sum is divided by."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_weight: float = 0.0

    denominator: ClassVar[Literal["sequences"]] = "sequences"

    @property
    def needs_reference(self) -> bool:
        return self.kl_weight > 0

    def advantages(self, group: Group) -> Advantages | Skip:
        return centred(group, scale="none")

    def loss(self, inputs: LossInputs) -> tuple[Tensor, Metrics]:
        ratios = log_ratios(inputs).exp()
        terms, metrics = clipped_terms(ratios, inputs, clip_low=self.clip_low, clip_high=self.clip_high)
        terms, metrics = add_kl(terms, metrics, inputs, kl_weight=self.kl_weight)
        return terms.sum() / self.max_tokens, metrics
