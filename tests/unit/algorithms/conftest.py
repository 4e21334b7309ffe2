from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from motet.types import Completion, Group, LossInputs, Prompt, Score, Task


@pytest.fixture
def make_group() -> Callable[[Sequence[float]], Group]:
    def make(rewards: Sequence[float]) -> Group:
        completion = Completion(
            token_ids=np.array([33, 2], dtype=np.int32),
            logprobs=np.array([-0.7, -0.01], dtype=np.float32),
            mask=np.array([True, True]),
            stop="eos",
            versions=(0, 0),
            text="B",
        )
        prompt = Prompt(
            token_ids=np.zeros(3, dtype=np.int32), positions=np.zeros((3, 3), dtype=np.int32), media=(), digest="d"
        )
        task = Task(id="t", messages=(), answer="B", source="train.jsonl:18")
        scores = [Score(value=reward) for reward in rewards]
        return Group(id=1, task=task, prompt=prompt, completions=[completion] * len(rewards), scores=scores)

    return make


@pytest.fixture
def row() -> LossInputs:
    """Two samples of 4 and 3 entries. Under the mask, with behaviour log-probability -1 everywhere:

        sample 0: A = +1, ratios 1.5, 0.5          sample 1: A = -2, ratios 1.5, 0.5, 1

    Where the mask is False stands what would show: not a number, a ratio that overflows, an advantage of 7.
    """
    ratios = torch.tensor([1.0, 1.5, 0.5, 1.0, 1.5, 0.5, 1.0])
    mask = torch.tensor([False, True, True, False, True, True, True])
    new = torch.where(mask, -1.0 + ratios.log(), 5.0)
    new[0] = float("nan")
    return LossInputs(
        new_logprobs=new.requires_grad_(),
        old_logprobs=torch.where(mask, -1.0, -200.0),
        advantages=torch.tensor([7.0, 1, 1, 7, -2, -2, -2]),
        mask=mask,
        cu_seqlens=torch.tensor([0, 4, 7], dtype=torch.int32),
    )


@pytest.fixture
def reference(row: LossInputs) -> torch.Tensor:
    """ref - new = log 2 at token 1 (k3 = 2 - log 2 - 1 = 0.306853), -log 2 at token 4 (k3 = 0.5 + log 2 - 1 = 0.193147)
    and 0 elsewhere under the mask (k3 = 0); outside it, an overflow."""
    difference = torch.tensor([300.0, math.log(2), 0, 300, -math.log(2), 0, 0])
    return row.new_logprobs.detach() + difference
