"""DAPO: Decoupled Clip and Dynamic sAmpling Policy Optimization.

    A_i  = (r_i - mean(r)) / std(r)
    loss = mean over all tokens of the batch of  -min(r_it A_i, clip(r_it, 1 - 0.2, 1 + 0.28) A_i)

"DAPO: An Open-Source LLM Reinforcement Learning System at Scale", arXiv:2503.14476. Three of its four ideas are here:
1. Clip-higher: the upper distance is larger, so that unlikely tokens can still rise and entropy does not collapse.
2. Token-level loss: every token weighs the same, so a long completion counts for its length.
3. Dynamic sampling: a group that is all right or all wrong, so without spread, is skipped and its slot refilled.

Left out:
1. Overlong reward shaping, the fourth: it is a matter of the reward, and a reward function can add it.
2. The paper's formula averages over the tokens of one group; ours over those of the whole batch.
3. The paper holds no reference policy; `kl_weight` is offered all the same and is 0 unless set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from motet.algorithms.advantages import Scale, centred
from motet.algorithms.losses import Metrics, add_kl, clipped_terms, log_ratios
from motet.types import Advantages, Group, LossInputs, Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DAPO:
    clip_low: float = 0.2
    clip_high: float = 0.28
    scale: Scale = "std"
    kl_weight: float = 0.0

    denominator: ClassVar[Literal["tokens"]] = "tokens"

    @property
    def needs_reference(self) -> bool:
        return self.kl_weight > 0

    def advantages(self, group: Group) -> Advantages | Skip:
        return centred(group, scale=self.scale)

    def loss(self, inputs: LossInputs) -> tuple[Tensor, Metrics]:
        ratios = log_ratios(inputs).exp()
        terms, metrics = clipped_terms(ratios, inputs, clip_low=self.clip_low, clip_high=self.clip_high)
        terms, metrics = add_kl(terms, metrics, inputs, kl_weight=self.kl_weight)
        return terms.sum(), metrics
