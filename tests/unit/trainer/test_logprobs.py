from __future__ import annotations

from math import log

import pytest
import torch
from torch import Tensor

from motet.trainer.logprobs import banned_bias, distribution, token_logprobs

VOCAB, WIDTH, NUM = 11, 5, 7


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


NO_BIAS = torch.zeros(VOCAB)
LABELS = torch.tensor([0, 3, 10, 3, 7, 1, 2])


def test_banned_ids_have_no_probability_and_the_rest_adds_up_to_one() -> None:
    bias = banned_bias([2, 4], 5, torch.device("cpu"))
    assert bias.tolist() == [0, 0, -torch.inf, 0, -torch.inf]
    probabilities = distribution(torch.tensor([[0, log(2), 100, log(5), 3]]), temperature=1.0, bias=bias).exp()
    torch.testing.assert_close(probabilities, torch.tensor([[1 / 8, 2 / 8, 0, 5 / 8, 0]]))


def test_temperature_divides_the_logits_of_all_rows_or_of_each() -> None:
    logits = torch.tensor([[0, log(4)], [0, log(4)]])
    bias = torch.zeros(2)
    torch.testing.assert_close(
        distribution(logits, temperature=2.0, bias=bias).exp(), torch.tensor([[1 / 3, 2 / 3], [1 / 3, 2 / 3]])
    )
    torch.testing.assert_close(
        distribution(logits, temperature=torch.tensor([[2.0], [0.5]]), bias=bias).exp(),
        torch.tensor([[1 / 3, 2 / 3], [1 / 17, 16 / 17]]),
    )


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits = torch.zeros(1, 1000, dtype=torch.bfloat16)  # log 1000 = 6.9078 would be 6.9062
    logp = distribution(logits, temperature=1.0, bias=torch.zeros(1000))
    assert logp.dtype == torch.float32
    assert float(logp[0, 0]) == pytest.approx(-log(1000), abs=1e-5)


def test_log_probability_and_entropy_by_hand() -> None:
    """Probabilities 1/4 and 3/4 beside a banned id; at temperature 2 they are 1/(1 + sqrt 3) and the rest."""
    bias = torch.tensor([0, 0, -torch.inf])

    def head(states: Tensor) -> Tensor:
        return states * torch.tensor([[0, log(3), 50]])

    def at(temperature: float) -> tuple[list[float], list[float]]:
        logprobs, entropies = token_logprobs(
            head, torch.ones(2, 1), torch.tensor([0, 1]), temperature=temperature, bias=bias, chunk_tokens=2
        )
        return logprobs.tolist(), entropies.tolist()

    logprobs, entropies = at(1.0)
    assert logprobs == pytest.approx([log(1 / 4), log(3 / 4)])
    assert entropies == pytest.approx([0.562335, 0.562335], abs=1e-6)  # (log 4 + 3 log 4/3) / 4
    logprobs, entropies = at(2.0)
    assert logprobs == pytest.approx([-1.005053, -0.455746], abs=1e-6)
    assert entropies == pytest.approx([0.656806, 0.656806], abs=1e-6)


@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 100])
def test_chunks_change_neither_value_nor_gradient(chunk_tokens: int) -> None:
    seen: list[int] = []

    def run(chunk: int) -> list[Tensor]:
        weight, hidden = random(VOCAB, WIDTH, seed=0).requires_grad_(), random(NUM, WIDTH, seed=1).requires_grad_()

        def head(states: Tensor) -> Tensor:
            seen.append(len(states))
            return states @ weight.T

        bias = banned_bias([5], VOCAB, torch.device("cpu"))
        logprobs, entropies = token_logprobs(head, hidden, LABELS, temperature=0.7, bias=bias, chunk_tokens=chunk)
        assert not entropies.requires_grad
        (logprobs * random(NUM, seed=2)).sum().backward()
        assert weight.grad is not None and hidden.grad is not None
        return [logprobs.detach(), entropies, weight.grad, hidden.grad]

    chunked = run(chunk_tokens)
    assert max(seen) == min(chunk_tokens, NUM)
    for ours, whole in zip(chunked, run(1000), strict=True):
        torch.testing.assert_close(ours, whole, rtol=0, atol=1e-6)

    hidden, weight = random(NUM, WIDTH, seed=1), random(VOCAB, WIDTH, seed=0)
    logits = hidden @ weight.T / 0.7
    logits[:, 5] = -torch.inf
    expected = logits.log_softmax(-1)[range(NUM), LABELS]
    torch.testing.assert_close(chunked[0], expected)


def test_the_backward_pass_computes_logits_anew() -> None:
    """So that those of one chunk alone are held at a time."""
    num_calls = 0

    def head(states: Tensor) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        return states

    hidden = random(NUM, VOCAB, seed=0).requires_grad_()
    logprobs, _ = token_logprobs(head, hidden, LABELS, temperature=1.0, bias=NO_BIAS, chunk_tokens=4)
    assert num_calls == 2
    logprobs.sum().backward()
    assert num_calls == 4
    with torch.no_grad():
        token_logprobs(head, hidden, LABELS, temperature=1.0, bias=NO_BIAS, chunk_tokens=4)
    assert num_calls == 6


def test_of_no_tokens_there_is_nothing() -> None:
    hidden = torch.zeros(0, VOCAB)
    logprobs, entropies = token_logprobs(
        lambda states: states, hidden, torch.zeros(0, dtype=torch.long), temperature=1.0, bias=NO_BIAS, chunk_tokens=4
    )
    assert logprobs.shape == entropies.shape == (0,)
