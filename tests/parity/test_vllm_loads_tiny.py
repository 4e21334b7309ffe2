"""Stock vLLM loads the tiny checkpoint, reads what Motet rendered, and scores what the trainer's Thinker scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from motet.data import toy

if TYPE_CHECKING:
    from motet.models.qwen3_omni.render import Renderer
    from motet.models.qwen3_omni.thinker import Thinker
    from motet.types import Prompt

pytestmark = pytest.mark.vllm

FILMS = ("film_24", "film_25", "film_ntsc", "slow_film", "long_film", "silent_25", "silent_long")
ROWS = (*toy.KINDS, "two_sounds", "mixed", "wide_film", "film_between_images", *FILMS)
MAX_DIFFERENCE = 1e-4
"""Of a log-probability, in float32. Measured: below 3e-6, and 2e-5 for two sounds. There vLLM takes the spectra of both
at once, padded with silence to the longer one, and the last frame of the shorter one sees 40 samples of that; alone, it
sees the sound's own end mirrored."""


@pytest.mark.parametrize("row", ROWS)
def test_vllm_reads_the_ids_that_motet_rendered(sampled: dict[str, Any], row: str) -> None:
    assert sampled[row].read_ids == sampled[row].prompt.token_ids.tolist()


@pytest.mark.parametrize("row", ROWS)
def test_the_thinker_scores_what_vllm_sampled(
    sampled: dict[str, Any], thinker: Thinker, renderer: Renderer, row: str
) -> None:
    for completion in sampled[row].completions:
        token_ids = np.asarray(completion["token_ids"])
        assert len(token_ids) == 16
        assert not np.isin(token_ids, renderer.banned_ids).any()
        logprobs = _score(thinker, sampled[row].prompt, token_ids, renderer.banned_ids)
        np.testing.assert_allclose(logprobs, completion["logprobs"], rtol=0, atol=MAX_DIFFERENCE)


def _score(thinker: Thinker, prompt: Prompt, completion: np.ndarray, banned_ids: list[int]) -> np.ndarray:
    """Log-probabilities f64[C] of a completion as in training: a packed row, one tower call per clip."""
    import torch

    from motet.batching.samples import extend_positions
    from motet.models.attention import Packed

    token_ids = np.concatenate([prompt.token_ids, completion])
    places = extend_positions(prompt.positions, len(completion))
    with torch.no_grad():
        features = [thinker.encode(item) for item in prompt.media]
        hidden = thinker.hidden(token_ids, places, prompt.media, features, Packed([0, len(token_ids)]))
        logits = thinker.head(hidden[len(prompt.token_ids) - 1 : -1]).double()
    logits[:, banned_ids] = -torch.inf
    return logits.log_softmax(-1).gather(1, torch.from_numpy(completion)[:, None])[:, 0].numpy()
