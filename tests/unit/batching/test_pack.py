from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.batching.pack import collate, laid_side_by_side, pack, rows
from motet.types import MediaItem, MicroBatch, Sample


def sample(
    token_ids: Sequence[int],
    *,
    num_sampled: int = 1,
    media: tuple[MediaItem, ...] = (),
    version: int = 0,
    modality: str = "text",
) -> Sample:
    """Its last tokens are sampled; token i has the log-probability -i and the advantage i."""
    num = len(token_ids)
    count = np.arange(num, dtype=np.float32)
    mask = count >= num - num_sampled
    return Sample(
        group_id=0,
        token_ids=np.array(token_ids, np.int32),
        positions=np.stack([count, 10 + count, 20 + count]).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -count, 0),
        advantages=np.where(mask, count, 0),
        version=version,
        media=media,
        digest="d",
        num_prompt_tokens=num - num_sampled,
        modality=modality,
    )


def clip(*spans: tuple[int, int]) -> MediaItem:
    return MediaItem(kind="video", content="c", hash="h", spans=spans, features={}, raw="a.mp4")


# ---- collate -----------------------------------------------------------------------------------


def test_samples_side_by_side_and_shifted_once() -> None:
    micro = collate([sample([5, 6, 33], modality="image"), sample([5, 2])])
    assert micro.token_ids.tolist() == [5, 6, 33, 5, 2]
    assert micro.labels.tolist() == [6, 33, -100, 2, -100]
    assert micro.loss_mask.tolist() == [False, True, False, True, False]
    assert micro.logprobs.tolist() == [0, -2, 0, -1, 0]
    assert micro.advantages.tolist() == [0, 2, 0, 1, 0]
    assert micro.positions.tolist() == [[0, 1, 2, 0, 1], [10, 11, 12, 10, 11], [20, 21, 22, 20, 21]]
    assert micro.cu_seqlens.tolist() == [0, 3, 5]
    assert micro.modalities == ("image", "text")
    assert micro.media == ()


@pytest.mark.parametrize("samples", [[sample([5, 6, 33]), sample([5, 2])], []])
def test_dtypes_are_those_of_a_micro_batch(samples: list[Sample]) -> None:
    micro = collate(samples)
    assert [a.dtype for a in (micro.token_ids, micro.labels, micro.positions)] == [np.int64] * 3
    assert [a.dtype for a in (micro.logprobs, micro.advantages)] == [np.float32] * 2
    assert (micro.loss_mask.dtype, micro.cu_seqlens.dtype) == (np.bool_, np.int32)


def test_the_spans_of_clips_move_along() -> None:
    one, film, other = clip((1, 1)), clip((0, 2), (3, 1)), clip((2, 1))
    micro = collate([sample([5, 6, 33], media=(one,)), sample([5, 2]), sample([5, 6, 7, 8, 2], media=(film, other))])
    assert [item.spans for item in micro.media] == [((1, 1),), ((5, 2), (8, 1)), ((7, 1),)]
    assert film.spans == ((0, 2), (3, 1))
    assert [item.hash for item in micro.media] == ["h", "h", "h"]


def test_each_sample_keeps_what_proves_it() -> None:
    first, second = replace(sample([5, 6, 33]), group_id=4, digest="one"), replace(sample([5, 2]), digest="two")
    micro = collate([first, second])
    assert (micro.group_ids, micro.digests, micro.num_prompt_tokens) == ((4, 0), ("one", "two"), (2, 1))


def test_experts_of_a_row_are_laid_side_by_side_where_all_samples_have_them() -> None:
    """i16[L, layers, k]: here 2 layers and 1 expert."""
    with_experts = [
        replace(s, experts=np.arange(2 * len(s.token_ids), dtype=np.int16).reshape(-1, 2, 1))
        for s in (sample([5, 6, 33]), sample([5, 2]))
    ]
    experts = collate(with_experts).experts
    assert experts is not None and experts.dtype == np.int16
    assert experts[:, :, 0].tolist() == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]
    assert collate([with_experts[0], sample([5, 2])]).experts is None
    assert collate([sample([5, 2])]).experts is None
    assert collate([]).experts is None


def test_a_row_that_only_fills_up_is_empty() -> None:
    micro = collate([])
    assert (micro.token_ids.shape, micro.positions.shape, micro.loss_mask.shape) == ((0,), (3, 0), (0,))
    assert micro.cu_seqlens.tolist() == [0]
    assert (micro.media, micro.modalities) == ((), ())


def test_bounds_of_sequences_laid_side_by_side() -> None:
    bounds, media = laid_side_by_side([(4, (clip((1, 2)),)), (3, ()), (2, (clip((0, 1)),))])
    assert bounds.tolist() == [0, 4, 7, 9]
    assert bounds.dtype == np.int32
    assert [item.spans for item in media] == [((1, 2),), ((7, 1),)]


# ---- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "row_tokens", "multiple", "expected"),
    [
        ([3, 3, 3, 3], 6, 1, [[0, 2], [1, 3]]),
        ([3, 3, 3, 3], 5, 1, [[0], [1], [2], [3]]),
        ([5, 4, 3, 2], 7, 1, [[0, 3], [1, 2]]),  # the longest first, to the emptiest row
        ([2, 3, 4, 5], 7, 1, [[0, 3], [1, 2]]),
        ([1, 1], 8, 1, [[0, 1]]),
        ([100], 8, 1, [[0]]),
        ([2, 100, 3], 8, 1, [[1], [0, 2]]),  # the long one is alone
        ([9, 9, 9], 8, 1, [[0], [1], [2]]),
        ([8, 8], 8, 1, [[0], [1]]),
        ([1, 1, 1, 1], 8, 2, [[0, 2], [1, 3]]),
        ([1, 1, 1, 1], 8, 3, [[0, 3], [1], [2]]),
        ([8, 8, 8], 8, 2, [[0], [1], [2], []]),
    ],
)
def test_rows(lengths: list[int], row_tokens: int, multiple: int, expected: list[list[int]]) -> None:
    assert rows(lengths, row_tokens, multiple) == expected


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 40), st.integers(1, 4))
def test_rows_hold_every_sample_once_and_never_too_much(lengths: list[int], row_tokens: int, multiple: int) -> None:
    cut = rows(lengths, row_tokens, multiple)
    assert sorted(i for row in cut for i in row) == list(range(len(lengths)))
    assert all(row == sorted(row) for row in cut)
    assert all(sum(lengths[i] for i in row) <= row_tokens for row in cut if len(row) != 1)
    assert len(cut) % multiple == 0
    assert sum(not row for row in cut) < multiple  # a row is empty only to fill up


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(2, 5))
def test_rows_are_of_about_equal_length(lengths: list[int], num_rows: int) -> None:
    totals = [sum(lengths[i] for i in row) for row in rows(lengths, 10_000, num_rows)]
    assert len(totals) == num_rows
    assert max(totals) - min(totals) <= max(lengths)


# ---- pack --------------------------------------------------------------------------------------


def layout(grid: Sequence[Sequence[MicroBatch]]) -> list[list[list[int]]]:
    return [[np.diff(micro.cu_seqlens).tolist() for micro in row] for row in grid]


SAMPLES = [
    sample([1] * 4, num_sampled=1, version=6),
    sample([2] * 6, num_sampled=2, version=5),
    sample([3] * 2, num_sampled=1, version=6),
    sample([4] * 9, num_sampled=5, version=7),
]


@pytest.mark.parametrize("row_tokens", [1, 6, 9, 12, 21, 1000])
@pytest.mark.parametrize("dp", [1, 2])
def test_denominators_are_those_of_all_samples_however_they_are_cut(row_tokens: int, dp: int) -> None:
    batch = pack(SAMPLES, row_tokens=row_tokens, dp=dp)
    assert (batch.num_tokens, batch.num_sequences, batch.oldest_version) == (1 + 2 + 1 + 5, 4, 5)
    assert sum(int(micro.loss_mask.sum()) for row in batch.grid for micro in row) == batch.num_tokens


def test_the_grid_is_micro_batches_by_ranks() -> None:
    assert layout(pack(SAMPLES, row_tokens=1000).grid) == [[[4, 6, 2, 9]]]
    assert layout(pack(SAMPLES, row_tokens=12).grid) == [[[2, 9]], [[4, 6]]]
    assert layout(pack(SAMPLES, row_tokens=12, dp=2).grid) == [[[2, 9], [4, 6]]]
    assert layout(pack(SAMPLES, row_tokens=1).grid) == [[[9]], [[6]], [[4]], [[2]]]
    assert layout(pack(SAMPLES, row_tokens=1, dp=2).grid) == [[[9], [6]], [[4], [2]]]
    assert layout(pack(SAMPLES[:3], row_tokens=1, dp=2).grid) == [[[6], [4]], [[2], []]]


def test_every_rank_needs_a_sample() -> None:
    with pytest.raises(AssertionError, match="1 samples for 2 ranks"):
        pack(SAMPLES[:1], row_tokens=8, dp=2)
