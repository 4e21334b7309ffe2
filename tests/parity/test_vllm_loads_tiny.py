"""Stock vLLM loads the tiny checkpoint, reads what Motet rendered, and scores what the trainer's Thinker scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from motet.data import toy

if TYPE_CHECKING:
    from motet.models.qwen3_omni.render import Renderer
    from motet.models.qwen3_omni.thinker import Thinker

pytestmark = pytest.mark.vllm
KINDS = (*toy.KINDS, "mixed")


@pytest.fixture(scope="module")
def thinker(random_checkpoint: Path) -> Thinker:
    from motet.models.qwen3_omni.thinker import Thinker

    return Thinker(random_checkpoint)


@pytest.mark.parametrize("kind", KINDS)
def test_vllm_reads_the_ids_that_motet_rendered(sampled: dict[str, Any], kind: str) -> None:
    assert sampled[kind].read_ids == sampled[kind].prompt.token_ids.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_thinker_scores_what_vllm_sampled(
    sampled: dict[str, Any], thinker: Thinker, renderer: Renderer, kind: str
) -> None:
    for completion in sampled[kind].completions:
        token_ids = np.asarray(completion["token_ids"])
        assert not set(token_ids.tolist()) & set(renderer.banned_ids)
        logprobs = _score(thinker, sampled[kind].prompt, token_ids, renderer.banned_ids)
        np.testing.assert_allclose(logprobs, completion["logprobs"], rtol=0, atol=1e-4)


def _score(thinker: Thinker, prompt: Any, completion: np.ndarray, banned_ids: list[int]) -> np.ndarray:
    """Log-probabilities f64[C] of a completion under the trainer's model, as in training: one packed row."""
    import torch

    from motet.models.attention import Packed
    from motet.models.qwen3_omni.positions import extend

    token_ids = np.concatenate([prompt.token_ids, completion])
    with torch.no_grad():
        features = [thinker.encode(item) for item in prompt.media]
        places = extend(prompt.positions, len(completion))
        hidden = thinker.hidden(token_ids, places, prompt.media, features, Packed([0, len(token_ids)]))
        logits = thinker.head(hidden[len(prompt.token_ids) - 1 : -1]).double()
    logits[:, banned_ids] = -torch.inf
    return logits.log_softmax(-1).gather(1, torch.from_numpy(completion)[:, None])[:, 0].numpy()
