"""GSPO: Group Sequence Policy Optimization.

    A_i  = (r_i - mean(r)) / std(r)
    s_i  = (policy(y_i) / behaviour(y_i)) ** (1/|y_i|) = exp(1/|y_i| sum_t log r_it)
    s_it = sg(s_i) * policy(y_it) / sg(policy(y_it))          value s_i, gradient through token t alone; sg stops it
    loss = mean over samples i of
           1/|y_i| sum_t [ -min(s_it A_i, clip(s_it, 1 - 3e-4, 1 + 4e-4) A_i) + kl_weight k3_it ]

"Group Sequence Policy Optimization", arXiv:2507.18071. The reward is given to the whole completion, so the ratio is one
number per completion too, and it is clipped as a whole. In a mixture of experts a token's ratio jumps when its
routing changes; the mean over the completion hardly moves. It also stays much closer to 1: hence the narrow range.

This is the paper's token form, GSPO-token. With one advantage per completion, value and gradient equal the sequence
form's, and advantages that differ between tokens would need no other code.

Left out: the paper gives no weight to a KL term; it is offered all the same and is 0 unless set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from motet.algorithms.advantages import Scale, centred
from motet.algorithms.losses import Metrics, add_kl, clipped_terms, log_ratios, sequence_ids, sequence_means
from motet.types import Advantages, Group, LossInputs, Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GSPO:
    """The metrics count tokens, as everywhere: a clipped completion counts with its length."""

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    scale: Scale = "std"
    kl_weight: float = 0.0

    denominator: ClassVar[Literal["sequences"]] = "sequences"

    @property
    def needs_reference(self) -> bool:
        return self.kl_weight > 0

    def advantages(self, group: Group) -> Advantages | Skip:
        return centred(group, scale=self.scale)

    def loss(self, inputs: LossInputs) -> tuple[Tensor, Metrics]:
        log_ratio = log_ratios(inputs)
        sequence_log_ratio = sequence_means(log_ratio.detach(), inputs)[sequence_ids(inputs.cu_seqlens)]
        ratios = (sequence_log_ratio + (log_ratio - log_ratio.detach())).exp()
        terms, metrics = clipped_terms(ratios, inputs, clip_low=self.clip_low, clip_high=self.clip_high)
        terms, metrics = add_kl(terms, metrics, inputs, kl_weight=self.kl_weight)
        return sequence_means(terms, inputs).sum(), metrics
