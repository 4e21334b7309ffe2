import numpy as np
import pytest

from motet.algorithms import CISPO, DAPO, GRPO, GSPO, RLOO, DrGRPO
from motet.algorithms.advantages import centred, leave_one_out
from motet.types import Advantages, Skip

EVERY_ALGORITHM = [GRPO(), DrGRPO(max_tokens=8), RLOO(), DAPO(), GSPO(), CISPO(), GRPO(kl_weight=0.1)]
WITH_SCALE = [GRPO, DAPO, GSPO, CISPO]


def values(result):
    assert isinstance(result, Advantages)
    assert result.values.dtype == np.float32
    return result.values.tolist()


@pytest.mark.parametrize(
    ("rewards", "scale", "expected"),
    [
        ([1, 0, 0, 1], "std", [1, -1, -1, 1]),  # mean 1/2, deviation 1/2
        ([1, 0, 0, 0], "std", [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)]),  # mean 1/4, deviation sqrt(3)/4
        ([1, 0, 0, 0], "none", [0.75, -0.25, -0.25, -0.25]),
        ([2, 5], "std", [-1, 1]),
        ([2, 5], "none", [-1.5, 1.5]),
    ],
)
def test_centred(make_group, rewards, scale, expected):
    assert values(centred(make_group(rewards), scale=scale)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 1], [2 / 3, -2 / 3, -2 / 3, 2 / 3]),  # the others of a 1 average 1/3, the others of a 0 average 2/3
        ([1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        ([2, 5], [-3, 3]),
    ],
)
def test_leave_one_out(make_group, rewards, expected):
    assert values(leave_one_out(make_group(rewards))) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("algorithm", WITH_SCALE)
def test_scale_none_keeps_the_centred_reward(make_group, algorithm):
    group = make_group([1, 0, 0, 0])
    assert values(algorithm().advantages(group))[0] == pytest.approx(3**0.5)
    assert values(algorithm(scale="none").advantages(group))[0] == 0.75


def test_dr_grpo_does_not_scale_and_rloo_leaves_one_out(make_group):
    group = make_group([1, 0, 0, 0])
    assert values(DrGRPO(max_tokens=8).advantages(group))[0] == 0.75
    assert values(RLOO().advantages(group))[0] == 1.0


@pytest.mark.parametrize("algorithm", EVERY_ALGORITHM, ids=repr)
@pytest.mark.parametrize("rewards", [[1, 1, 1], [0, 0], [-2.5] * 4, [1], [0.3, 0.1 + 0.2]])
def test_a_group_without_spread_is_skipped(make_group, algorithm, rewards):
    assert algorithm.advantages(make_group(rewards)) == Skip(reason="no_spread")


@pytest.mark.parametrize("algorithm", EVERY_ALGORITHM, ids=repr)
def test_a_small_spread_is_kept_down_to_rounding(make_group, algorithm):
    assert isinstance(algorithm.advantages(make_group([1000, 1000 + 2e-3])), Advantages)
    assert algorithm.advantages(make_group([1000, 1000 + 0.9e-3])) == Skip(reason="no_spread")


@pytest.mark.parametrize("algorithm", EVERY_ALGORITHM, ids=repr)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_not_finite_names_row_and_completion(make_group, algorithm, bad):
    with pytest.raises(ValueError, match=rf"^train.jsonl:18: the reward of completion 2 is {bad}; it must be a finite"):
        algorithm.advantages(make_group([0, 1, bad]))
