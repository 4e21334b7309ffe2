"""Rewards of a group -> one advantage per completion.

    centred          A_i = r_i - mean(r), optionally divided by std(r)
    leave_one_out    A_i = r_i - mean of the other rewards = G / (G - 1) * (r_i - mean(r))

A group whose rewards do not differ has only zero advantages. It is skipped, also where a KL term would still pull
on it: such a group would spend a slot of the batch on holding the policy still, and weigh down the groups that teach.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from motet.types import Advantages, Group, Skip

Scale = Literal["std", "none"]

MIN_RELATIVE_SPREAD = 1e-6
"""Rewards this close, relative to the largest, differ by rounding; dividing by their deviation would teach noise."""


def centred(group: Group, *, scale: Scale) -> Advantages | Skip:
    """Rewards [1, 0, 0, 0] give [.75, -.25, -.25, -.25]; scaled, [1.732, -.577, -.577, -.577].

    The deviation is that of the group itself (divided by G, not G - 1), so scaled advantages have variance 1. Raises
    ValueError, naming the row, when a reward is not finite.
    """
    rewards = _finite_rewards(group)
    if _without_spread(rewards):
        return Skip(reason="no_spread")
    values = rewards - rewards.mean()
    if scale == "std":
        values = values / rewards.std()
    return Advantages(values=values.astype(np.float32))


def leave_one_out(group: Group) -> Advantages | Skip:
    """Rewards [1, 0, 0, 1] give [2/3, -2/3, -2/3, 2/3]. Raises ValueError as `centred` does."""
    rewards = _finite_rewards(group)
    if _without_spread(rewards):
        return Skip(reason="no_spread")
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    return Advantages(values=(rewards - others).astype(np.float32))


def _finite_rewards(group: Group) -> NDArray[np.float64]:
    rewards = np.array([score.value for score in group.scores], dtype=np.float64)
    assert len(rewards) == len(group.completions) > 0
    for index in np.flatnonzero(~np.isfinite(rewards)):
        raise ValueError(
            f"{group.task.source}: the reward of completion {index} is {rewards[index]}; it must be a finite number"
        )
    return rewards


def _without_spread(rewards: NDArray[np.float64]) -> bool:
    return bool(np.ptp(rewards) <= MIN_RELATIVE_SPREAD * np.abs(rewards).max())
