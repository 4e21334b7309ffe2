"""Weight sync where sampler and trainer hold one module: nothing moves, only the version does."""

from __future__ import annotations

from typing import Protocol


class Versioned(Protocol):
    version: int
    """Of the weights that it serves; stamped on every completion."""


class SharedWeights:
    """The `WeightSync` of the embedded engine."""

    def __init__(self, engine: Versioned) -> None:
        self._engine = engine

    async def publish(self, version: int) -> None:
        self._engine.version = version
