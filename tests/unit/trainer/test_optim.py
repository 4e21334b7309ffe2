from __future__ import annotations

from typing import Any

import pytest
import torch

from motet.config.schema import OptimizerConfig
from motet.trainer.optim import adamw, learning_rate


def rates(num_steps: int, **settings: Any) -> list[float]:
    config = OptimizerConfig(lr=2.0, **settings)
    return [learning_rate(config, step, num_steps) for step in range(num_steps)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [2, 2, 2, 2, 2, 2]),
        ({"warmup_steps": 4}, [0.5, 1, 1.5, 2, 2, 2]),
        ({"warmup_steps": 4, "min_lr_ratio": 0.5}, [0.5, 1, 1.5, 2, 2, 2]),
        ({"warmup_steps": 2, "schedule": "linear"}, [1, 2, 2, 1.5, 1, 0.5]),
        ({"warmup_steps": 2, "schedule": "linear", "min_lr_ratio": 0.5}, [1, 2, 2, 1.75, 1.5, 1.25]),
        # (1 + cos(k pi / 6)) for k = 0 .. 5
        ({"schedule": "cosine"}, [2, 1.8660254, 1.5, 1, 0.5, 0.1339746]),
        ({"schedule": "cosine", "min_lr_ratio": 0.1}, [2, 1.8794229, 1.55, 1.1, 0.65, 0.3205771]),
        ({"warmup_steps": 6, "schedule": "linear"}, [2 / 6, 4 / 6, 1, 8 / 6, 10 / 6, 2]),
    ],
)
def test_learning_rate(settings: dict[str, Any], expected: list[float]) -> None:
    assert rates(6, **settings) == pytest.approx(expected, rel=1e-6)


def test_matrices_decay_and_norms_and_biases_do_not() -> None:
    parameters = {
        "experts": torch.nn.Parameter(torch.ones(2, 2, 2)),
        "weight": torch.nn.Parameter(torch.ones(2, 2)),
        "bias": torch.nn.Parameter(torch.ones(2)),
    }
    optimizer = adamw(parameters, OptimizerConfig(lr=0.1, weight_decay=0.5))
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert [float(p.detach().flatten()[0]) for p in parameters.values()] == pytest.approx([0.95, 0.95, 1])


def test_the_moments_are_those_of_the_settings() -> None:
    """Gradients 1 and then 0: m = (1 - b1) b1 / (1 - b1²), v = (1 - b2) b2 / (1 - b2²), and the weight has moved by
    lr (1 + m / sqrt(v))."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = adamw({"weight": weight}, OptimizerConfig(lr=0.1, betas=(0.5, 0.75)))
    for gradient in (1.0, 0.0):
        weight.grad = torch.tensor([gradient])
        optimizer.step()
    m, v = 0.25 / 0.75, 0.1875 / 0.4375
    assert float(weight.detach()) == pytest.approx(-0.1 * (1 + m / v**0.5), rel=1e-5)
