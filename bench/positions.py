"""M-RoPE positions of long prompts: `motet.models.qwen3_omni.positions` against transformers' `get_rope_index`.

    python bench/positions.py

The prompts hold 64 frames and 60 s of sound between two stretches of text. Both sides get the same one, their results
must be equal, and the best of several runs counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from motet import compat
from motet.models.qwen3_omni.positions import positions
from motet.types import IntArray, MediaItem, MediaKind

compat.torchvision()

import torch  # noqa: E402
from transformers import Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration  # noqa: E402

CONFIG: Any = Qwen3OmniMoeThinkerConfig()
CONFIG.vision_start_token_id = 151652
MERGE = CONFIG.vision_config.spatial_merge_size
PER_SECOND = CONFIG.position_id_per_seconds
GRID = (32, 24, 32)
"""Pairs of frames, and patches of a frame of 384 x 512 pixels."""
SECONDS_PER_GRID = 2.0
AUDIO_FRAMES = 6000
AUDIO_TOKENS = 780
NUM_TEXT = 500
NUM_RUNS = 5


def main() -> None:
    print(f"{'prompt':24}{'tokens':>8}{'transformers':>16}{'motet':>12}{'ratio':>8}")
    for name, with_sound in (("film with its sound", True), ("silent video and sound", False)):
        ids, media = prompt(with_sound=with_sound)
        ours = partial(positions, len(ids), media, position_id_per_seconds=PER_SECOND, spatial_merge_size=MERGE)
        theirs = partial(reference, ids, with_sound=with_sound)
        np.testing.assert_array_equal(ours(), theirs())
        seconds = [best_seconds(run) for run in (theirs, ours)]
        ratio = seconds[0] / seconds[1]
        print(f"{name:24}{len(ids):>8}{seconds[0] * 1e3:>13.2f} ms{seconds[1] * 1e3:>9.3f} ms{ratio:>8.0f}")


def prompt(*, with_sound: bool) -> tuple[IntArray, list[MediaItem]]:
    """i64[P] as the processor expands it, and the clips."""
    num_visual = int(np.prod(GRID)) // MERGE**2
    text, end = np.ones(NUM_TEXT, np.int64), np.ones(1, np.int64)
    see, hear = np.array([CONFIG.vision_start_token_id]), np.array([CONFIG.audio_start_token_id])
    video, audio = np.full(num_visual, CONFIG.video_token_id), np.full(AUDIO_TOKENS, CONFIG.audio_token_id)
    if with_sound:
        times = np.arange(GRID[0]).repeat(num_visual // GRID[0]) * SECONDS_PER_GRID * PER_SECOND
        order = np.argsort(np.concatenate([times, np.arange(AUDIO_TOKENS)]), kind="stable")
        parts = [text, see, hear, np.concatenate([video, audio])[order], end, end, text]
    else:
        parts = [text, see, video, end, hear, audio, end, text]
    ids = np.concatenate(parts)
    timing = {"video_grid_thw": np.array([GRID]), "video_second_per_grid": np.array([SECONDS_PER_GRID])}
    return ids, [item("video", ids == CONFIG.video_token_id, timing), item("audio", ids == CONFIG.audio_token_id, {})]


def item(kind: MediaKind, covered: np.ndarray, features: dict[str, np.ndarray]) -> MediaItem:
    edges = np.flatnonzero(np.diff(covered, prepend=False, append=False)).reshape(-1, 2).tolist()
    spans = tuple((start, end - start) for start, end in edges)
    return MediaItem(kind=kind, content="", hash="", spans=spans, features=features, raw=kind)


def reference(ids: IntArray, *, with_sound: bool) -> np.ndarray:
    """f32[3, P] of transformers, whose two functions take any object with the config."""
    Thinker: Any = Qwen3OmniMoeThinkerForConditionalGeneration
    model = SimpleNamespace(config=CONFIG, spatial_merge_size=MERGE)
    model.get_llm_pos_ids_for_vision = partial(Thinker.get_llm_pos_ids_for_vision, model)
    tokens = torch.from_numpy(ids)[None]
    places, _ = Thinker.get_rope_index(
        model,
        tokens,
        None,
        torch.tensor([GRID]),
        torch.ones_like(tokens),
        with_sound,
        torch.tensor([AUDIO_FRAMES]),
        torch.tensor([SECONDS_PER_GRID]),
    )
    return places[:, 0].numpy()


def best_seconds(run: Callable[[], object]) -> float:
    times = []
    for _ in range(NUM_RUNS):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


if __name__ == "__main__":
    main()
