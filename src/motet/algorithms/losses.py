"""The pieces that losses are made of.

All of them work on one packed row of T tokens, whose samples `cu_seqlens` tells apart. Terms are f32[T] and 0 outside
the mask; what the inputs hold there is never used, whatever it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from motet.types import LossInputs

Metrics = dict[str, Tensor]


def log_ratios(inputs: LossInputs) -> Tensor:
    """f32[T], log(policy / behaviour policy) of each token."""
    return torch.where(inputs.mask, inputs.new_logprobs - inputs.old_logprobs, 0.0)


def masked_advantages(inputs: LossInputs) -> Tensor:
    """f32[T]"""
    return torch.where(inputs.mask, inputs.advantages, 0.0)


def clipped_terms(ratios: Tensor, inputs: LossInputs, *, clip_low: float, clip_high: float) -> tuple[Tensor, Metrics]:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), f32[T], of PPO (arXiv:1707.06347).

    The clip is active, and the token's gradient zero, where the ratio has left the range on the side that the
    advantage pushes to: below with A < 0, above with A > 0. The metrics count those tokens and sum the ratio.
    """
    advantages = masked_advantages(inputs)
    low, high = 1 - clip_low, 1 + clip_high
    terms = -torch.minimum(ratios * advantages, ratios.clamp(low, high) * advantages)
    below = (ratios < low) & (advantages < 0)
    above = (ratios > high) & (advantages > 0)
    return terms, ratio_metrics(ratios, inputs.mask, below=below, above=above)


def ratio_metrics(ratios: Tensor, mask: Tensor, *, below: Tensor, above: Tensor) -> Metrics:
    """Sums over masked tokens, detached: `ratio`, and the token counts `clip_low` and `clip_high`.

    `below` and `above` are False outside the mask.
    """
    return {
        "ratio": torch.where(mask, ratios.detach(), 0.0).sum(),
        "clip_low": below.sum(dtype=torch.float32),
        "clip_high": above.sum(dtype=torch.float32),
    }


def add_kl(terms: Tensor, metrics: Metrics, inputs: LossInputs, *, kl_weight: float) -> tuple[Tensor, Metrics]:
    """Adds `kl_weight * k3` to each term, so that it is averaged as the algorithm averages, and the metric `kl`."""
    if inputs.ref_logprobs is None:
        assert kl_weight == 0, "a KL term needs reference log-probabilities"
        return terms, metrics
    kl = k3(inputs)
    return terms + kl_weight * kl, {**metrics, "kl": kl.detach().sum()}


def k3(inputs: LossInputs) -> Tensor:
    """exp(ref - new) - (ref - new) - 1, f32[T]: an estimate of KL(policy || reference), unbiased for tokens drawn from
    the policy and never negative (J. Schulman, "Approximating KL Divergence", 2020). Its gradient is, on average, that
    of KL(reference || policy), which agrees to first order near the reference."""
    assert inputs.ref_logprobs is not None
    difference = torch.where(inputs.mask, inputs.ref_logprobs - inputs.new_logprobs, 0.0)
    return difference.exp() - difference - 1


def sequence_ids(cu_seqlens: Tensor) -> Tensor:
    """i64[T], the sample that each token belongs to: [0, 3, 5] gives [0, 0, 0, 1, 1]."""
    lengths = cu_seqlens.diff()
    return torch.repeat_interleave(torch.arange(len(lengths), device=cu_seqlens.device), lengths)


def sequence_means(terms: Tensor, inputs: LossInputs) -> Tensor:
    """f32[S], the mean of the terms over the masked tokens of each sample; 0 for a sample without one."""
    ids = sequence_ids(inputs.cu_seqlens)
    zeros = terms.new_zeros(len(inputs.cu_seqlens) - 1)
    sums = zeros.index_add(0, ids, terms)
    num_tokens = zeros.index_add(0, ids, inputs.mask.to(terms.dtype))
    return sums / num_tokens.clamp(min=1)
