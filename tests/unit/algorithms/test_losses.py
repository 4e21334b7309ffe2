"""The losses of the six algorithms on one row; `row` and `reference` say what stands in it."""

import itertools
from dataclasses import replace

import pytest
import torch

from motet.algorithms import CISPO, DAPO, GRPO, GSPO, RLOO, DrGRPO
from motet.algorithms.losses import k3, sequence_ids, sequence_means
from motet.types import LossInputs

EVERY_ALGORITHM = [GRPO(), DrGRPO(max_tokens=10), RLOO(), DAPO(), GSPO(), CISPO(clip_low=0.2)]


def evaluate(algorithm, inputs):
    """Loss, gradient at the masked tokens, metrics; the gradient elsewhere is zero."""
    loss, metrics = algorithm.loss(inputs)
    assert loss.shape == ()
    assert all(value.shape == () and not value.requires_grad for value in metrics.values())
    (gradient,) = torch.autograd.grad(loss, inputs.new_logprobs)
    assert torch.all(gradient[~inputs.mask] == 0)
    return loss.item(), gradient[inputs.mask].tolist(), {name: value.item() for name, value in metrics.items()}


def single(ratio, advantage):
    """One sample of one token."""
    return LossInputs(
        new_logprobs=torch.tensor([ratio]).log().requires_grad_(),
        old_logprobs=torch.zeros(1),
        advantages=torch.tensor([advantage]),
        mask=torch.tensor([True]),
        cu_seqlens=torch.tensor([0, 1]),
    )


def test_grpo(row):
    # sample 0, A = 1:   min(1.5, 1.2) = 1.2 clipped, min(.5, .8) = .5          -> -(1.2 + .5) / 2 = -0.85
    # sample 1, A = -2:  min(-3, -2.4) = -3, min(-1, -1.6) = -1.6 clipped, -2   -> (3 + 1.6 + 2) / 3 = 2.2
    # gradient of an unclipped token: -A r / |y|
    loss, gradient, metrics = evaluate(GRPO(), row)
    assert loss == pytest.approx(1.35)
    assert gradient == pytest.approx([0, -0.25, 1, 0, 2 / 3])
    assert metrics == pytest.approx({"ratio": 5.0, "clip_low": 1, "clip_high": 1})


def test_grpo_at_ratio_one_is_reinforce(row):
    row = replace(row, old_logprobs=row.new_logprobs.detach())
    loss, gradient, metrics = evaluate(GRPO(), row)
    assert loss == pytest.approx(-1 + 2)
    assert gradient == pytest.approx([-1 / 2, -1 / 2, 2 / 3, 2 / 3, 2 / 3])  # -A / |y|
    assert metrics == pytest.approx({"ratio": 5.0, "clip_low": 0, "clip_high": 0})


def test_dr_grpo_divides_every_sample_by_the_same_constant(row):
    loss, gradient, metrics = evaluate(DrGRPO(max_tokens=10), row)
    assert loss == pytest.approx((-1.2 - 0.5 + 3 + 1.6 + 2) / 10)
    assert gradient == pytest.approx([0, -0.05, 0.3, 0, 0.2])
    assert metrics == pytest.approx({"ratio": 5.0, "clip_low": 1, "clip_high": 1})


def test_rloo_sums_without_clipping(row):
    loss, gradient, metrics = evaluate(RLOO(), row)
    assert loss == pytest.approx(-(1.5 + 0.5) + 2 * (1.5 + 0.5 + 1))
    assert gradient == pytest.approx([-1.5, -0.5, 3, 1, 2])  # -A r
    assert metrics == pytest.approx({"ratio": 5.0, "clip_low": 0, "clip_high": 0})


def test_dapo_weighs_tokens_alike(row):
    loss, gradient, metrics = evaluate(DAPO(), row)
    assert loss == pytest.approx(-1.28 - 0.5 + 3 + 1.6 + 2)
    assert gradient == pytest.approx([0, -0.5, 3, 0, 2])
    assert metrics == pytest.approx({"ratio": 5.0, "clip_low": 1, "clip_high": 1})


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient", "clip_low", "clip_high"),
    [
        (1.27, 1.0, -1.27, 0, 0),
        (1.29, 1.0, 0.0, 0, 1),
        (1.29, -1.0, 1.29, 0, 0),  # a ratio that must fall is not clipped above
        (0.81, -1.0, 0.81, 0, 0),
        (0.79, -1.0, 0.0, 1, 0),
        (0.79, 1.0, -0.79, 0, 0),
    ],
)
def test_dapo_clips_higher_above_than_below(ratio, advantage, gradient, clip_low, clip_high):
    _, got, metrics = evaluate(DAPO(), single(ratio, advantage))
    assert got == pytest.approx([gradient])
    assert metrics == pytest.approx({"ratio": ratio, "clip_low": clip_low, "clip_high": clip_high})


def test_gspo_has_one_ratio_per_sample(row):
    # s_0 = (1.5 * .5)^(1/2) = .8660254, s_1 = (1.5 * .5 * 1)^(1/3) = .9085603
    # clip 0.1: s_0 < .9 but A > 0; s_1 inside                        -> -.8660254 + 2 * .9085603
    # each token carries its share of the gradient: -A s / |y|
    loss, gradient, metrics = evaluate(GSPO(clip_low=0.1, clip_high=0.1), row)
    assert loss == pytest.approx(0.9510952)
    assert gradient == pytest.approx([-0.4330127] * 2 + [0.6057069] * 3)
    assert metrics == pytest.approx({"ratio": 2 * 0.8660254 + 3 * 0.9085603, "clip_low": 0, "clip_high": 0})


def test_gspo_clips_a_sample_as_a_whole(row):
    loss, gradient, metrics = evaluate(GSPO(), row)
    assert loss == pytest.approx(-0.8660254 + 2 * (1 - 3e-4))
    assert gradient == pytest.approx([-0.4330127] * 2 + [0] * 3)
    assert metrics["clip_low"] == 3
    assert metrics["clip_high"] == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [(1.00035, 1.0, False), (1.00045, 1.0, True), (0.99975, -1.0, False), (0.99965, -1.0, True)],
)
def test_gspo_default_range(ratio, advantage, clipped):
    _, gradient, metrics = evaluate(GSPO(), single(ratio, advantage))
    assert (gradient == [0]) is clipped
    assert metrics["clip_low"] + metrics["clip_high"] == clipped


def test_cispo_bounds_the_weight_and_keeps_every_gradient(row):
    # new log-probabilities: log 1.5 - 1 = -.594535, log .5 - 1 = -1.693147, -1; weights 1.2, .5, 1.2, .5, 1
    # -w A log p: .713442 + .846574 - 1.426884 - 1.693147 - 2
    loss, gradient, metrics = evaluate(CISPO(clip_high=0.2), row)
    assert loss == pytest.approx(-3.560015, abs=1e-5)
    assert gradient == pytest.approx([-1.2, -0.5, 2.4, 1, 2])  # -A w, clipped tokens included; none through w
    assert metrics == pytest.approx({"ratio": 5.0, "clip_low": 0, "clip_high": 2})


def test_cispo_lower_bound_and_default(row):
    _, gradient, metrics = evaluate(CISPO(clip_low=0.2, clip_high=0.2), row)
    assert gradient == pytest.approx([-1.2, -0.8, 2.4, 1.6, 2])
    assert metrics == pytest.approx({"ratio": 5.0, "clip_low": 2, "clip_high": 2})
    assert evaluate(CISPO(), single(4.9, 1.0))[1] == pytest.approx([-4.9])
    assert evaluate(CISPO(), single(5.1, 1.0))[1] == pytest.approx([-5.0])
    assert evaluate(CISPO(), single(0.01, 1.0))[1] == pytest.approx([-0.01])


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (GRPO, 0.306853 / 2 + 0.193147 / 3),
        (GSPO, 0.306853 / 2 + 0.193147 / 3),
        (lambda **kwargs: DrGRPO(max_tokens=10, **kwargs), 0.05),
        (RLOO, 0.5),
        (DAPO, 0.5),
        (CISPO, 0.5),
    ],
)
def test_kl_is_averaged_as_the_policy_term_is(row, reference, algorithm, expected):
    row = replace(row, ref_logprobs=reference)
    without, _, metrics = evaluate(algorithm(), row)
    assert metrics["kl"] == pytest.approx(0.5, abs=1e-6)
    with_kl, _, metrics = evaluate(algorithm(kl_weight=0.3), row)
    assert with_kl - without == pytest.approx(0.3 * expected, abs=1e-6)
    assert metrics["kl"] == pytest.approx(0.5, abs=1e-6)


def test_k3_gradient(row, reference):
    row = replace(row, ref_logprobs=reference)
    (gradient,) = torch.autograd.grad(k3(row).sum(), row.new_logprobs)
    # d/dnew [exp(d) - d - 1], d = ref - new:  1 - exp(d)
    assert gradient.tolist() == pytest.approx([0, -1, 0, 0, 0.5, 0, 0])


def test_a_kl_weight_without_reference_is_a_bug(row):
    with pytest.raises(AssertionError, match="reference"):
        GRPO(kl_weight=0.1).loss(row)


def random_row(lengths, *, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    num_tokens = sum(lengths)
    new = -3 * torch.rand(num_tokens, generator=generator, dtype=dtype)
    advantages = torch.randn(len(lengths), generator=generator, dtype=dtype)
    return LossInputs(
        new_logprobs=new.requires_grad_(),
        old_logprobs=new.detach() + 0.3 * torch.randn(num_tokens, generator=generator, dtype=dtype),
        advantages=torch.repeat_interleave(advantages, torch.tensor(lengths)),
        mask=torch.rand(num_tokens, generator=generator) < 0.7,
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        ref_logprobs=new.detach() + 0.5 * torch.randn(num_tokens, generator=generator, dtype=dtype),
    )


@pytest.mark.parametrize("algorithm", EVERY_ALGORITHM, ids=repr)
def test_a_packed_row_is_the_sum_of_its_samples(algorithm):
    algorithm = replace(algorithm, kl_weight=0.2)
    packed = random_row([5, 1, 9, 4], dtype=torch.float64)
    loss, gradient, metrics = evaluate(algorithm, packed)
    bounds = packed.cu_seqlens.tolist()
    parts = []
    for start, end in itertools.pairwise(bounds):
        names = ("new_logprobs", "old_logprobs", "advantages", "mask", "ref_logprobs")
        cut = {name: getattr(packed, name).detach()[start:end] for name in names}
        cut["new_logprobs"].requires_grad_()
        parts.append(evaluate(algorithm, LossInputs(**cut, cu_seqlens=torch.tensor([0, end - start]))))
    assert loss == pytest.approx(sum(part[0] for part in parts), abs=1e-12)
    assert gradient == pytest.approx([value for part in parts for value in part[1]], abs=1e-12)
    assert metrics == pytest.approx({name: sum(part[2][name] for part in parts) for name in metrics}, rel=1e-6)


@pytest.mark.parametrize("algorithm", [a for a in EVERY_ALGORITHM if not isinstance(a, CISPO)], ids=repr)
def test_the_gradient_is_the_slope_of_the_loss(algorithm):
    """GSPO included: what its stop-gradients leave is the gradient of the sequence form. CISPO is the exception by
    design, and has its values above."""
    algorithm = replace(algorithm, kl_weight=0.2)
    inputs = random_row([5, 1, 9, 4], dtype=torch.float64, seed=1)
    assert torch.autograd.gradcheck(
        lambda new: algorithm.loss(replace(inputs, new_logprobs=new))[0], inputs.new_logprobs
    )


def test_sequence_ids_and_means(row):
    assert sequence_ids(torch.tensor([0, 3, 3, 5])).tolist() == [0, 0, 0, 2, 2]
    terms = torch.tensor([0.0, 1, 2, 0, 3, 4, 8])
    assert sequence_means(terms, row).tolist() == [1.5, 5.0]
    # the second sample has no token under the mask, the third no entry at all
    mask = torch.tensor([False, True, True, False, False, False, False])
    bare = replace(row, mask=mask, cu_seqlens=torch.tensor([0, 4, 7, 7]))
    assert sequence_means(terms * mask, bare).tolist() == [1.5, 0, 0]
