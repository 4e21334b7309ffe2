"""What is measured of a run, as pure functions of numpy arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import sqrt

import numpy as np

from motet.types import BoolArray, FloatArray, Group


def wilson_interval(correct: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Confidence interval of a proportion; z = 1.96 covers it 95 % of the time.

    With p = correct / total and n = total, (p + z²/2n ± z sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n): Wilson (1927),
    "Probable inference, the law of succession, and statistical inference", JASA 22. Unlike p ± z sqrt(p(1 - p)/n) it
    stays within [0, 1] and has a width at p = 0 and p = 1. Without any row it is (0, 1): nothing is known.
    """
    assert 0 <= correct <= total
    if total == 0:
        return 0.0, 1.0
    p, spread = correct / total, z * z / total
    centre = p + spread / 2
    reach = z * sqrt(p * (1 - p) / total + spread / (4 * total))
    low, high = (centre - reach) / (1 + spread), (centre + reach) / (1 + spread)
    return max(0.0, min(p, low)), min(1.0, max(p, high))  # at p = 0 and p = 1 rounding may pass the end


def mismatch(new: FloatArray, old: FloatArray, mask: BoolArray) -> dict[str, float]:
    """How far the trainer's log-probabilities lie from those that the engine reported.

    All arrays have one shape; at least one entry is under the mask. Over masked tokens, with d = new - old:
    `mismatch/mean` and `mismatch/max` of |d|, and `mismatch/k3`, the mean of exp(d) - 1 - d, an estimate of
    KL(engine || trainer) that is unbiased, as the tokens were drawn from the engine, and never negative: k3 of
    Schulman (2020), "Approximating KL divergence".
    """
    difference = (new.astype(np.float64) - old.astype(np.float64))[mask]
    distance = np.abs(difference)
    return {
        "mismatch/mean": float(distance.mean()),
        "mismatch/max": float(distance.max()),
        "mismatch/k3": float((np.expm1(difference) - difference).mean()),
    }


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """What the rewards and completions of at least one group look like.

    `reward/mean` and `reward/<part>` are means over completions (a part: over those that have it), `reward/std` is the
    mean over groups of the standard deviation within the group, which is what advantages live from, and
    `group/no_spread` the share of groups whose rewards are all equal. `completion/length_tokens` is a mean,
    `completion/truncated` the share that ended by length.
    """
    rewards = [np.array([score.value for score in group.scores], dtype=np.float64) for group in groups]
    completions = [completion for group in groups for completion in group.completions]
    parts: dict[str, list[float]] = defaultdict(list)
    for score in (score for group in groups for score in group.scores):
        for name, value in score.parts.items():
            parts[name].append(value)
    return {
        **{f"reward/{name}": float(np.mean(values)) for name, values in parts.items()},
        "reward/mean": float(np.concatenate(rewards).mean()),
        "reward/std": float(np.mean([values.std() for values in rewards])),
        "group/no_spread": float(np.mean([np.ptp(values) == 0 for values in rewards])),
        "completion/length_tokens": float(np.mean([len(completion.token_ids) for completion in completions])),
        "completion/truncated": float(np.mean([completion.stop == "length" for completion in completions])),
    }
