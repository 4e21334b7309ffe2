"""AdamW and its schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from motet.config.schema import OptimizerConfig


def adamw(parameters: Mapping[str, torch.nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW ("Decoupled Weight Decay Regularization", arXiv:1711.05101); biases and norms do not decay."""
    decayed = [p for p in parameters.values() if p.ndim >= 2]
    rest = [p for p in parameters.values() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas)


def learning_rate(config: OptimizerConfig, step: int, num_steps: int) -> float:
    """Rate of optimizer step `step`, counted from 0: a linear rise to the peak, then the schedule.

    With warmup_steps = 2, num_steps = 6, linear to 0: 0.5, 1, 1, 0.75, 0.5, 0.25 times the peak.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps)
    shape = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * shape[config.schedule])
