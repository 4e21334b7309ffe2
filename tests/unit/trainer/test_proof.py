"""Real rollouts, packed; then one thing is changed on its way to the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from motet.batching.pack import collate, pack
from motet.trainer.proof import prove
from motet.types import MediaItem, MicroBatch, Sample

if TYPE_CHECKING:
    from motet.trainer.torch_ import TorchTrainer


@pytest.fixture(scope="module")
def row(rollouts: list[Sample]) -> MicroBatch:
    """Every kind of row, each twice, in one packed row."""
    return collate(rollouts)


def sample_of(row: MicroBatch, modality: str) -> int:
    return row.modalities.index(modality)


def with_features(item: MediaItem, change: Callable[[np.ndarray], np.ndarray]) -> MediaItem:
    name = min(item.features)
    return replace(item, features={**item.features, name: change(item.features[name])})


def first_clip(row: MicroBatch, modality: str) -> int:
    start = row.cu_seqlens[sample_of(row, modality)]
    return next(i for i, item in enumerate(row.media) if item.spans[0][0] >= start)


def fault(row: MicroBatch) -> str:
    with pytest.raises(ValueError, match="not what was rendered") as error:
        prove([row])
    return str(error.value)


def test_what_was_rendered_is_what_is_fed_however_it_is_packed(rollouts: list[Sample]) -> None:
    for row_tokens in (1, 256, 1 << 20):
        micros = [micro for row in pack(rollouts, row_tokens=row_tokens).grid for micro in row]
        assert prove(micros) == {"media/mismatch": 0.0}
    assert prove([collate([])]) == {"media/mismatch": 0.0}
    assert {kind for s in rollouts for kind in s.modality.split("+")} == {"text", "image", "audio", "video"}


def test_an_id_of_a_prompt(row: MicroBatch) -> None:
    i = sample_of(row, "image")
    token_ids = row.token_ids.copy()
    token_ids[row.cu_seqlens[i]] += 1
    named = f"1 of {len(row.digests)} samples are not what was rendered and sampled from (media/mismatch); the first: "
    assert fault(replace(row, token_ids=token_ids)) == f"{named}group {row.group_ids[i]} (image): ids"


def test_tokens_of_the_answer_are_no_part_of_the_prompt(row: MicroBatch) -> None:
    token_ids = np.where(np.roll(row.loss_mask, 1), 7, row.token_ids)
    assert (token_ids != row.token_ids).any()
    assert prove([replace(row, token_ids=token_ids)]) == {"media/mismatch": 0.0}


def test_positions_that_do_not_restart(row: MicroBatch) -> None:
    moved = row.positions + np.where(np.arange(len(row.token_ids)) >= row.cu_seqlens[1], 1, 0)
    said = fault(replace(row, positions=moved))
    assert said.startswith(f"{len(row.digests) - 1} of {len(row.digests)} samples")
    assert said.endswith(f"group {row.group_ids[1]} ({row.modalities[1]}): positions")


@pytest.mark.parametrize("modality", ["image", "audio", "video"])
def test_one_number_of_one_clip(row: MicroBatch, modality: str) -> None:
    at = first_clip(row, modality)

    def change(array: np.ndarray) -> np.ndarray:
        changed = array.copy()
        changed.flat[0] += 1
        return changed

    media = [with_features(item, change) if i == at else item for i, item in enumerate(row.media)]
    group = row.group_ids[sample_of(row, modality)]
    assert fault(replace(row, media=tuple(media))).endswith(
        f"group {group} ({modality}): features of clip 0 ({modality})"
    )


def test_a_number_changed_in_place_touches_all_who_share_the_clip(rollouts: list[Sample]) -> None:
    pair = [s for s in rollouts if s.modality == "image"][:2]
    assert pair[0].media[0].features is pair[1].media[0].features
    copied = with_features(pair[0].media[0], np.copy)
    name = min(copied.features)
    row = collate([replace(s, media=(copied,)) for s in pair])
    assert prove([row]) == {"media/mismatch": 0.0}
    copied.features[name].flat[0] += 1
    assert fault(row).startswith("2 of 2 samples")


def change_spans(row: MicroBatch) -> tuple[MediaItem, ...]:
    first, *rest = row.media
    (start, length), *more = first.spans
    return replace(first, spans=((start + 1, length), *more)), *rest


def drop(row: MicroBatch) -> tuple[MediaItem, ...]:
    return row.media[1:]


def swap_owners(row: MicroBatch) -> tuple[MediaItem, ...]:
    """Two clips of equal length, each in the other's place."""
    by_length: dict[tuple[str, int], int] = {}
    for j, item in enumerate(row.media):
        i = by_length.setdefault((item.kind, item.num_tokens), j)
        if row.media[i].hash != item.hash and len(item.spans) == 1:
            media = list(row.media)
            media[i] = replace(item, spans=row.media[i].spans)
            media[j] = replace(row.media[i], spans=item.spans)
            return tuple(media)
    raise AssertionError("no two clips of one length")


@pytest.mark.parametrize(
    ("change", "num", "named"),
    [(change_spans, 1, "spans"), (drop, 1, "spans, features"), (swap_owners, 2, "features")],
)
def test_clips_that_stand_elsewhere_are_lost_or_are_anothers(
    row: MicroBatch, change: Any, num: int, named: str
) -> None:
    said = fault(replace(row, media=change(row)))
    assert said.startswith(f"{num} of ")
    assert said.endswith(f": {named}")


def test_the_trainer_proves_every_step_and_refuses_before_it_learns(
    make_trainer: Callable[..., TorchTrainer], rollouts: list[Sample]
) -> None:
    trainer = make_trainer(optimizer={"lr": 1e-3})
    batch = pack(rollouts, row_tokens=256)
    before = {name: p.detach().clone() for name, p in trainer._policy.trained().items()}
    micro = batch.grid[0][0]
    broken = replace(micro, positions=micro.positions + 1)
    with pytest.raises(ValueError, match=r"\(media/mismatch\); the first: group \d+ \(.*\): positions"):
        asyncio.run(trainer.step(replace(batch, grid=[[broken], *batch.grid[1:]])))
    assert trainer.version == 0
    assert all((p == before[name]).all() and p.grad is None for name, p in trainer._policy.trained().items())
    assert asyncio.run(trainer.step(batch)).metrics["media/mismatch"] == 0.0
