"""M-RoPE positions: integers, built once on the host, from where the clips stand in the prompt.

    token     a  b  <  i  i  i  i  >  c        text counts up on all three axes;
    temporal  0  1  2  3  3  3  3  5  6        a clip starts one after the text before it (an image of 2 x 2 tokens);
    height    0  1  2  3  3  4  4  5  6        text goes on one after the highest position of the clip
    width     0  1  2  3  4  3  4  5  6

The reference is `get_rope_index` of transformers, with two differences, in both of which vLLM is followed:

- Text goes on after the highest position of a video and its sound; transformers looks at the last token alone. They
  differ where a frame is wider than its sound is long.
- Where the seconds per frame pair give fractional positions, transformers keeps the fraction, in floats that a cast to
  bfloat16 would ruin. Here it is cut off, as in vLLM, so that trainer and sampler hold the same integers. The seconds
  come from `timing.py`, rounded so that every arithmetic gives the same (this one is vLLM's for a float32 model).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from motet.types import IntArray, MediaItem


def positions(
    num_tokens: int, media: Sequence[MediaItem], *, position_id_per_seconds: float, spatial_merge_size: int
) -> IntArray:
    """Positions of one prompt.

    Args:
        num_tokens: P, the length of the prompt.
        media: clips and their spans, in any order. A video and the sound that interleaves with it are two items with
            no token between their spans; all other clips have at least one text token between them.
        position_id_per_seconds: temporal positions per second of video (13 in the released model).
        spatial_merge_size: patches that the vision tower merges into one token, along each side.

    Returns: i32[3, P]; temporal, height and width axis.
    """
    result = np.empty((3, num_tokens), np.int32)
    token, start = 0, 0
    for clips in _blocks(media):
        first = min(clip.spans[0][0] for clip in clips)
        result[:, token:first] = np.arange(start, start + first - token)
        start += first - token
        grids = [_grid(clip, position_id_per_seconds, spatial_merge_size) for clip in clips]
        for clip, grid in zip(clips, grids, strict=True):
            assert grid.shape[1] == clip.num_tokens, f"{clip.kind} {clip.raw!r}: spans {clip.spans}, grid {grid.shape}"
            result[:, _places(clip)] = start + grid
        token = sum(clips[-1].spans[-1])
        start += max(int(grid.max()) for grid in grids) + 1
    result[:, token:] = np.arange(start, start + num_tokens - token)
    return result


def _blocks(media: Sequence[MediaItem]) -> Iterator[list[MediaItem]]:
    """Clips between two stretches of text, in the order of their last tokens: one clip, or a video and its sound."""
    spans = sorted((first, first + length, i) for i, clip in enumerate(media) for first, length in clip.spans)
    block: dict[int, MediaItem] = {}
    reached = 0
    for first, end, i in spans:
        if block and first > reached:
            yield list(block.values())
            block = {}
        block.pop(i, None)
        block[i] = media[i]
        assert sorted(clip.kind for clip in block.values()) in ([media[i].kind], ["audio", "video"]), "clips touch"
        reached = end
    if block:
        yield list(block.values())


def _places(clip: MediaItem) -> IntArray:
    """i64[N], the tokens of the prompt that are the clip's."""
    return np.concatenate([np.arange(first, first + length) for first, length in clip.spans])


def _grid(clip: MediaItem, position_id_per_seconds: float, spatial_merge_size: int) -> IntArray:
    """i64[3, N], positions of a clip's tokens relative to its start."""
    if clip.kind == "audio":
        return np.broadcast_to(np.arange(clip.num_tokens), (3, clip.num_tokens))
    num_frames, height, width = clip.features[f"{clip.kind}_grid_thw"][0]
    grid = np.indices((num_frames, height // spatial_merge_size, width // spatial_merge_size)).reshape(3, -1)
    seconds = float(np.float32(clip.features["video_second_per_grid"][0])) if clip.kind == "video" else 1.0
    grid[0] = (grid[0] * (seconds * position_id_per_seconds)).astype(np.int64)
    return grid
