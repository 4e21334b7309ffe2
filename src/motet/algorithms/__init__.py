"""Policy-gradient methods: group -> advantages, log-probabilities -> loss. Each is a page; this one names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from motet.algorithms.cispo import CISPO
from motet.algorithms.dapo import DAPO
from motet.algorithms.dr_grpo import DrGRPO
from motet.algorithms.grpo import GRPO
from motet.algorithms.gspo import GSPO
from motet.algorithms.rloo import RLOO
from motet.config.schema import AlgorithmConfig
from motet.protocols import Algorithm

__all__ = ["CISPO", "DAPO", "GRPO", "GSPO", "RLOO", "DrGRPO", "build"]

ALGORITHMS: Mapping[str, Callable[..., Algorithm]] = {
    "grpo": GRPO,
    "dr_grpo": DrGRPO,
    "rloo": RLOO,
    "dapo": DAPO,
    "gspo": GSPO,
    "cispo": CISPO,
}


def build(config: AlgorithmConfig, *, max_tokens: int) -> Algorithm:
    """The algorithm that the config names; an unset setting takes the method's own default.

    `max_tokens` is the longest completion, which Dr. GRPO divides by. Raises ValueError for a setting that the
    method does not read.
    """
    algorithm: Any = ALGORITHMS[config.kind]
    read = {field.name for field in fields(algorithm)}
    settings = {name: value for name, value in config.model_dump(exclude={"kind"}).items() if value is not None}
    for name in settings:
        if name not in read:
            raise ValueError(f"algorithm.{name}: {config.kind} does not read it; remove the setting")
    if "max_tokens" in read:
        settings["max_tokens"] = max_tokens
    built: Algorithm = algorithm(**settings)
    return built
