from __future__ import annotations

import numpy as np
import pytest

from motet.batching.samples import extend_positions, samples
from motet.types import Advantages, Completion, Group, MediaItem, MediaPart, Message, Prompt, Score, Task

CLIP = MediaItem(kind="image", content="c", hash="h", spans=((1, 1),), features={}, raw="a.png")
POSITIONS = np.array([[0, 1, 3], [0, 1, 3], [0, 2, 3]], np.int32)
TASK = Task(
    id="t",
    messages=(Message(role="user", parts=(MediaPart(kind="image", ref="a.png"),)),),
    answer="B",
    source="train.jsonl:18",
)


def completion(
    token_ids: list[int], logprobs: list[float], mask: list[bool], versions: tuple[int, int] = (4, 5)
) -> Completion:
    return Completion(
        token_ids=np.array(token_ids, np.int32),
        logprobs=np.array(logprobs, np.float32),
        mask=np.array(mask),
        stop="eos",
        versions=versions,
        text="",
    )


def group(*completions: Completion) -> Group:
    prompt = Prompt(token_ids=np.array([5, 6, 7], np.int32), positions=POSITIONS, media=(CLIP,), digest="d")
    scores = [Score(value=0.0)] * len(completions)
    return Group(id=7, task=TASK, prompt=prompt, completions=completions, scores=scores)


def test_one_sample_per_completion() -> None:
    first, second = samples(
        group(
            completion([33, 2], [-0.5, -0.25], [True, True]),
            completion([40, 41, 2], [-1, -2, -3], [True, False, True], versions=(3, 5)),  # a tool wrote 41
        ),
        Advantages(values=np.array([0.75, -0.5], np.float32)),
    )
    assert first.token_ids.tolist() == [5, 6, 7, 33, 2]
    assert first.loss_mask.tolist() == [False, False, False, True, True]
    assert first.logprobs.tolist() == [0, 0, 0, -0.5, -0.25]
    assert first.advantages.tolist() == [0, 0, 0, 0.75, 0.75]
    assert first.positions.tolist() == [[0, 1, 3, 4, 5], [0, 1, 3, 4, 5], [0, 2, 3, 4, 5]]
    assert (first.group_id, first.version, first.digest, first.modality) == (7, 4, "d", "image")
    assert (first.num_prompt_tokens, second.num_prompt_tokens) == (3, 3)
    assert first.media == (CLIP,)

    assert second.token_ids.tolist() == [5, 6, 7, 40, 41, 2]
    assert second.loss_mask.tolist() == [False, False, False, True, False, True]
    assert second.advantages.tolist() == [0, 0, 0, -0.5, 0, -0.5]
    assert second.logprobs.tolist() == [0, 0, 0, -1, -2, -3]
    assert second.version == 3  # the oldest


def test_a_completion_whose_advantage_is_zero_is_kept() -> None:
    right, wrong = completion([33], [-0.5], [True]), completion([34], [-0.5], [True])
    kept = samples(group(right, wrong), Advantages(values=np.zeros(2, np.float32)))
    assert [int(s.loss_mask.sum()) for s in kept] == [1, 1]


def test_arrays_keep_their_types() -> None:
    (sample,) = samples(group(completion([33], [-0.5], [True])), Advantages(values=np.array([1], np.float32)))
    arrays = (sample.token_ids, sample.positions, sample.loss_mask, sample.logprobs, sample.advantages)
    assert [a.dtype for a in arrays] == [np.int32, np.int32, np.bool_, np.float32, np.float32]


def test_there_are_as_many_advantages_as_completions() -> None:
    with pytest.raises(ValueError, match="zip"):
        samples(group(completion([33], [-0.5], [True])), Advantages(values=np.ones(2, np.float32)))


def test_text_counts_up_after_the_highest_position_of_any_token_and_axis() -> None:
    wide = np.array([[0, 1, 1], [0, 1, 1], [0, 8, 1]], np.int32)
    extended = extend_positions(wide, 3)
    assert extended.dtype == np.int32
    assert extended.tolist() == [[0, 1, 1, 9, 10, 11], [0, 1, 1, 9, 10, 11], [0, 8, 1, 9, 10, 11]]
    assert extend_positions(wide, 0).tolist() == wide.tolist()
