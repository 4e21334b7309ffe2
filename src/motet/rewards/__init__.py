"""What scores a group. Built-in rewards are pure and run in place; a function of yours gets a thread and a deadline."""

from __future__ import annotations

from motet.config.schema import ChoiceConfig, FunctionConfig, MathConfig, RewardConfig
from motet.protocols import Reward
from motet.rewards.adapt import RewardError, load_function, per_completion, per_group, with_deadline
from motet.rewards.choice import Choice
from motet.rewards.math import Math

__all__ = ["Choice", "Math", "RewardError", "build", "load_function", "per_completion", "per_group", "with_deadline"]


def build(config: RewardConfig) -> Reward:
    """The reward that the config names. Raises ValueError when a user's function cannot be loaded."""
    match config.score:
        case ChoiceConfig(format_weight=format_weight):
            return Choice(format_weight=format_weight)
        case MathConfig():
            return Math()
        case FunctionConfig(path=path, per=per):
            lift = per_completion if per == "completion" else per_group
            return with_deadline(lift(load_function(path)), config.timeout_seconds, name=f"reward {path}")
