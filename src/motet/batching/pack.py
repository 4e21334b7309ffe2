"""Samples -> rows of at most so many tokens -> the grid of micro-batches that one optimizer step learns from."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from motet.types import Batch, IntArray, MediaItem, MicroBatch, Sample

NO_LABEL = -100


def rows(lengths: Sequence[int], row_tokens: int, num_rows_multiple: int = 1) -> list[list[int]]:
    """Cut samples of the given lengths into rows of about equal length.

    The fewest rows that hold all tokens are opened and each sample, longest first, goes to the emptiest row, so that
    no rank of a step waits for another. A sample longer than `row_tokens` gets a row of its own; rows are otherwise
    never longer. Returns indices into `lengths`, in order within a row; the number of rows is a multiple of
    `num_rows_multiple` (empty rows fill up where there are fewer samples).
    """
    num_rows = max(1, -(-sum(min(length, row_tokens) for length in lengths) // row_tokens))
    while True:
        num_rows = -(-num_rows // num_rows_multiple) * num_rows_multiple
        packed = _emptiest_first(lengths, num_rows)
        if all(sum(lengths[i] for i in row) <= row_tokens or len(row) == 1 for row in packed):
            return packed
        num_rows += 1


def _emptiest_first(lengths: Sequence[int], num_rows: int) -> list[list[int]]:
    packed: list[list[int]] = [[] for _ in range(num_rows)]
    heap = [(0, row) for row in range(num_rows)]
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        total, row = heapq.heappop(heap)
        packed[row].append(i)
        heapq.heappush(heap, (total + lengths[i], row))
    return [sorted(row) for row in packed]


def collate(samples: Sequence[Sample]) -> MicroBatch:
    """Lay samples side by side in one row and shift: entry i is about the prediction made at i."""
    cu_seqlens, media = laid_side_by_side([(len(s.token_ids), s.media) for s in samples])
    return MicroBatch(
        token_ids=_joined([s.token_ids for s in samples], np.int64),
        labels=_joined([_shift(s.token_ids, NO_LABEL) for s in samples], np.int64),
        positions=_joined([s.positions for s in samples], np.int64, lead=(3,)),
        loss_mask=_joined([_shift(s.loss_mask, False) for s in samples], np.bool_),
        logprobs=_joined([_shift(s.logprobs, 0) for s in samples], np.float32),
        advantages=_joined([_shift(s.advantages, 0) for s in samples], np.float32),
        cu_seqlens=cu_seqlens,
        media=media,
        group_ids=tuple(s.group_id for s in samples),
        modalities=tuple(s.modality for s in samples),
        digests=tuple(s.digest for s in samples),
        num_prompt_tokens=tuple(s.num_prompt_tokens for s in samples),
        experts=_experts(samples),
    )


def _experts(samples: Sequence[Sample]) -> IntArray | None:
    experts = [s.experts for s in samples if s.experts is not None]
    return np.concatenate(experts) if experts and len(experts) == len(samples) else None


def _joined(arrays: Sequence[np.ndarray], dtype: type[np.generic], lead: tuple[int, ...] = ()) -> np.ndarray:
    """Along the last axis; of no arrays, an empty one: a row that only fills up has no tokens."""
    return np.concatenate([np.empty((*lead, 0), dtype), *arrays], axis=-1).astype(dtype)


def _shift(values: np.ndarray, last: float) -> np.ndarray:
    return np.append(values[1:], np.asarray(last, values.dtype))


def laid_side_by_side(sequences: Sequence[tuple[int, Sequence[MediaItem]]]) -> tuple[IntArray, tuple[MediaItem, ...]]:
    """Boundaries i32[S + 1] of sequences, given as (length, clips), in one row; and their clips, spans moved along."""
    starts = np.concatenate([[0], np.cumsum([length for length, _ in sequences])]).astype(np.int32)
    moved = [
        replace(item, spans=tuple((first + int(start), length) for first, length in item.spans))
        for (_, media), start in zip(sequences, starts, strict=False)
        for item in media
    ]
    return starts, tuple(moved)


def pack(samples: Sequence[Sample], *, row_tokens: int, dp: int = 1) -> Batch:
    """The batch of one optimizer step. Denominators are those of all samples, however they are cut into rows.

    Args:
        samples: at least `dp` of them.
        row_tokens: the most tokens in a row; see `rows`.
        dp: data-parallel ranks; the grid is [num_micro][dp].
    """
    assert len(samples) >= dp, f"{len(samples)} samples for {dp} ranks"
    packed = rows([len(s.token_ids) for s in samples], row_tokens, dp)
    micro = [collate([samples[i] for i in row]) for row in packed]
    return Batch(
        grid=[micro[i : i + dp] for i in range(0, len(micro), dp)],
        num_tokens=int(sum(s.loss_mask.sum() for s in samples)),
        num_sequences=len(samples),
        oldest_version=min(s.version for s in samples),
    )
