"""Time in video: which frames the model sees, what rate it is told, and what positions the tokens get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from motet.batching.pack import pack
from motet.batching.samples import samples
from motet.config.schema import DataConfig, VideoConfig
from motet.data import media
from motet.data.reference import Reach
from motet.features.store import FeatureStore
from motet.models.attention import Packed
from motet.models.qwen3_omni.render import Renderer
from motet.models.qwen3_omni.thinker import Thinker
from motet.trainer.torch_ import TorchTrainer
from motet.types import (
    Advantages,
    Completion,
    Group,
    MediaPart,
    Message,
    Prompt,
    Sample,
    Sampling,
    Score,
    Task,
    TextPart,
)

Render = Callable[..., Prompt]
Write = Callable[..., Path]
STEP = 20
"""Frame i of a film has the level 20 i everywhere: its pixels spell its number."""
QUESTION = TextPart(text="Which option?")
ANSWER = np.array([40, 41, 42, 43], np.int32)


def spelled(num_frames: int, size: tuple[int, int] = (64, 64)) -> NDArray[np.uint8]:
    levels = np.arange(0, STEP * num_frames, STEP, dtype=np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (num_frames, *size, 3))


def noise(seconds: float) -> NDArray[np.float32]:
    return np.random.default_rng(0).uniform(-0.3, 0.3, round(seconds * 16_000)).astype(np.float32)


def write_uneven(path: Path, times_ms: Sequence[int]) -> Path:
    """A film without loss whose frames are shown at these times."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=1000)
        stream.height, stream.width, stream.pix_fmt = 64, 64, "bgr0"
        for pixels, time_ms in zip(spelled(len(times_ms)), times_ms, strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = time_ms, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def video(path: Path, *, use_audio: bool = False) -> MediaPart:
    return MediaPart(kind="video", ref=path.name, use_audio=use_audio)


def image(height: int, width: int) -> MediaPart:
    return MediaPart(kind="image", ref=np.full((height, width, 3), 90, np.uint8))


@pytest.fixture
def render(make_renderer: Callable[..., Renderer], tmp_path: Path) -> Render:
    """(parts, video settings) -> the prompt of one user message; paths start from `tmp_path`."""

    def rendered(*parts: MediaPart | TextPart, **settings: Any) -> Prompt:
        config = VideoConfig(**({"min_pixels": 4096, "max_pixels": 65536} | settings))
        task = Task(id="row", messages=(Message(role="user", parts=parts),), answer="", source="rows.jsonl:1")
        prompt = make_renderer(tmp_path, video=config)(task)
        assert isinstance(prompt, Prompt)
        return prompt

    return rendered


def numbers(prompt: Prompt) -> list[int]:
    """Which frames the tower reads, spelled by the pixels that it is given."""
    (item,) = (item for item in prompt.media if item.kind == "video")
    (num_grids, height, width), pixels = item.features["video_grid_thw"][0], item.features["pixel_values_videos"]
    pixels = pixels.reshape(num_grids, height * width, 3, 2, 16, 16).swapaxes(1, 3)  # patches hold pairs of frames
    levels = (pixels.reshape(2 * num_grids, -1) * 0.5 + 0.5) * 255
    assert np.ptp(levels, axis=1).max() < 1e-3
    return np.round(levels[:, 0] / STEP).astype(int).tolist()


def seconds_per_grid(prompt: Prompt) -> float:
    (item,) = (item for item in prompt.media if item.kind == "video")
    return float(item.features["video_second_per_grid"][0])


def places(prompt: Prompt, index: int) -> np.ndarray:
    """i32[3, N], positions of the tokens of clip `index`."""
    at = np.concatenate([np.arange(start, start + length) for start, length in prompt.media[index].spans])
    return prompt.positions[:, at]


def answered(prompt: Prompt) -> Sample:
    """The prompt and `ANSWER`."""
    completion = Completion(
        token_ids=ANSWER,
        logprobs=np.zeros(len(ANSWER), np.float32),
        mask=np.ones(len(ANSWER), bool),
        stop="length",
        versions=(0, 0),
        text="",
    )
    task = Task(id="row", messages=(), answer="", source="rows.jsonl:1")
    group = Group(id=0, task=task, prompt=prompt, completions=[completion], scores=[Score(value=0)])
    (sample,) = samples(group, Advantages(values=np.ones(1, np.float32)))
    return sample


def logprobs(trainer: TorchTrainer, sample: Sample) -> np.ndarray:
    """f32[C], of the answer."""
    batch = pack([sample], row_tokens=4096)
    ((row,),) = asyncio.run(trainer.logprobs(batch))
    return row[batch.grid[0][0].loss_mask]


# ---- the declared rate -------------------------------------------------------------------------


def test_the_same_frames_at_one_two_and_four_frames_per_second(
    render: Render,
    write_video: Write,
    tmp_path: Path,
    make_trainer: Callable[..., TorchTrainer],
    thinker: Thinker,
    features: FeatureStore,
) -> None:
    """The processor says one frame a second where it is not told otherwise (QwenLM/Qwen3-VL issue 798, modelscope/
    ms-swift PR 9955): whatever the clip's speed, the model saw the same time."""
    prompts = {}
    for fps in (1, 2, 4):
        prompts[fps] = render(video(write_video(tmp_path / f"{fps}.mkv", spelled(8), fps)), QUESTION, fps=4)
    assert {fps: numbers(p) for fps, p in prompts.items()} == {fps: list(range(8)) for fps in (1, 2, 4)}
    assert {fps: seconds_per_grid(p) for fps, p in prompts.items()} == {1: 2.0, 2: 1.0, 4: 0.5}

    start = 4  # after <|im_start|>, user, the new line and <|vision_start|>
    times = {fps: (places(p, 0)[0] - start).reshape(4, 4) for fps, p in prompts.items()}  # four tokens a grid
    assert all((t == t[:, :1]).all() for t in times.values())
    # Thirteen positions a second; 6.5 and 19.5 lose their halves.
    assert times[1][:, 0].tolist() == [0, 26, 52, 78]
    assert times[2][:, 0].tolist() == [0, 13, 26, 39]
    assert times[4][:, 0].tolist() == [0, 6, 13, 19]
    assert {fps: int(p.positions[0, start + 16]) for fps, p in prompts.items()} == {1: 83, 2: 44, 4: 24}

    items = [p.media[0] for p in prompts.values()]
    assert len({item.hash for item in items}) == 1  # the tower reads the same pixels
    assert len({item.content for item in items}) == len({p.digest for p in prompts.values()}) == 3

    trainer = make_trainer(thinker, store=features)
    slow, normal, fast = (logprobs(trainer, answered(p)) for p in prompts.values())
    assert np.abs(slow - normal).max() > 1e-2
    assert np.abs(normal - fast).max() > 1e-2


def test_more_than_two_frames_per_second_do_not_collapse_in_time(
    render: Render, write_video: Write, tmp_path: Path
) -> None:
    """Seconds per grid cast to an integer are zero above two frames a second (EvolvingLMMs-Lab/lmms-eval issue 1393,
    huggingface/transformers PR 48669)."""
    prompt = render(video(write_video(tmp_path / "fast.mkv", spelled(8), 8)), QUESTION, fps=8)
    assert seconds_per_grid(prompt) == 0.25
    assert places(prompt, 0)[0, ::4].tolist() == [4, 7, 10, 13]  # 3.25 a grid


def test_a_clip_cut_down_to_max_frames_is_told_its_true_rate(
    render: Render, write_video: Write, tmp_path: Path
) -> None:
    """The rate asked for is not the rate of the frames once max_frames binds (modelscope/ms-swift issue 5110)."""
    prompt = render(video(write_video(tmp_path / "long.mkv", spelled(10), 5)), QUESTION, fps=5, max_frames=4)
    assert seconds_per_grid(prompt) == 1.203125  # frames at 0, 0.6, 1.2 and 1.8 s; 1.2 in bfloat16
    assert places(prompt, 0)[0, ::4].tolist() == [4, 19]  # 15.6


# ---- which frames ------------------------------------------------------------------------------


def test_ten_frames_at_five_per_second_cut_down_to_four_are_0_3_6_9(
    render: Render, write_video: Write, tmp_path: Path
) -> None:
    """Frames that were chosen once are chosen again by the processor (hiyouga/LlamaFactory issue 9620,
    huggingface/lerobot PR 4710). The pixels that reach the tower say which ones it sees."""
    path = write_video(tmp_path / "film.mkv", spelled(10), 5)
    prompt = render(video(path), QUESTION, fps=5, max_frames=4)
    assert numbers(prompt) == [0, 3, 6, 9]
    reach = Reach.of(DataConfig(train=""), tmp_path)
    clip = media.load(video(path), reach=reach, video=VideoConfig(fps=5, max_frames=4))
    assert isinstance(clip, media.Video)
    assert clip.indices.tolist() == [0, 3, 6, 9]
    assert (clip.frames[:, 0, 0, 0] // STEP).tolist() == [0, 3, 6, 9]
    assert clip.times == pytest.approx([0, 0.6, 1.2, 1.8])
    assert (clip.source_fps, clip.duration_seconds) == pytest.approx((5, 2))


@pytest.mark.parametrize(
    ("num_frames", "film_fps", "fps", "expected"),
    [
        (6, 1, 4, [0, 1, 2, 3, 4, 5]),  # slower than asked for
        (5, 2, 2, [0, 1, 2, 3]),  # odd, and the last is taken: it is left out
        (10, 5, 2.5, [0, 2, 4, 6, 8, 9]),  # odd, and the last is free
        (3, 30, 2, [0, 2]),  # shorter than one interval
    ],
)
def test_no_frame_is_seen_twice(
    render: Render, write_video: Write, tmp_path: Path, num_frames: int, film_fps: int, fps: float, expected: list[int]
) -> None:
    """Samplers repeat frames to reach a count: of clips slower than the rate (vllm-project/vllm PR 33956) and of odd
    ones (vllm-project/vllm PR 33746)."""
    film = write_video(tmp_path / "film.mkv", spelled(num_frames), film_fps)
    assert numbers(render(video(film), QUESTION, fps=fps)) == expected


def test_frames_at_uneven_times_are_chosen_by_their_times(render: Render, tmp_path: Path) -> None:
    """By its mean rate, frame 3 of this film would be shown at 1 s and frame 2 at 0.7 s (dmlc/decord issue 26)."""
    film = write_uneven(tmp_path / "film.mkv", [0, 100, 200, 1000, 2000, 2040])
    prompt = render(video(film), QUESTION, fps=2)
    assert numbers(prompt) == [0, 2, 3, 4]  # nearest to 0, 0.5, 1, 1.5 and 2 s are 0, 2, 3, 3 and 4
    assert seconds_per_grid(prompt) == 1.3359375  # three intervals in two seconds; 4 / 3 in bfloat16


# ---- counts ------------------------------------------------------------------------------------


def test_grids_spans_and_tower_agree_at_render(
    render: Render, write_video: Write, tmp_path: Path, thinker: Thinker
) -> None:
    """Counts made up from frames asked for and not from the grid: "video features and video tokens do not match"
    (hiyouga/LlamaFactory issue 7376, vllm-project/vllm PR 13148)."""
    odd = write_video(tmp_path / "odd.mkv", spelled(7, (84, 100)), 2)
    loud = write_video(tmp_path / "loud.mkv", spelled(4, (64, 96)), 2, sound=noise(2))
    prompt = render(video(odd), image(64, 96), video(loud, use_audio=True), QUESTION)
    ids = {kind: _pad_id(thinker, kind) for kind in ("image", "video", "audio")}
    expected = {  # sides are multiples of 32, the nearest: 84 -> 96 and 100 -> 96
        "odd": ((3, 6, 6), 27),
        "picture": ((1, 4, 6), 6),
        "loud": ((2, 4, 6), 12),
    }
    for item, (grid, num_tokens) in zip(prompt.media[:3], expected.values(), strict=True):
        assert tuple(item.features[f"{item.kind}_grid_thw"][0]) == grid
        assert item.num_tokens == np.prod(grid) // 4 == num_tokens
    sound = prompt.media[3]
    assert (sound.kind, sound.num_tokens) == ("audio", 26)
    for item in prompt.media:
        assert all((prompt.token_ids[start : start + n] == ids[item.kind]).all() for start, n in item.spans)
        with torch.no_grad():
            assert len(thinker.encode(item)) == item.num_tokens
    counted = {kind: int((prompt.token_ids == id_).sum()) for kind, id_ in ids.items()}
    assert counted == {"image": 6, "video": 27 + 12, "audio": 26}


def _pad_id(thinker: Thinker, kind: str) -> int:
    return getattr(thinker.module.config, f"{kind}_token_id")


# ---- positions ---------------------------------------------------------------------------------


def test_an_image_before_a_video_with_sound(render: Render, write_video: Write, tmp_path: Path) -> None:
    """vLLM moved the positions of an image by one wherever a video in the prompt brought its sound (vllm-project/vllm
    PR 16878)."""
    film = write_video(tmp_path / "film.mkv", spelled(4), 2, sound=noise(2))
    prompt = render(image(64, 64), video(film, use_audio=True))
    before, after = range(13), range(13, 26)  # sound: of the first second, and of the second one
    temporal = [
        0, 1, 2, 3,  # <|im_start|>user\n<|vision_start|>
        4, 4, 4, 4,  # the image, 2 x 2
        6, 7, 8,  # <|vision_end|>, <|vision_start|><|audio_start|>
        *[9] * 4, *(9 + t for t in before),  # the frames of the first second, and its sound
        *[22] * 4, *(9 + t for t in after),
        35, 36, 37, 38, 39, 40, 41,  # <|audio_end|><|vision_end|><|im_end|>\n<|im_start|>assistant\n
    ]  # fmt: skip
    height, width = list(temporal), list(temporal)
    height[4:8], width[4:8] = [4, 4, 5, 5], [4, 5, 4, 5]
    for first in (11, 28):
        height[first : first + 4], width[first : first + 4] = [9, 9, 10, 10], [9, 10, 9, 10]
    assert [item.spans for item in prompt.media] == [((4, 4),), ((11, 4), (28, 4)), ((15, 13), (32, 13))]
    assert prompt.positions.tolist() == [temporal, height, width]


def test_sound_counts_up_on_every_axis(render: Render, write_video: Write, write_sound: Write, tmp_path: Path) -> None:
    """Height and width held still over a sound leave two thirds of the rotary bands without any order
    (mstar-project/mstar PR 196)."""
    sound = MediaPart(kind="audio", ref=write_sound(tmp_path / "sound.wav", noise(1.5)).name)
    loud = video(write_video(tmp_path / "loud.mkv", spelled(4), 2, sound=noise(2)), use_audio=True)
    prompt = render(image(64, 128), sound, loud)
    heard = [i for i, item in enumerate(prompt.media) if item.kind == "audio"]
    assert [prompt.media[i].num_tokens for i in heard] == [20, 26]  # 13, and 50 frames halved three times
    for i in heard:
        axes = places(prompt, i)
        assert axes[0].tolist() == list(range(axes[0, 0], axes[0, 0] + prompt.media[i].num_tokens))
        assert (axes == axes[0]).all()


def test_positions_above_256_in_bfloat16(
    render: Render,
    write_sound: Write,
    tmp_path: Path,
    random_checkpoint: Path,
    make_engine: Callable[..., Any],
    make_trainer: Callable[..., TorchTrainer],
) -> None:
    """Float positions cast with the inputs of a bfloat16 model are rounded to even numbers above 256, to multiples of
    four above 512 (modelscope/ms-swift issue 7176). The rotary embedding is watched, in sampling and in training."""
    model = Thinker(random_checkpoint, dtype=torch.bfloat16)
    store = FeatureStore(model.encode, fingerprint=model.towers_fingerprint())
    seen: list[Tensor] = []
    prompt = render(MediaPart(kind="audio", ref=write_sound(tmp_path / "long.wav", noise(24)).name), QUESTION)
    last = int(prompt.positions.max())
    assert 300 < last < 512

    def watch(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(kwargs["position_ids"] if "position_ids" in kwargs else args[1])

    hook = model.module.model.rotary_emb.register_forward_pre_hook(watch, with_kwargs=True)
    try:
        engine = make_engine(model, store, eos_ids=[])
        asked = engine.generate(prompt, Sampling(max_tokens=6), key="0/0")
        completion = asyncio.run(_one(asked))
        sampled_at, seen[:] = list(seen), []
        sample = answered(prompt)
        logprobs(make_trainer(model, store=store), sample)
        (trained_at,) = seen
    finally:
        hook.remove()

    assert all(not p.is_floating_point() for p in [*sampled_at, trained_at])
    assert sampled_at[0][:, 0].tolist() == prompt.positions.tolist()
    after = [last + 1 + i for i in range(5)]  # of the sixth token nothing is asked
    assert [p.flatten().tolist() for p in sampled_at[1:]] == [[place] * 3 for place in after]
    assert len(completion.token_ids) == 6
    assert trained_at[:, 0].tolist() == sample.positions.tolist()
    assert sample.positions[0, -4:].tolist() == after[:4]

    rounded = torch.as_tensor(sample.positions).to(torch.bfloat16).long().numpy()
    assert len(set(rounded[0, -4:].tolist())) < 4
    layout, encoded = Packed([0, len(sample.token_ids)]), store(prompt.media)
    with torch.no_grad():
        exact, other = (
            model.head(model.hidden(sample.token_ids, at, prompt.media, encoded, layout)[-4:]).float().log_softmax(-1)
            for at in (sample.positions, rounded)
        )
    assert float((exact - other).abs().max()) > 0.02


async def _one(asked: Any) -> Any:
    return await asked
