from __future__ import annotations

import pytest
import torch

from motet.features.encode import run_tower
from motet.types import MediaItem

CLIP = MediaItem(kind="audio", content="c", hash="h", spans=((1, 2), (5, 1)), features={}, raw="a.wav")


def test_features_have_no_gradient_and_memory_of_their_own() -> None:
    base, weight = torch.zeros(3, 4), torch.ones(4, requires_grad=True)
    assert not run_tower(lambda item: base + weight, CLIP).requires_grad
    features = run_tower(lambda item: base, CLIP)
    base.fill_(7)
    assert features.tolist() == [[0.0] * 4] * 3


@pytest.mark.parametrize("num_features", [2, 4])
def test_as_many_features_as_tokens(num_features: int) -> None:
    with pytest.raises(AssertionError, match=rf"audio a\.wav: the tower gives {num_features} features for 3 tokens"):
        run_tower(lambda item: torch.zeros(num_features, 4), CLIP)
