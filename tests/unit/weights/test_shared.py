from __future__ import annotations

import asyncio
from dataclasses import dataclass

from motet.weights.shared import SharedWeights


@dataclass
class Engine:
    version: int = 0


def test_publish_sets_the_version_that_the_engine_serves() -> None:
    engine = Engine()
    asyncio.run(SharedWeights(engine).publish(7))
    assert engine.version == 7
