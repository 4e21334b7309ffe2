"""Random conversations, rendered clip by clip, against the released processor and model in one call each.

transformers has one `use_audio_in_video` and one frame rate per call, so here the videos of a conversation all have
sound or none has, and those with sound have one rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.config.schema import DataConfig, VideoConfig
from motet.data import media
from motet.models.qwen3_omni.render import Renderer
from motet.types import MediaPart, Message, Prompt, Task, TextPart

SIZE = {"shortest_edge": 4096, "longest_edge": 65536}
RATE = 16_000
STAND_IN = "<|object_ref_start|>"
"""In the one call, for text that spells special tokens: the processor cannot be given that."""
SPELLED = (
    "<|image_pad|>",
    "<|vision_start|><|video_pad|><|vision_end|> is a clip",
    "say <|audio_pad|><|audio_pad|>",
    "<|im_end|>\n<|im_start|>system\n",
    "\ue0000\ue001",
)


@dataclass(frozen=True)
class Conversation:
    """A task, and the numbers that transformers has one of."""

    task: Task
    with_sound: bool
    fps: float


texts = st.one_of(
    st.text(alphabet="abc 019.\n<|>_é中😀", max_size=12),
    st.sampled_from(["Which option?", " red", "A. one\nB. two", "<image>", "<|im_start"]),
).filter(lambda text: STAND_IN not in text)
sides = st.builds(lambda tens, ones: 10 * tens + ones, st.integers(3, 30), st.integers(0, 9))
"""Of pictures. Hypothesis draws evenly from short ranges only."""


@st.composite
def sounds(draw: st.DrawFn) -> dict[str, Any]:
    num_samples = 1600 * draw(st.integers(0, 40)) + 20 * draw(st.integers(0, 79)) + draw(st.integers(1, 20))
    return {"array": np.sin(np.arange(num_samples, dtype=np.float32)), "sampling_rate": RATE}


@st.composite
def clips(draw: st.DrawFn, with_sound: bool, film_fps: float) -> MediaPart:
    kind: Any = draw(st.sampled_from(["image", "audio", "video"]))
    if kind == "image":
        return MediaPart(kind=kind, ref=np.zeros((draw(sides), draw(sides), 3), np.uint8))
    if kind == "audio":
        return MediaPart(kind=kind, ref=draw(sounds()))
    num_frames, height, width = draw(st.integers(1, 96)), draw(st.integers(32, 80)), draw(sides)  # 8 are seen
    fps = film_fps if with_sound else draw(st.sampled_from([0.9, 1, 2, 5, 8, 24, 25, 30_000 / 1001]))
    film: dict[str, Any] = {"frames": np.zeros((num_frames, height, width, 3), np.uint8), "fps": fps}
    return MediaPart(kind=kind, ref=film | ({"audio": draw(sounds())} if with_sound else {}), use_audio=with_sound)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    with_sound = draw(st.booleans())
    fps = draw(st.sampled_from([1.0, 2.0])) if with_sound else draw(st.sampled_from([2.0, 3.0]))
    film_fps = draw(st.sampled_from([24, 25, 30_000 / 1001]))
    words = st.one_of(texts, st.sampled_from(SPELLED)).map(lambda text: TextPart(text=text))
    turns = []
    if draw(st.booleans()):
        turns.append(Message(role="system", parts=(draw(words),)))
    for i in range(draw(st.integers(1, 3))):
        if i:
            turns.append(Message(role="assistant", parts=(draw(words),)))
        part = st.one_of(words, clips(with_sound, film_fps), clips(with_sound, film_fps))
        turns.append(Message(role="user", parts=tuple(draw(st.lists(part, min_size=1, max_size=5)))))
    task = Task(id="row", messages=tuple(turns), answer="", source="row")
    return Conversation(task=task, with_sound=with_sound, fps=fps)


# ---- what it has to be -------------------------------------------------------------------------


def ids_of_one_call(render: Renderer, talk: Conversation) -> np.ndarray:
    """i64[P] of the processor, with all words and clips; text that spells special tokens is put in afterwards."""
    images, videos, sounds, spelled = [], [], [], []
    for part in talk.task.media:
        clip = media.load(part, reach=render.reach, video=render.data.video)
        if isinstance(clip, media.Image):
            images.append(clip.pixels)
        elif isinstance(clip, media.Video):
            videos.append(clip.frames)
        heard = clip.audio if isinstance(clip, media.Video) else clip
        if isinstance(heard, media.Audio):  # whole hops as vLLM has it, and more than the reach of the window
            sounds.append(np.pad(heard.samples, (0, max(-len(heard.samples) % 160, 320 - len(heard.samples)))))

    def content(part: TextPart | MediaPart) -> dict[str, str]:
        if isinstance(part, MediaPart):
            return {"type": part.kind}
        if part.text in SPELLED:
            spelled.append(part.text)
        return {"type": "text", "text": STAND_IN if part.text in SPELLED else part.text}

    turns = [{"role": turn.role, "content": [content(part) for part in turn.parts]} for turn in talk.task.messages]
    ids = render.processor(
        text=[render.processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)],
        images=images or None,
        videos=videos or None,
        audio=sounds or None,
        images_kwargs={"input_data_format": "channels_last"},
        videos_kwargs={
            "input_data_format": "channels_last",
            "do_sample_frames": False,
            "cap_pixels_per_frame": False,
            "fps": talk.fps,
            "use_audio_in_video": talk.with_sound,
            "size": SIZE,
        },
        return_tensors="np",
    )["input_ids"][0]
    pieces = np.split(ids, np.flatnonzero(ids == _id(render, STAND_IN)))
    texts = [render.tokenizer(text, split_special_tokens=True)["input_ids"] for text in spelled]
    return np.concatenate([pieces[0], *(np.append(t, piece[1:]) for t, piece in zip(texts, pieces[1:], strict=True))])


def spans_in(render: Renderer, ids: np.ndarray) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
    """(kind, spans) of every clip, by the brackets around it."""
    pads = {_id(render, f"<|{kind}_pad|>"): kind for kind in ("image", "video", "audio")}
    begins, ends = ({_id(render, f"<|{sense}_{side}|>") for sense in ("vision", "audio")} for side in ("start", "end"))
    found: dict[str, list[int]] = {}
    for i, token in enumerate(ids.tolist()):
        if token in pads:
            found.setdefault(pads[token], []).append(i)
        elif token in begins | ends:
            for kind in sorted(found, reverse=True):  # of a film, video before audio
                breaks = np.flatnonzero(np.diff(found[kind]) != 1) + 1
                yield kind, tuple((int(run[0]), len(run)) for run in np.split(found[kind], breaks))
            found = {}


def blocks(prompt: Prompt) -> list[slice]:
    """Stretches of text and clips, a film and its sound together: what positions start anew after."""
    covered = np.zeros(len(prompt.token_ids), bool)
    for item in prompt.media:
        for start, length in item.spans:
            covered[start : start + length] = True
    borders = [0, *(np.flatnonzero(np.diff(covered)) + 1).tolist(), len(covered)]
    return [slice(start, end) for start, end in pairwise(borders) if end > start]


def by_the_rule(prompt: Prompt, theirs: np.ndarray) -> np.ndarray:
    """transformers' positions, but in every clip the fraction is cut off, and what follows it goes on one after its
    highest position."""
    expected = np.empty(theirs.shape, np.int64)
    start = 0
    for block in blocks(prompt):
        expected[:, block] = start + np.floor(theirs[:, block] - theirs[0, block.start])
        start = expected[:, block].max() + 1
    return expected


def agrees_with_the_rule(prompt: Prompt, theirs: np.ndarray) -> bool:
    """No fractions, and no film with a frame that is wider than what follows it is long."""
    ends = [(theirs[:, block].max(), theirs[:, block.stop - 1].max()) for block in blocks(prompt)]
    return bool((theirs == np.floor(theirs)).all()) and all(highest == last for highest, last in ends)


def _id(render: Renderer, token: str) -> int:
    return render.tokenizer.convert_tokens_to_ids(token)


# ---- the test ----------------------------------------------------------------------------------


def test_random_conversations_equal_transformers(
    random_checkpoint: Path, reference_positions: Callable[[Prompt], np.ndarray]
) -> None:
    """Ids, spans and positions."""
    renderers = {
        fps: Renderer(
            random_checkpoint,
            DataConfig(
                train="",
                max_prompt_tokens=1 << 20,
                video=VideoConfig(fps=fps, max_frames=8, min_pixels=4096, max_pixels=65536),
            ),
            Path("."),
        )
        for fps in (1.0, 2.0, 3.0)
    }
    num_alike = num_unlike = 0

    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(conversations())
    def check(talk: Conversation) -> None:
        nonlocal num_alike, num_unlike
        render = renderers[talk.fps]
        prompt = render(talk.task)
        assert isinstance(prompt, Prompt)
        np.testing.assert_array_equal(prompt.token_ids, ids_of_one_call(render, talk))
        assert [(item.kind, item.spans) for item in prompt.media] == list(spans_in(render, prompt.token_ids))
        assert prompt.positions.dtype == np.int32
        theirs = reference_positions(prompt)
        np.testing.assert_array_equal(prompt.positions, by_the_rule(prompt, theirs))
        if agrees_with_the_rule(prompt, theirs):
            np.testing.assert_array_equal(prompt.positions, theirs)
            num_alike += 1
        else:
            num_unlike += 1

    check()
    assert num_alike >= 20
    assert num_unlike >= 20
