"""Sound: how many tokens a clip has, what each of them hears, and that neither depends on the company."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from motet.batching.pack import laid_side_by_side
from motet.features.store import FeatureStore
from motet.models.qwen3_omni.render import Renderer
from motet.models.qwen3_omni.thinker import Thinker
from motet.types import MediaItem, MediaPart, Message, Prompt, Sampling, Task, TextPart

Render = Callable[..., Prompt]
Write = Callable[..., Path]
WINDOW_TOKENS = 8 * 13
"""The audio tower attends within eight seconds."""


def noise(seconds: float) -> NDArray[np.float32]:
    """Multiples of 1 / 32768, which a file of 16 bits holds exactly."""
    values = np.random.default_rng(0).integers(-16_384, 16_384, round(seconds * 16_000))
    return (values / 32768).astype(np.float32)


def sound(path: Path) -> MediaPart:
    return MediaPart(kind="audio", ref=path.name)


@pytest.fixture
def render(make_renderer: Callable[..., Renderer], tmp_path: Path) -> Render:
    """Parts -> the prompt of one user message; paths start from `tmp_path`."""
    renderer = make_renderer(tmp_path)

    def rendered(*parts: MediaPart | TextPart) -> Prompt:
        message = Message(role="user", parts=(*parts, TextPart(text="Which option?")))
        prompt = renderer(Task(id="row", messages=(message,), answer="", source="rows.jsonl:1"))
        assert isinstance(prompt, Prompt)
        return prompt

    return rendered


@pytest.fixture
def new_store(thinker: Thinker) -> Callable[[], FeatureStore]:
    return lambda: FeatureStore(thinker.encode, fingerprint=thinker.towers_fingerprint())


def mel(item: MediaItem) -> NDArray[np.float32]:
    """f32[128, frames] that the tower reads."""
    return item.features["input_features"][0][:, item.features["feature_attention_mask"][0].astype(bool)]


def encode(thinker: Thinker, item: MediaItem) -> Tensor:
    with torch.no_grad():
        return thinker.encode(item)


# ---- counts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "num_samples", "num_frames", "num_tokens"),
    [
        # A frame every 160 samples, the last one filled up, and at least two, or the spectrogram cannot be taken;
        # 13 tokens every 100 frames, and of the rest (n - 1) // 2 + 1, three times over.
        (0.01, 160, 2, 1),
        (1.000, 16_000, 100, 13),
        (29.995, 479_920, 3000, 390),
        (30.000, 480_000, 3000, 390),
        (30.005, 480_080, 3001, 391),
        (60, 960_000, 6000, 780),
    ],
)
def test_placeholders_processor_and_tower_count_alike(
    render: Render,
    processor: Any,
    thinker: Thinker,
    write_sound: Write,
    tmp_path: Path,
    seconds: float,
    num_samples: int,
    num_frames: int,
    num_tokens: int,
) -> None:
    """Another formula in the trainer than in the processor (NVIDIA-NeMo/Megatron-Bridge issue 5256); a clip silently
    cut at 30 seconds (sgl-project/sglang PR 12674, Blaizzy/mlx-vlm issue 1768); no token, or no feature, at the short
    end (vllm-project/vllm-omni PR 5321)."""
    samples = noise(seconds)
    assert len(samples) == num_samples
    prompt = render(sound(write_sound(tmp_path / "clip.wav", samples)))
    (item,) = prompt.media
    pad_id = thinker.module.config.audio_token_id
    assert int((prompt.token_ids == pad_id).sum()) == item.num_tokens == num_tokens
    assert mel(item).shape == (128, num_frames)
    assert len(encode(thinker, item)) == num_tokens

    filled_up = np.pad(samples, (0, 160 * num_frames - num_samples))
    released = processor(text="<|audio_pad|>", audio=[filled_up], return_tensors="np")
    assert released["input_ids"].shape == (1, num_tokens)
    assert np.array_equal(released["input_features"][0], mel(item))


def test_what_sounds_after_thirty_seconds_is_heard(
    render: Render, thinker: Thinker, write_sound: Write, tmp_path: Path
) -> None:
    """The Whisper feature extractor cuts at 30 seconds unless it is told not to (sgl-project/sglang-omni issue
    1173)."""
    samples = noise(32)
    quiet = np.where(np.arange(len(samples)) < 31 * 16_000, samples, 0.01 * samples)
    loud, faded = (
        encode(thinker, render(sound(write_sound(tmp_path / f"{i}.wav", s))).media[0])
        for i, s in enumerate((samples, quiet))
    )
    assert len(loud) == len(faded) == 416
    assert float((loud[-13:] - faded[-13:]).abs().max()) > 0.02


def test_two_clips_in_one_row_keep_their_own_counts(
    render: Render, thinker: Thinker, make_engine: Callable[..., Any], write_sound: Write, tmp_path: Path
) -> None:
    """Placeholders counted per row and not per clip (NVIDIA-NeMo/Megatron-Bridge issue 5256); lengths that do not add
    up with several clips (vllm-project/vllm-omni issue 640)."""
    short, long = (write_sound(tmp_path / f"{s}.wav", noise(s)) for s in (1, 2.5))
    alone = {path: render(sound(path)).media[0] for path in (short, long)}
    for order, counts in (((short, long), (13, 33)), ((long, short), (33, 13))):  # 50 frames are 7 tokens
        prompt = render(*(sound(path) for path in order))
        start = 4  # after <|im_start|>, user, the new line and <|audio_start|>
        between = 2  # <|audio_end|><|audio_start|>
        spans = [((start, counts[0]),), ((start + counts[0] + between, counts[1]),)]
        assert [item.spans for item in prompt.media] == spans
        for item, path in zip(prompt.media, order, strict=True):
            assert item.hash == alone[path].hash
            assert torch.equal(encode(thinker, item), encode(thinker, alone[path]))
        completion = asyncio.run(_one(make_engine().generate(prompt, Sampling(max_tokens=2), key="0/0")))
        assert np.isfinite(completion.logprobs).all()


async def _one(asked: Any) -> Any:
    return await asked


# ---- what a token hears ------------------------------------------------------------------------


def test_the_last_second_of_twenty_is_not_heard_in_the_first_window(
    render: Render, thinker: Thinker, write_sound: Write, tmp_path: Path
) -> None:
    """SDPA and eager attention ignore the windows that flash attention is given, and every token hears the whole clip
    (QwenLM/Qwen3-ASR issue 213, Tencent-Hunyuan/UniRL PR 274)."""
    # Features are cut off 80 dB below the loudest of the clip. Fading leaves the loudest where it was.
    samples = noise(20)
    faded = samples.copy()
    faded[19 * 16_000 :] *= 0.01
    items = [render(sound(write_sound(tmp_path / f"{i}.wav", s))).media[0] for i, s in enumerate((samples, faded))]
    assert np.array_equal(mel(items[0])[:, :1899], mel(items[1])[:, :1899])  # frame 1899 reaches into the last second
    before, after = (encode(thinker, item) for item in items)
    assert len(before) == len(after) == 260
    assert torch.equal(before[: 2 * WINDOW_TOKENS], after[: 2 * WINDOW_TOKENS])
    assert (before[2 * WINDOW_TOKENS :] != after[2 * WINDOW_TOKENS :]).any(dim=1).all()


def test_a_tone_is_the_same_at_48_and_at_16_khz(
    render: Render, thinker: Thinker, write_sound: Write, tmp_path: Path
) -> None:
    """Samples taken at another rate than 16 kHz as they are give more features than tokens, and another pitch
    (lablup/mlxcel PR 438, huggingface/transformers issue 43262)."""

    def tone(rate: int) -> NDArray[np.float64]:
        at = np.arange(2 * rate) / rate
        fade = np.clip(np.minimum(at, 2 - at) / 0.1, 0, 1)  # no click at either end, which would sound at all pitches
        return 0.5 * fade * np.sin(2 * np.pi * 440 * at)

    high, low = (
        render(sound(write_sound(tmp_path / f"{rate}.wav", tone(rate), rate))).media[0] for rate in (48_000, 16_000)
    )
    assert high.num_tokens == low.num_tokens == 26
    assert high.spans == low.spans
    # One unit of a feature is 40 dB. What differs is the rounding to 16 bits, by 0.2 dB at most, near the floor of
    # -80 dB. A tone that is one percent higher differs by more than 1.
    assert np.abs(mel(high) - mel(low)).max() < 0.01
    assert float((encode(thinker, high) - encode(thinker, low)).abs().max()) < 1e-3


# ---- company -----------------------------------------------------------------------------------


def test_one_second_beside_seven_equals_each_alone(
    render: Render, new_store: Callable[[], FeatureStore], write_sound: Write, tmp_path: Path
) -> None:
    """A clip padded to the longest of its batch comes out differently than alone (QwenLM/Qwen3-ASR issue 207), or the
    batch fails (sgl-project/sglang-omni PR 285, sgl-project/sglang PR 35895)."""
    paths = [write_sound(tmp_path / f"{s}.wav", noise(s)) for s in (1, 7)]
    prompts = [render(sound(path)) for path in paths]
    alone = [prompt.media[0] for prompt in prompts]
    expected = [new_store()([item])[0] for item in alone]
    assert [len(f) for f in expected] == [13, 91]

    together = render(*(sound(path) for path in paths)).media
    for item, other in zip(together, alone, strict=True):
        assert item.features.keys() == other.features.keys()
        assert all(np.array_equal(item.features[name], other.features[name]) for name in item.features)
    _, packed = laid_side_by_side([(len(p.token_ids), p.media) for p in prompts])
    for company in (alone, alone[::-1], together, packed):
        for item, features in zip(company, new_store()(company), strict=True):
            assert torch.equal(features, expected[[a.hash for a in alone].index(item.hash)])
