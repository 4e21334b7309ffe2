from __future__ import annotations

import json
import random

import numpy as np
import torch

from motet.checkpoint import randomness


def draw() -> list[float]:
    return [random.gauss(0, 1), float(np.random.standard_normal()), float(torch.randn(()))]


def test_the_same_is_drawn_again_after_a_round_trip_through_json() -> None:
    draw()
    saved = json.dumps(randomness.state())
    first = [draw() for _ in range(3)]
    assert first[0] != first[1]
    randomness.restore(json.loads(saved))
    assert [draw() for _ in range(3)] == first
