"""RLOO: REINFORCE with a leave-one-out baseline.

    A_i  = r_i - mean of the other G - 1 rewards
    loss = mean over samples i of  sum_t [ -r_it A_i + kl_weight k3_it ],     r_it = policy(y_it) / behaviour(y_it)

"Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs", arXiv:2402.14740.

On data of the current policy every r_it is 1 and the gradient is the paper's, -A_i grad log policy(y_i): the whole
completion is one action, neither averaged over its length nor clipped. On older data the paper is silent; each
token's gradient is weighted by its own ratio, which is right to first order in the change of the policy. The exact
weight, the product of all ratios of the completion, has a variance that grows exponentially with its length.

Left out:
1. Clipping: the paper finds that it rarely acts and drops it. `clip_low` and `clip_high` are refused.
2. KL inside the reward: here it is a term of the loss, as in the other algorithms, so that rewards stay readable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from motet.algorithms.advantages import leave_one_out
from motet.algorithms.losses import Metrics, add_kl, log_ratios, masked_advantages, ratio_metrics
from motet.types import Advantages, Group, LossInputs, Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RLOO:
    kl_weight: float = 0.0

    denominator: ClassVar[Literal["sequences"]] = "sequences"

    @property
    def needs_reference(self) -> bool:
        return self.kl_weight > 0

    def advantages(self, group: Group) -> Advantages | Skip:
        return leave_one_out(group)

    def loss(self, inputs: LossInputs) -> tuple[Tensor, Metrics]:
        ratios = log_ratios(inputs).exp()
        nowhere = torch.zeros_like(inputs.mask)
        metrics = ratio_metrics(ratios, inputs.mask, below=nowhere, above=nowhere)
        terms, metrics = add_kl(-ratios * masked_advantages(inputs), metrics, inputs, kl_weight=self.kl_weight)
        return terms.sum(), metrics
