"""Positions: golden values worked out by hand, and equality with transformers over random mixes of media."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet import compat
from motet.models.qwen3_omni.positions import positions
from motet.types import IntArray, MediaItem, MediaKind

MERGE = 2


def clip(
    kind: MediaKind, *spans: tuple[int, int], grid: tuple[int, int, int] | None = None, seconds: float = 1.0
) -> MediaItem:
    """`grid` counts patches before the merge; `seconds` are those of one pair of frames."""
    features = {}
    if grid is not None:
        features[f"{kind}_grid_thw"] = np.array([grid])
    if kind == "video":
        features["video_second_per_grid"] = np.array([seconds])
    return MediaItem(kind=kind, content="c", hash="h", spans=spans, features=features, raw=f"a.{kind}")


def build(num_tokens: int, *media: MediaItem, per_second: float = 13) -> IntArray:
    result = positions(num_tokens, media, position_id_per_seconds=per_second, spatial_merge_size=MERGE)
    assert result.dtype == np.int32
    return result


def test_text_counts_up_on_all_axes() -> None:
    assert build(4).tolist() == [[0, 1, 2, 3]] * 3


def test_image() -> None:
    assert build(9, clip("image", (3, 4), grid=(1, 4, 4))).tolist() == [
        [0, 1, 2, 3, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 3, 4, 4, 5, 6],
        [0, 1, 2, 3, 4, 3, 4, 5, 6],
    ]


def test_two_images_in_any_order() -> None:
    first, second = clip("image", (1, 1), grid=(1, 2, 2)), clip("image", (4, 2), grid=(1, 2, 4))
    expected = [
        [0, 1, 2, 3, 4, 4, 6, 7],
        [0, 1, 2, 3, 4, 4, 6, 7],
        [0, 1, 2, 3, 4, 5, 6, 7],
    ]
    assert build(8, first, second).tolist() == expected
    assert build(8, second, first).tolist() == expected


def test_clip_at_either_end_of_the_prompt() -> None:
    assert build(2, clip("image", (0, 2), grid=(1, 2, 4))).tolist() == [[0, 0], [0, 0], [0, 1]]


def test_video_moves_on_by_its_seconds() -> None:
    assert build(6, clip("video", (1, 4), grid=(2, 2, 4), seconds=1.0)).tolist() == [
        [0, 1, 1, 14, 14, 15],
        [0, 1, 1, 1, 1, 15],
        [0, 1, 2, 1, 2, 15],
    ]


def test_audio_counts_up_on_all_axes() -> None:
    assert build(6, clip("audio", (1, 3))).tolist() == [[0, 1, 2, 3, 4, 5]] * 3


def test_audio_in_video() -> None:
    video = clip("video", (2, 2), (6, 2), grid=(2, 2, 4), seconds=1.0)
    sound = clip("audio", (4, 2), (8, 2))
    assert build(13, video, sound, per_second=2).tolist() == [
        [0, 1, 2, 2, 2, 3, 4, 4, 4, 5, 6, 7, 8],
        [0, 1, 2, 2, 2, 3, 2, 2, 4, 5, 6, 7, 8],
        [0, 1, 2, 3, 2, 3, 2, 3, 4, 5, 6, 7, 8],
    ]


def test_text_goes_on_after_the_widest_frame_even_where_the_last_token_is_sound() -> None:
    prompt = build(12, clip("video", (2, 6), grid=(1, 2, 12)), clip("audio", (8, 2)))
    assert prompt[0].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 2, 3, 8, 9]
    assert prompt[2].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 2, 3, 8, 9]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (2 / 3, {1: 8, 2: 17, 3: 26, 27: 234}),  # 8.67 a step; in float64 alone step 27 would be 233
        (0.7, {1: 9, 10: 90, 20: 181}),  # float32 0.7 lies below 0.7, so step 10 stays below 91
        (0.5, {1: 6, 2: 13, 3: 19}),
    ],
)
def test_fractional_times_are_cut_off(seconds: float, expected: dict[int, int]) -> None:
    times = build(28, clip("video", (0, 28), grid=(28, 2, 2), seconds=seconds))[0]
    assert {step: int(times[step]) for step in expected} == expected


def test_spans_that_do_not_hold_the_grid_are_our_mistake() -> None:
    with pytest.raises(AssertionError, match=r"a\.image"):
        build(5, clip("image", (1, 3), grid=(1, 4, 4)))
    with pytest.raises(AssertionError, match="touch"):
        build(5, clip("image", (1, 1), grid=(1, 2, 2)), clip("image", (2, 1), grid=(1, 2, 2)))


# ---- against transformers ----------------------------------------------------------------------

TEXT, IMAGE, VIDEO, AUDIO, VISION_START, VISION_END, AUDIO_START, AUDIO_END = range(1, 9)


@dataclass(frozen=True)
class Piece:
    kind: str
    grid: tuple[int, int, int] = (1, 2, 2)
    seconds: float = 1.0
    num_frames: int = 1  # of the spectrogram


@st.composite
def prompts(draw: st.DrawFn) -> list[Piece]:
    """Any mix that one call of `get_rope_index` takes: its videos all have sound, or none has. At most one has
    fractional times, since transformers adds up the fractions of several. No sound is shorter in tokens than its frame
    is wide or high: there text goes on elsewhere, see below."""
    video = draw(st.sampled_from(["video", "audio_in_video"]))
    side, fractional = st.integers(1, 8).map(lambda n: n * MERGE), draw(st.integers(0, 7))
    pieces = []
    for i, kind in enumerate(
        draw(st.lists(st.sampled_from(["text", "image", "audio", video]), min_size=1, max_size=7))
    ):
        num_times = draw(st.integers(1, 4)) if kind == video else 1
        seconds = 0.5 if i == fractional else draw(st.sampled_from([1.0, 2.0]))
        grid = (num_times, draw(side), draw(side))
        shortest = max(grid[1:]) // MERGE * 8 if kind == "audio_in_video" else 1
        pieces.append(Piece(kind, grid, seconds, draw(st.integers(shortest, 250))))
    return pieces


def audio_tokens(num_frames: int) -> int:
    """Thirteen tokens for every full hundred frames; the rest is halved three times, rounded up."""
    rest = num_frames % 100
    return num_frames // 100 * 13 + -(-rest // 8)


def assemble(pieces: list[Piece]) -> tuple[list[int], list[MediaItem]]:
    """Token ids as the processor expands them, and the clips."""
    ids: list[int] = []
    media: list[MediaItem] = []
    for piece in pieces:
        num_times, height, width = piece.grid
        num_visual, num_audio = num_times * height * width // MERGE**2, audio_tokens(piece.num_frames)
        start = len(ids) + 1
        if piece.kind == "text":
            ids += [TEXT] * 3
        elif piece.kind == "image":
            ids += [VISION_START, *[IMAGE] * num_visual, VISION_END]
            media.append(clip("image", (start, num_visual), grid=piece.grid))
        elif piece.kind == "audio":
            ids += [AUDIO_START, *[AUDIO] * num_audio, AUDIO_END]
            media.append(clip("audio", (start, num_audio)))
        elif piece.kind == "video":
            ids += [VISION_START, *[VIDEO] * num_visual, VISION_END]
            media.append(clip("video", (start, num_visual), grid=piece.grid, seconds=piece.seconds))
        else:
            per_time = num_visual // num_times
            times = [(i // per_time * piece.seconds * 13, VIDEO) for i in range(num_visual)]
            times += [(i, AUDIO) for i in range(num_audio)]  # VIDEO < AUDIO: at equal times the frame comes first
            body = [token for _, token in sorted(times)]
            ids += [VISION_START, AUDIO_START, *body, AUDIO_END, VISION_END]
            spans = {kind: runs(body, kind, start + 1) for kind in (VIDEO, AUDIO)}
            media.append(clip("video", *spans[VIDEO], grid=piece.grid, seconds=piece.seconds))
            media.append(clip("audio", *spans[AUDIO]))
    return ids, media


def runs(body: list[int], token: int, start: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for i, other in enumerate(body, start):
        if other == token and spans and sum(spans[-1]) == i:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        elif other == token:
            spans.append((i, 1))
    return spans


def reference(ids: list[int], pieces: list[Piece]) -> tuple[np.ndarray, float]:
    """Positions of transformers, and the first position after the prompt."""
    compat.torchvision()
    import torch
    from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

    Thinker: Any = Qwen3OmniMoeThinkerForConditionalGeneration  # its two functions take any object with the config
    config = SimpleNamespace(
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        audio_token_id=AUDIO,
        vision_start_token_id=VISION_START,
        audio_start_token_id=AUDIO_START,
        position_id_per_seconds=13,
        audio_config=SimpleNamespace(n_window=50),
    )
    model = SimpleNamespace(config=config, spatial_merge_size=MERGE)
    model.get_llm_pos_ids_for_vision = partial(Thinker.get_llm_pos_ids_for_vision, model)
    images = [p.grid for p in pieces if p.kind == "image"]
    videos = [p for p in pieces if p.kind in ("video", "audio_in_video")]
    result, delta = Thinker.get_rope_index(
        model,
        torch.tensor([ids]),
        torch.tensor(images) if images else None,
        torch.tensor([p.grid for p in videos]) if videos else None,
        torch.ones(1, len(ids), dtype=torch.long),
        any(p.kind == "audio_in_video" for p in pieces),
        torch.tensor([p.num_frames for p in pieces if p.kind in ("audio", "audio_in_video")]),
        torch.tensor([p.seconds for p in videos]),
    )
    return result[:, 0].numpy(), float(delta) + len(ids)


@settings(max_examples=80, deadline=None)
@given(prompts())
def test_equal_to_transformers(pieces: list[Piece]) -> None:
    ids, media = assemble(pieces)
    expected, after = reference(ids, pieces)
    result = build(len(ids), *media)
    np.testing.assert_array_equal(result, np.floor(expected))
    assert result.max() + 1 == np.floor(after)


@pytest.mark.parametrize(("num_sound_tokens", "deviates"), [(4, True), (5, False)])
def test_text_after_a_film_that_is_wider_than_its_sound_is_long(num_sound_tokens: int, deviates: bool) -> None:
    """A frame of five tokens a row: transformers goes on after the sound, below the edge of the frame."""
    pieces = [Piece("audio_in_video", (1, 2, 10), num_frames=8 * num_sound_tokens), Piece("text")]
    ids, media = assemble(pieces)
    expected, _ = reference(ids, pieces)
    result = build(len(ids), *media)
    start, num_text = 2, 5  # two brackets open the film; two close it, and three are text
    np.testing.assert_array_equal(result[:, :-num_text], expected[:, :-num_text])
    assert result[:, -num_text:].tolist() == [[start + 5 + i for i in range(num_text)]] * 3
    np.testing.assert_array_equal(result[:, -num_text:] - expected[:, -num_text:], float(deviates))
