"""Layouts against attention written out: softmax over an explicit mask, one sample at a time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from torch import Tensor

from motet.models import attention
from motet.models.attention import Decode, Packed, Prefill

HEADS, KV_HEADS, DIM, SCALE = 4, 2, 8, 0.3


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def row(num_tokens: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Query [1, heads, T, d], key and value [1, kv_heads, T, d]."""
    return (
        random(1, HEADS, num_tokens, DIM, seed=seed),
        random(1, KV_HEADS, num_tokens, DIM, seed=seed + 1),
        random(1, KV_HEADS, num_tokens, DIM, seed=seed + 2),
    )


def bounds(lengths: list[int]) -> list[int]:
    return [0, *accumulate(lengths)]


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[heads, L, d] and [kv_heads, L, d] -> [L, heads, d]; consecutive query heads share a key head."""
    key, value = (x.repeat_interleave(HEADS // KV_HEADS, dim=0) for x in (key, value))
    scores = SCALE * query @ key.mT
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value).transpose(0, 1)


def one_sample_at_a_time(lengths: list[int], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    parts = zip(*(x[0].split(lengths, dim=1) for x in (query, key, value)), strict=True)
    return torch.cat([causal(*part) for part in parts])[None]


@pytest.fixture
def num_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often SDPA was called."""
    calls: list[bool] = []
    real = attention.scaled_dot_product_attention

    def counted(*args: Tensor, **kwargs: object) -> Tensor:
        calls.append(True)
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(attention, "scaled_dot_product_attention", counted)
    return lambda: len(calls)


LENGTHS = [[5], [4, 5, 3], [1, 1], [1, 2, 18], [7, 1, 6, 7, 2]]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pads", [True, False])
def test_packed_equals_causal_attention_of_each_sample_alone(lengths: list[int], pads: bool) -> None:
    layout = Packed(bounds(lengths))
    layout._pads = pads
    ours, theirs = ([x.requires_grad_() for x in row(sum(lengths))] for _ in range(2))
    output = layout.attend(0, ours[0], ours[1], ours[2], SCALE)
    expected = one_sample_at_a_time(lengths, *theirs)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)
    pull = random(*output.shape, seed=9)
    output.backward(pull)
    expected.backward(pull)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.grad, their.grad, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([5], 1),
        ([4, 1, 1], 1),  # three times four slots for six tokens: twice as many
        ([5, 1, 1], 3),
        ([4, 5, 3], 1),
        ([18, 1, 2], 3),
    ],
)
def test_samples_are_padded_into_one_call_where_that_costs_little(
    lengths: list[int], expected: int, num_calls: Callable[[], int]
) -> None:
    Packed(bounds(lengths)).attend(0, *row(sum(lengths)), SCALE)
    assert num_calls() == expected


@pytest.mark.parametrize("pads", [True, False])
def test_nothing_crosses_from_one_sample_to_another(pads: bool) -> None:
    lengths = [4, 5, 3]
    layout = Packed(bounds(lengths))
    layout._pads = pads
    query, key, value = row(12)
    before = layout.attend(0, query, key, value, SCALE)
    for x in (query, key, value):
        x[:, :, 4:9] += 1
    after = layout.attend(0, query, key, value, SCALE)
    changed = (before != after).flatten(2).any(-1)[0]
    assert changed.tolist() == [False] * 4 + [True] * 5 + [False] * 3


@pytest.mark.parametrize("prompt_of", [[0, 1], [1, 0, 1, 1], [1]])
def test_decoding_after_a_prefill_equals_one_pass_over_everything(prompt_of: list[int]) -> None:
    lengths, num_new, num_layers = [3, 5], 4, 2
    prompts = [row(sum(lengths), seed=10 * layer) for layer in range(num_layers)]
    new = [[row(num_new, seed=100 + 10 * b + 50 * layer) for b in range(len(prompt_of))] for layer in range(num_layers)]
    prefill = Prefill(bounds(lengths))
    for layer in range(num_layers):
        output = prefill.attend(layer, *prompts[layer], SCALE)
        torch.testing.assert_close(output, one_sample_at_a_time(lengths, *prompts[layer]), rtol=0, atol=1e-6)

    decode = Decode(prefill, prompt_of, num_new)
    for step in range(num_new):
        for layer in range(num_layers):
            now = [torch.cat([x[..., step : step + 1, :] for x in xs], 2) for xs in zip(*new[layer], strict=True)]
            output = decode.attend(layer, now[0], now[1], now[2], SCALE)
            assert output.shape == (1, len(prompt_of), HEADS, DIM)
            for b, prompt in enumerate(prompt_of):
                start = bounds(lengths)[prompt]
                whole = [
                    torch.cat([old[0, :, start : start + lengths[prompt]], fresh[0]], dim=1)
                    for old, fresh in zip(prompts[layer], new[layer][b], strict=True)
                ]
                expected = causal(*whole)[lengths[prompt] + step]
                torch.testing.assert_close(output[0, b], expected, rtol=0, atol=1e-6)
        decode.advance()


def test_sequences_that_go_on_keep_their_own_cache() -> None:
    lengths = [3, 5, 2]
    prompts = row(10)
    prefill = Prefill(bounds(lengths))
    prefill.attend(0, *prompts, SCALE)
    all_, some = Decode(prefill, [0, 1, 2], 3), Decode(prefill, [0, 1, 2], 3)
    first, second = row(3, seed=50), row(3, seed=60)
    for decode in (all_, some):
        decode.attend(0, *first, SCALE)
        decode.advance()
    some.keep(torch.tensor([2, 0]))
    expected = all_.attend(0, *second, SCALE)[:, [2, 0]]
    query, key, value = (x[:, :, [2, 0]] for x in second)
    output = some.attend(0, query, key, value, SCALE)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-7)


def test_a_mask_beside_the_layout_is_our_mistake() -> None:
    from transformers import AttentionInterface

    module = torch.nn.Module()
    module.layer_idx = 0  # type: ignore[assignment]
    attend = AttentionInterface()[attention.NAME]
    output, weights = attend(module, *row(5), None, scaling=SCALE, layout=Packed([0, 5]))
    assert weights is None
    torch.testing.assert_close(output, one_sample_at_a_time([5], *row(5)), rtol=0, atol=1e-6)
    with pytest.raises(AssertionError, match="not a mask"):
        attend(module, *row(5), torch.ones(5, 5), scaling=SCALE, layout=Packed([0, 5]))
