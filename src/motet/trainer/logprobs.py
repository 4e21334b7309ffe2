"""Log-probabilities of labels, without ever holding [T, vocab]."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head = Callable[[Tensor], Tensor]


def banned_bias(banned_ids: list[int], vocab_size: int, device: torch.device) -> Tensor:
    """f32[vocab]: -inf at ids that sampling never draws, 0 elsewhere. Sampler and trainer add the same."""
    bias = torch.zeros(vocab_size, device=device)
    bias[banned_ids] = -torch.inf
    return bias


def distribution(logits: Tensor, *, temperature: float | Tensor, bias: Tensor) -> Tensor:
    """f32[N, vocab], log-probabilities of the distribution that the policy samples from."""
    return torch.log_softmax(logits.float() / temperature + bias, dim=-1)


def token_logprobs(
    head: Head, hidden: Tensor, labels: Tensor, *, temperature: float, bias: Tensor, chunk_tokens: int
) -> tuple[Tensor, Tensor]:
    """Log-probability of each label, and entropy of the distribution it was drawn from.

    Args:
        head: [N, H] -> logits [N, vocab].
        hidden: [N, H].
        labels: i64[N].
        chunk_tokens: positions whose logits are held at once; the backward pass computes them anew.

    Returns: f32[N] with gradient, and f32[N] detached, in nats.
    """

    def chunk(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logp = distribution(head(states), temperature=temperature, bias=bias)
        entropy = -torch.where(logp > -torch.inf, logp.exp() * logp, 0.0).sum(-1)
        return logp.gather(-1, targets[:, None]).squeeze(-1), entropy.detach()

    parts = [
        checkpoint(chunk, states, targets, use_reentrant=False) if torch.is_grad_enabled() else chunk(states, targets)
        for states, targets in zip(hidden.split(chunk_tokens), labels.split(chunk_tokens), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)
