from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.metrics.measures import group_metrics, mismatch, wilson_interval
from motet.types import Completion, Group, Prompt, Score, StopReason, Task


def test_wilson_interval_of_a_half() -> None:
    # n = 100, p = 0.5, z = 2: (0.52 ± 2 sqrt(0.0025 + 0.0001)) / 1.04 = 0.5 ± 2 * 0.0509902 / 1.04
    assert wilson_interval(50, 100, z=2.0) == pytest.approx((0.5 - 0.0980581, 0.5 + 0.0980581), abs=1e-6)


def test_wilson_interval_of_a_published_example() -> None:
    # Newcombe (1998), "Two-sided confidence intervals for the single proportion", table I, method 3.
    assert wilson_interval(81, 263, z=1.959964) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148, z=1.959964) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 20, z=1.959964) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(1, 29, z=1.959964) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_wilson_interval_has_a_width_at_the_ends_and_knows_nothing_of_no_rows() -> None:
    low, high = wilson_interval(10, 10, z=2.0)
    assert (low, high) == (pytest.approx(10 / 14), 1.0)  # n / (n + z²)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@given(total=st.integers(1, 10_000), data=st.data())
def test_wilson_interval_holds_the_share_and_mirrors(total: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, total))
    low, high = wilson_interval(correct, total)
    assert 0 <= low <= correct / total <= high <= 1
    assert wilson_interval(total - correct, total) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_mismatch_counts_masked_entries_alone() -> None:
    new = np.array([-1.0, -2.0, -9.0, -0.5], dtype=np.float32)
    old = np.array([-1.0, -2.0 - log(2), 3.0, -0.25], dtype=np.float32)
    measured = mismatch(new, old, np.array([True, True, False, True]))
    assert measured == {
        "mismatch/mean": pytest.approx((log(2) + 0.25) / 3),
        "mismatch/max": pytest.approx(log(2)),
        "mismatch/k3": pytest.approx(((2 - 1 - log(2)) + (exp(-0.25) - 1 + 0.25)) / 3, rel=1e-5),
    }


def test_mismatch_of_equal_logprobs_is_zero_and_a_fall_counts_as_a_rise() -> None:
    old = np.array([[-1.0, -3.0]], dtype=np.float32)
    mask = np.ones((1, 2), dtype=bool)
    assert set(mismatch(old, old, mask).values()) == {0.0}
    assert mismatch(old - np.float32(0.5), old, mask)["mismatch/mean"] == 0.5


def completion(num_tokens: int, stop: StopReason = "eos") -> Completion:
    ids = np.arange(num_tokens, dtype=np.int32)
    values = np.zeros(num_tokens, dtype=np.float32)
    return Completion(token_ids=ids, logprobs=values, mask=values == 0, stop=stop, versions=(0, 0), text="A")


def group(scores: list[Score], completions: list[Completion]) -> Group:
    prompt = Prompt(token_ids=np.arange(3), positions=np.zeros((3, 3), dtype=np.int32), media=(), digest="d")
    task = Task(id="t", messages=(), answer="A", source="x.jsonl:1")
    return Group(id=0, task=task, prompt=prompt, completions=completions, scores=scores)


def test_group_metrics_of_two_groups() -> None:
    right = Score(value=1.0, parts={"accuracy": 1.0, "format": 1.0})
    wrong = Score(value=0.0, parts={"accuracy": 0.0, "format": 1.0})
    spread = group([right, wrong, wrong, wrong], [completion(2), completion(2), completion(4), completion(8, "length")])
    even = group([Score(value=0.5), Score(value=0.5)], [completion(1), completion(1, "abort")])
    assert group_metrics([spread, even]) == {
        "reward/accuracy": 0.25,  # over the four completions that have it
        "reward/format": 1.0,
        "reward/mean": pytest.approx(2 / 6),
        "reward/std": pytest.approx((0.75**0.5 / 2 + 0) / 2),  # sqrt(0.25 * 0.75) within the first, 0 in the second
        "group/no_spread": 0.5,
        "completion/length_tokens": 3.0,
        "completion/truncated": pytest.approx(1 / 6),
    }
