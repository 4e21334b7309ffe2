"""Attention over packed rows, plugged into transformers through its attention interface.

A row is [1, heads, T, head_dim] with T tokens of many sequences side by side. Which token sees which is not a mask
but a layout, handed to the model as the keyword argument `layout`:

    Packed   training: causal inside each sample, nothing across
    Prefill  the same, and keeps keys and values
    Decode   one new token for each of B sequences, against the kept keys and values

`torch.nn.attention.varlen` serves half precision on CUDA. Elsewhere it is causal SDPA, over all samples at once where
padding them to the longest costs little (many small calls are slow), else over one at a time. No path builds a T x T
mask.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "motet"


class Packed:
    """Causal attention inside each sample of a row.

    Args:
        cu_seqlens: sample boundaries, [0, l0, l0 + l1, ..., T].
    """

    def __init__(self, cu_seqlens: list[int]) -> None:
        self.cu_seqlens = cu_seqlens
        self.lengths = [end - start for start, end in pairwise(cu_seqlens)]
        self._longest = max(self.lengths)
        self._pads = len(self.lengths) * self._longest <= 2 * cu_seqlens[-1]
        starts = torch.arange(len(self.lengths)) * self._longest
        self._slots = torch.cat([start + torch.arange(n) for start, n in zip(starts, self.lengths, strict=True)])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [1, heads, T, d], key and value [1, kv_heads, T, d] -> [1, T, heads, d]."""
        if query.is_cuda and query.dtype != torch.float32:
            return self._varlen(query, key, value, scale)
        if self._pads:
            return self._padded(query, key, value, scale)
        parts = [x.split(self.lengths, dim=2) for x in (query, key, value)]
        outputs = [
            scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
            for q, k, v in zip(*parts, strict=True)
        ]
        return torch.cat(outputs, dim=2).transpose(1, 2)

    def _padded(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        num_samples, longest, at = len(self.lengths), self._longest, self._slots.to(query.device)

        def lay_out(x: Tensor) -> Tensor:  # [1, heads, T, d] -> [S, heads, longest, d]
            slots = x.new_zeros(num_samples * longest, x.shape[1], x.shape[3])
            slots = slots.index_copy(0, at, x[0].transpose(0, 1))
            return slots.view(num_samples, longest, *slots.shape[1:]).transpose(1, 2)

        # Causal, with the padding last: no token sees it.
        output = scaled_dot_product_attention(
            lay_out(query), lay_out(key), lay_out(value), is_causal=True, scale=scale, enable_gqa=True
        )
        return output.transpose(1, 2).flatten(0, 1).index_select(0, at)[None]

    def _varlen(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        groups = query.shape[1] // key.shape[1]
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        bounds = torch.tensor(self.cu_seqlens, dtype=torch.int32, device=query.device)
        longest = self._longest
        output = varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scale, window_size=(-1, 0))
        assert isinstance(output, Tensor)
        return output[None]


class Prefill(Packed):
    """`Packed` that keeps keys and values: `kept[layer]` is a pair of [1, kv_heads, T, d]."""

    def __init__(self, cu_seqlens: list[int]) -> None:
        super().__init__(cu_seqlens)
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        self.kept[layer] = (key, value)
        return super().attend(layer, query, key, value, scale)


class Decode:
    """Key-value cache of B sequences that grow by one token a step.

    Args:
        prefill: the finished prefill of the prompts.
        prompt_of: [B], which prompt each sequence continues.
        max_tokens: the most tokens that a sequence grows by.
    """

    def __init__(self, prefill: Prefill, prompt_of: list[int], max_tokens: int) -> None:
        self.lengths = torch.tensor([prefill.lengths[p] for p in prompt_of])
        width = int(self.lengths.max()) + max_tokens
        self.cache: dict[int, list[Tensor]] = {}
        for layer, kept in prefill.kept.items():
            self.lengths = self.lengths.to(kept[0].device)
            prompts = [[pad(x[0], (0, 0, 0, width - x.shape[2])) for x in t.split(prefill.lengths, 2)] for t in kept]
            self.cache[layer] = [torch.stack([p[i] for i in prompt_of]) for p in prompts]

    def keep(self, rows: Tensor) -> None:
        """Go on with the sequences `rows` [B'] only."""
        self.lengths = self.lengths[rows]
        self.cache = {layer: [x[rows] for x in kept] for layer, kept in self.cache.items()}

    def advance(self) -> None:
        self.lengths = self.lengths + 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [1, heads, B, d], key and value [1, kv_heads, B, d] -> [1, B, heads, d]."""
        keys, values = self.cache[layer]
        rows = torch.arange(len(self.lengths), device=query.device)
        keys[rows, :, self.lengths] = key[0].transpose(0, 1)
        values[rows, :, self.lengths] = value[0].transpose(0, 1)
        seen = torch.arange(keys.shape[2], device=query.device) <= self.lengths[:, None]
        output = scaled_dot_product_attention(
            query[0].transpose(0, 1)[:, :, None],
            keys,
            values,
            attn_mask=seen[:, None, None],
            scale=scale,
            enable_gqa=True,
        )
        return output.squeeze(2)[None]


Layout = Packed | Decode


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    layout: Layout,
    **_: Any,
) -> tuple[Tensor, None]:
    assert attention_mask is None, "packed rows carry a layout, not a mask"
    layer = module.layer_idx
    assert isinstance(layer, int)
    return layout.attend(layer, query, key, value, scaling), None


AttentionInterface.register(NAME, _attention)
