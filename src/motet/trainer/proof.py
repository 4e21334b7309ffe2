"""The proof that the trainer is about to read what the renderer made and the sampler read.

Every sample carries the digest of its prompt. Here, last before the model, it is made again from the packed rows: ids,
positions, spans and the bytes of every clip. The store gives features by `MediaItem.hash`, which is proven to be that
of these bytes; the model itself refuses a placeholder without features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from motet.identity import Inspector
from motet.types import MediaItem, MicroBatch


def prove(micros: Sequence[MicroBatch]) -> dict[str, float]:
    """Compare every sample of the rows with its digest. The bytes of a clip are hashed once for all rows.

    Returns: `media/mismatch`, the number of samples that differ, which is 0.

    Raises ValueError where one differs, naming its group, its modality and what differs.
    """
    inspector = Inspector()
    found = [fault for micro in micros for fault in _faults(micro, inspector)]
    if found:
        total = sum(len(micro.digests) for micro in micros)
        raise ValueError(
            f"{len(found)} of {total} samples are not what was rendered and sampled from (media/mismatch); "
            f"the first: {found[0]}"
        )
    return {"media/mismatch": 0.0}


def _faults(micro: MicroBatch, inspector: Inspector) -> Iterator[str]:
    media = _media_by_sample(micro)
    for i, start in enumerate(micro.cu_seqlens[:-1].tolist()):
        end = start + micro.num_prompt_tokens[i]
        ids, positions = micro.token_ids[start:end], micro.positions[:, start:end]
        if difference := inspector.difference(micro.digests[i], ids, positions, media[i]):
            yield f"group {micro.group_ids[i]} ({micro.modalities[i]}): {difference}"


def _media_by_sample(micro: MicroBatch) -> list[list[MediaItem]]:
    """The clips of each sample, spans relative to it. A clip belongs to the sample in which its first span starts."""
    media: list[list[MediaItem]] = [[] for _ in micro.digests]
    for item in micro.media:
        i = int(np.searchsorted(micro.cu_seqlens, item.spans[0][0], side="right")) - 1
        start = int(micro.cu_seqlens[i])
        spans = tuple((first - start, length) for first, length in item.spans)
        media[min(i, len(media) - 1)].append(replace(item, spans=spans))
    return media
