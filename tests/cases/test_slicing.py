"""Slicing: samples with any number of images, shuffled, cut into micro-batches and packed, keep what is theirs.

Most pictures are of one size and hold noise: a cut in the wrong place gives a sample the pixels of another, and every
shape still fits. What is right is what transformers computes for each sample alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from motet.batching.pack import collate, laid_side_by_side, pack
from motet.batching.samples import samples
from motet.models.attention import Packed
from motet.types import (
    Advantages,
    Batch,
    Completion,
    Group,
    MediaItem,
    MediaPart,
    Message,
    Prompt,
    Sample,
    Score,
    Task,
    TextPart,
)

if TYPE_CHECKING:
    from motet.features.store import FeatureStore
    from motet.models.qwen3_omni.render import Renderer
    from motet.models.qwen3_omni.thinker import Thinker
    from motet.trainer.torch_ import TorchTrainer

HIDDEN = 128
ROUNDING = 1e-4
"""Of log-probabilities. Another picture moves them by far more than a hundred times this."""
QUESTION = TextPart(text="Which option says red?")
ANSWERS = [[40, 41, 42], [50, 43], [44, 45, 46, 47], [60], [61, 62, 63], [64, 65], [66]]


def picture(seed: int, height: int = 64, width: int = 64) -> MediaPart:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return MediaPart(kind="image", ref=pixels)


def asking(*parts: MediaPart | TextPart) -> Task:
    return Task(id="row", messages=(Message(role="user", parts=parts),), answer="A", source="rows.jsonl:1")


TASKS = [
    asking(picture(1), QUESTION),
    asking(picture(2), picture(3), QUESTION),
    asking(picture(4), TextPart(text="or"), picture(5, 64, 128), picture(6), QUESTION),
    asking(QUESTION),
    asking(TextPart(text="Look: "), picture(7), picture(8), picture(9)),
    asking(picture(10), QUESTION, picture(11)),
    asking(picture(12)),
]
"""1, 2, 3, 0, 3, 2 and 1 images."""


def answered(renderer: Renderer, task: Task, answer: Sequence[int], group_id: int = 0) -> Sample:
    prompt = renderer(task)
    assert isinstance(prompt, Prompt)
    num = len(answer)
    completion = Completion(
        token_ids=np.array(answer, np.int32),
        logprobs=np.full(num, -1, np.float32),
        mask=np.ones(num, bool),
        stop="length",
        versions=(0, 0),
        text="",
    )
    group = Group(id=group_id, task=task, prompt=prompt, completions=[completion], scores=[Score(value=1.0)])
    (sample,) = samples(group, Advantages(values=np.ones(1, np.float32)))
    return sample


@pytest.fixture(scope="module")
def learned(renderer: Renderer) -> list[Sample]:
    """A sample of each of `TASKS`; its group is its number."""
    return [answered(renderer, task, answer, i) for i, (task, answer) in enumerate(zip(TASKS, ANSWERS, strict=True))]


@pytest.fixture(scope="module")
def released(random_checkpoint: Path, renderer: Renderer) -> Callable[[Sample], np.ndarray]:
    """Log-probabilities of a sample's answer, as the released forward gives them: one sample, its own positions."""
    from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

    module: Any = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(random_checkpoint).eval()

    @torch.no_grad()
    def score(sample: Sample) -> np.ndarray:
        ids = torch.as_tensor(sample.token_ids, dtype=torch.long)[None]
        inputs = {
            name: torch.from_numpy(np.concatenate([item.features[name] for item in sample.media]))
            for name in ("pixel_values", "image_grid_thw")
            if sample.media
        }
        logits = module(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).logits[0]
        logits[:, renderer.banned_ids] = -torch.inf
        logprobs = logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
        return logprobs[sample.loss_mask[1:]].numpy()

    return score


@pytest.fixture(scope="module")
def right(learned: list[Sample], released: Callable[[Sample], np.ndarray]) -> list[np.ndarray]:
    """For each sample, what transformers computes of it alone."""
    return [released(sample) for sample in learned]


@pytest.fixture
def score(
    thinker: Thinker, features: FeatureStore, make_trainer: Callable[..., TorchTrainer]
) -> Callable[[Batch], dict[int, np.ndarray]]:
    """The trainer's log-probabilities of the answers of a batch, by group."""
    trainer = make_trainer(thinker, store=features)

    def scored(batch: Batch) -> dict[int, np.ndarray]:
        found = {}
        for row, logprobs in zip(batch.grid, asyncio.run(trainer.logprobs(batch)), strict=True):
            for micro, values in zip(row, logprobs, strict=True):
                for i, group in enumerate(micro.group_ids):
                    own = slice(*micro.cu_seqlens[i : i + 2])
                    found[group] = values[own][micro.loss_mask[own]]
        return found

    return scored


# ---- pixels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_tokens", [1, 64, 120, 4096])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_samples_with_several_images_keep_their_own_pixels(
    learned: list[Sample],
    right: list[np.ndarray],
    score: Callable[[Batch], dict[int, np.ndarray]],
    row_tokens: int,
    seed: int,
) -> None:
    """trl PRs 4113 and 6570, unsloth issues 5183 and 3605: pixels were cut by the number of samples, as if each had
    one image, so samples of a shuffled or split batch scored the pictures of others."""
    assert [len(sample.media) for sample in learned] == [1, 2, 3, 0, 3, 2, 1]
    shuffled = [learned[i] for i in np.random.default_rng(seed).permutation(len(learned))]
    batch = pack(shuffled, row_tokens=row_tokens)
    assert len(batch.grid) == {1: 7, 64: 4, 120: 2, 4096: 1}[row_tokens]
    found = score(batch)
    assert sorted(found) == list(range(len(learned)))
    for group, expected in enumerate(right):
        np.testing.assert_allclose(found[group], expected, atol=ROUNDING)


def test_the_pixels_of_a_row_lie_at_its_placeholders(renderer: Renderer, learned: list[Sample]) -> None:
    """Megatron-Bridge PR 4441: pixels were cut by image and samples by number. Every span of a packed row covers the
    pads of its own clip, in the sample that brought it."""
    order = [4, 3, 1, 6, 2]
    micro = collate([learned[i] for i in order])
    pad = renderer.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert [id(item.raw) for item in micro.media] == [id(part.ref) for i in order for part in TASKS[i].media]
    covered = np.concatenate([np.arange(s, s + n) for item in micro.media for s, n in item.spans])
    assert covered.tolist() == np.flatnonzero(micro.token_ids == pad).tolist()
    owner = np.searchsorted(micro.cu_seqlens, [item.spans[0][0] for item in micro.media], side="right") - 1
    assert owner.tolist() == [0, 0, 0, 2, 2, 3, 4, 4, 4]
    assert [item.num_tokens for item in micro.media] == [4, 4, 4, 4, 4, 4, 4, 8, 4]


def test_ranks_get_whole_samples_with_their_pixels(
    learned: list[Sample], right: list[np.ndarray], score: Callable[[Batch], dict[int, np.ndarray]]
) -> None:
    """Megatron-Bridge PR 4441, unsloth-zoo PR 1233: samples were cut by number over ranks, pixels by image."""
    batch = pack(learned, row_tokens=64, dp=2)
    assert [len(row) for row in batch.grid] == [2, 2]
    found = {}
    for rank in range(2):
        found |= score(replace(batch, grid=[[row[rank]] for row in batch.grid]))
    for group, expected in enumerate(right):
        np.testing.assert_allclose(found[group], expected, atol=ROUNDING)


def test_images_that_change_places_change_what_is_scored(
    renderer: Renderer,
    released: Callable[[Sample], np.ndarray],
    right: list[np.ndarray],
    learned: list[Sample],
    score: Callable[[Batch], dict[int, np.ndarray]],
) -> None:
    """unsloth PR 5197: what tells that the cases above could fail. Two images of one sample the other way round, and
    two samples that have each other's image, are other inputs, to transformers and packed alike."""
    (a, b, _), (one, *_), (other, *_) = (TASKS[i].messages[0].parts for i in (1, 0, 6))
    swapped = {
        1: answered(renderer, asking(b, a, QUESTION), ANSWERS[1], 1),
        0: answered(renderer, asking(other, QUESTION), ANSWERS[0], 0),
        6: answered(renderer, asking(one), ANSWERS[6], 6),
    }
    found = score(pack([swapped.get(i, sample) for i, sample in enumerate(learned)], row_tokens=4096))
    for group, expected in enumerate(right):
        if group in swapped:
            assert swapped[group].token_ids.tolist() == learned[group].token_ids.tolist()
            assert np.abs(found[group] - expected).max() > 100 * ROUNDING
            expected = released(swapped[group])
        np.testing.assert_allclose(found[group], expected, atol=ROUNDING)


# ---- positions ---------------------------------------------------------------------------------


def test_three_axes_are_packed_with_the_ids_and_restart_with_each_sample(renderer: Renderer) -> None:
    """ROLL PR 452, Automodel PR 2172, LLaMA-Factory PR 10283: ids were packed and positions were not, or on one axis
    alone, or counted on from sample to sample. Positions by hand: an image of 2 x 2 tokens, and one of 2 x 4."""
    first = answered(renderer, asking(picture(1)), [40, 41])
    second = answered(renderer, asking(picture(2, 64, 128)), [42])
    text = answered(renderer, asking(TextPart(text="red")), [43, 44])
    # <|im_start|> user \n <|vision_start|>, the image, <|vision_end|> <|im_end|> \n <|im_start|> assistant \n, answer
    small = [
        [0, 1, 2, 3, 4, 4, 4, 4, *range(6, 14)],
        [0, 1, 2, 3, 4, 4, 5, 5, *range(6, 14)],
        [0, 1, 2, 3, 4, 5, 4, 5, *range(6, 14)],
    ]
    wide = [
        [0, 1, 2, 3, *[4] * 8, *range(8, 15)],
        [0, 1, 2, 3, *[4] * 4, *[5] * 4, *range(8, 15)],
        [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, *range(8, 15)],
    ]
    plain = [list(range(len(text.token_ids)))] * 3
    for row, expected in (((first, second, text), (small, wide, plain)), ((text, second, first), (plain, wide, small))):
        micro = collate(row)
        assert micro.positions.shape == (3, len(micro.token_ids))
        parts = np.split(micro.positions, micro.cu_seqlens[1:-1], axis=1)
        assert [part.tolist() for part in parts] == list(expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_axis_in_place_of_three_is_another_input(
    learned: list[Sample], right: list[np.ndarray], thinker: Thinker, features: FeatureStore, axis: int
) -> None:
    """Automodel PR 2172: positions of one axis were packed for a model of three, and the loss looked normal. Each
    axis matters to a sample with images, and none to one of text."""
    micro = collate([learned[4], learned[3]])
    flat = micro.positions.copy()
    flat[axis] = np.concatenate([np.arange(n) for n in np.diff(micro.cu_seqlens)])
    with torch.no_grad():
        right_states, states = (
            thinker.hidden(micro.token_ids, p, micro.media, features(micro.media), Packed(micro.cu_seqlens.tolist()))
            for p in (micro.positions, flat)
        )
    moved = (states - right_states).abs().amax(dim=1)
    end = int(micro.cu_seqlens[1])
    assert float(moved[:end].max()) > 1e-2
    assert float(moved[end:].max()) < 1e-5


# ---- DeepStack ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A packed row with the features of its clips, which may be other than the towers'."""

    members: tuple[Sample, ...]
    features: tuple[Tensor, ...]

    @torch.no_grad()
    def states(self, thinker: Thinker) -> list[Tensor]:
        """Final hidden states [L, H] of each sample."""
        bounds, media = laid_side_by_side([(len(s.token_ids), s.media) for s in self.members])
        states = thinker.hidden(
            np.concatenate([s.token_ids for s in self.members]),
            np.concatenate([s.positions for s in self.members], axis=1),
            media,
            self.features,
            Packed(bounds.tolist()),
        )
        return list(states.split(np.diff(bounds).tolist()))


@pytest.fixture
def row(features: FeatureStore) -> Callable[..., Row]:
    def make(*members: Sample) -> Row:
        return Row(members, tuple(features([item for s in members for item in s.media])))

    return make


def zeroed(row: Row, *clips: int) -> Row:
    """Without the DeepStack features of some clips, by their number in the row; their embeddings stay."""

    def blank(values: Tensor) -> Tensor:
        return torch.cat([values[:, :HIDDEN], torch.zeros_like(values[:, HIDDEN:])], dim=1)

    return replace(row, features=tuple(blank(f) if i in clips else f for i, f in enumerate(row.features)))


def distances(a: Sequence[Tensor], b: Sequence[Tensor]) -> list[float]:
    return [float((x - y).abs().max()) for x, y in zip(a, b, strict=True)]


def test_deepstack_of_two_images_in_a_row_reaches_each_its_own(
    learned: list[Sample], thinker: Thinker, row: Callable[..., Row]
) -> None:
    """mlx-vlm PRs 1635 and 2296: DeepStack features were dropped, or those of one row were added to all. Zeroed for
    one image, they move what stands at it and after it in its own sample, and nothing else."""
    both = row(learned[0], learned[6])
    whole = both.states(thinker)
    for clip in (0, 1):
        (first, _), *_ = both.members[clip].media[0].spans
        states = zeroed(both, clip).states(thinker)
        moved = distances(whole, states)
        assert moved[clip] > 1e-2
        assert moved[1 - clip] < 1e-5
        assert distances([whole[clip][:first]], [states[clip][:first]])[0] < 1e-5
    alone = [row(sample).states(thinker)[0] for sample in both.members]
    assert max(distances(whole, alone)) < 1e-5


def test_deepstack_of_two_images_of_one_sample_does_not_change_places(
    learned: list[Sample], thinker: Thinker, row: Callable[..., Row]
) -> None:
    """Megatron-Bridge PR 3869: DeepStack and embeddings of a row's images were swapped. The features of the second,
    zeroed, leave all that stands before it as it was."""
    pair = row(learned[1])
    (first, length), *_ = learned[1].media[1].spans
    (whole,), (without,) = pair.states(thinker), zeroed(pair, 1).states(thinker)
    assert distances([whole[:first]], [without[:first]])[0] < 1e-5
    assert ((whole - without)[first : first + length].abs().amax(dim=1) > 1e-3).all()


def test_deepstack_of_a_row_of_text_is_none(learned: list[Sample], thinker: Thinker, row: Callable[..., Row]) -> None:
    """mbridge PR 129, EasyR1 PR 530: a micro-batch of text alone broke, or hung, where features were looked for."""
    text = learned[3]
    assert text.media == ()
    alone, pair = row(text).states(thinker), row(text, text).states(thinker)
    assert max(distances([*alone, *alone], pair)) < 1e-5
    assert float(alone[0].abs().mean()) > 0.1


@pytest.mark.parametrize("image_first", [True, False])
def test_deepstack_in_one_sample_leaves_the_other_untouched(
    learned: list[Sample],
    right: list[np.ndarray],
    thinker: Thinker,
    row: Callable[..., Row],
    renderer: Renderer,
    image_first: bool,
) -> None:
    """mbridge PR 129, cosmos-rl PR 635: the mask of visual tokens was not packed with the row. Text beside an image is
    what it is alone, with DeepStack and without; the image's sample is another without."""
    seen, text = learned[0], learned[3]
    mixed = row(seen, text) if image_first else row(text, seen)
    at, beside = (0, 1) if image_first else (1, 0)
    (alone,) = row(text).states(thinker)
    whole, without = mixed.states(thinker), zeroed(mixed, 0).states(thinker)
    assert max(distances([whole[beside], without[beside]], [alone, alone])) < 1e-5
    assert distances(whole, without)[at] > 1e-2
    for states, sample, expected in ((whole[at], seen, right[0]), (whole[beside], text, right[3])):
        with torch.no_grad():
            logits = thinker.head(states)
        logits[:, renderer.banned_ids] = -torch.inf
        found = logits.log_softmax(-1)[:-1].gather(1, torch.as_tensor(sample.token_ids[1:], dtype=torch.long)[:, None])
        np.testing.assert_allclose(found[:, 0].numpy()[sample.loss_mask[1:]], expected, atol=ROUNDING)


def test_the_features_of_a_clip_are_its_own_whatever_lies_beside_it(
    learned: list[Sample], thinker: Thinker, features: FeatureStore
) -> None:
    """trl PR 6570: the clips of all samples, asked for at once; each gets what the tower makes of it alone."""
    clips: list[MediaItem] = [item for sample in learned for item in sample.media]
    assert len({item.hash for item in clips}) == 12
    with torch.no_grad():
        for item, values in zip(clips, features(clips), strict=True):
            assert torch.equal(values, thinker.encode(item))
