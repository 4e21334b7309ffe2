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
    from motet.types import Prompt

pytestmark = pytest.mark.vllm

ROWS = (*toy.KINDS, "two_sounds", "mixed", "wide_film", "film_between_images", "film_of_25_fps")
MAX_DIFFERENCE = 1e-4
"""Of a log-probability, in float32. Measured: below 1e-5."""

KNOWN = {
    "audio_longer": "vLLM pads a sound under a second to the longest one beside it, the trainer encodes it alone",
    "wide_film": "vLLM counts on after the widest frame, get_rope_index after the last token of film and sound",
    "film_of_25_fps": "vLLM orders film and sound by exact times, but gives out positions by truncated ones",
}
"""Where the two differ. A row leaves this table when the difference is mended; the test then fails until it does."""


@pytest.fixture(scope="module")
def thinker(random_checkpoint: Path) -> Thinker:
    from motet.models.qwen3_omni.thinker import Thinker

    return Thinker(random_checkpoint)


@pytest.mark.parametrize("row", ROWS)
def test_vllm_reads_the_ids_that_motet_rendered(sampled: dict[str, Any], row: str) -> None:
    assert sampled[row].read_ids == sampled[row].prompt.token_ids.tolist()


@pytest.mark.parametrize(
    "row",
    [
        *(row for row in ROWS if row not in KNOWN),
        *(pytest.param(row, marks=pytest.mark.xfail(strict=True, reason=KNOWN[row])) for row in KNOWN),
    ],
)
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

    from motet.models.attention import Packed
    from motet.models.qwen3_omni.positions import extend

    token_ids = np.concatenate([prompt.token_ids, completion])
    places = extend(prompt.positions, len(completion))
    with torch.no_grad():
        features = [thinker.encode(item) for item in prompt.media]
        hidden = thinker.hidden(token_ids, places, prompt.media, features, Packed([0, len(token_ids)]))
        logits = thinker.head(hidden[len(prompt.token_ids) - 1 : -1]).double()
    logits[:, banned_ids] = -torch.inf
    return logits.log_softmax(-1).gather(1, torch.from_numpy(completion)[:, None])[:, 0].numpy()
