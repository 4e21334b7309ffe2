"""Placeholders: every clip is expanded once, to its own number of tokens, and nothing is measured or cut otherwise.

A clip's right number of tokens is worked out by hand: patches of 16 pixels merged 2 by 2, frames in pairs, and
thirteen tokens a second of sound (an eighth, rounded up, of the frames that do not fill a second).
"""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL.Image
import pytest

from motet.batching.pack import pack
from motet.batching.samples import samples
from motet.config.schema import ImageConfig, VideoConfig
from motet.data.rows import Rows, to_task
from motet.types import (
    Advantages,
    Group,
    MediaPart,
    Message,
    Prompt,
    Sampling,
    Score,
    Skip,
    Task,
    TextPart,
)

if TYPE_CHECKING:
    from motet.features.store import FeatureStore
    from motet.models.qwen3_omni.render import Renderer
    from motet.models.qwen3_omni.thinker import Thinker
    from motet.rollout.embedded import EmbeddedEngine
    from motet.trainer.torch_ import TorchTrainer

QUESTION = TextPart(text="Which option?")
PADS = {"image": "<|image_pad|>", "video": "<|video_pad|>", "audio": "<|audio_pad|>"}


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def hiss(seconds: float, seed: int = 0) -> np.ndarray:
    """Samples at 16 kHz that 16 bits hold exactly."""
    return (np.random.default_rng(seed).integers(-8000, 8000, round(seconds * 16_000)) / 32768).astype(np.float32)


def image(ref: Any) -> MediaPart:
    return MediaPart(kind="image", ref=ref)


def user(*parts: MediaPart | TextPart) -> Message:
    return Message(role="user", parts=parts)


def conversation(*messages: Message) -> Task:
    return Task(id="row", messages=messages, answer="A", source="rows.jsonl:7")


def rendered(renderer: Renderer, *messages: Message) -> Prompt:
    prompt = renderer(conversation(*messages))
    assert isinstance(prompt, Prompt)
    return prompt


def num_pads(renderer: Renderer, token_ids: np.ndarray) -> dict[str, int]:
    ids = {kind: renderer.tokenizer.convert_tokens_to_ids(pad) for kind, pad in PADS.items()}
    return {kind: int((token_ids == pad).sum()) for kind, pad in ids.items()}


def identity(prompt: Prompt) -> tuple[Any, ...]:
    """All that a model reads of a prompt, and the names of its clips."""
    features = [{name: array.tobytes() for name, array in item.features.items()} for item in prompt.media]
    names = [(item.kind, item.content, item.hash, item.spans) for item in prompt.media]
    return prompt.token_ids.tolist(), prompt.positions.tolist(), names, features, prompt.digest


# ---- measuring ---------------------------------------------------------------------------------


def test_measuring_a_row_does_not_take_its_media(renderer: Renderer, tmp_path: Path, write_image: Any) -> None:
    """verl issue 530 and PR 5004: the length filter popped `images` from the row it measured, which went on to be
    trained on without them."""
    write_image(tmp_path / "a.png", noise(64, 96))
    row = {"question": "<image>What colour?", "images": ["a.png"], "options": ["red", "blue"], "answer": "red"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    given = deepcopy(row)
    assert to_task(row, source="rows.jsonl:1", default_id="r") == to_task(row, source="rows.jsonl:1", default_id="r")
    assert row == given

    rows, render = Rows(tmp_path / "rows.jsonl"), renderer.at(tmp_path)
    lengths = [len(prompt.token_ids) for task in rows if isinstance(prompt := render(task), Prompt)]
    kept = [task for task, length in zip(rows, lengths, strict=True) if length <= lengths[0]]
    assert [part.ref for part in kept[0].media] == ["a.png"]
    prompt = rendered(render, *kept[0].messages)
    assert [item.num_tokens for item in prompt.media] == [6]
    assert len(prompt.token_ids) == lengths[0]


def test_measuring_twice_gives_the_same_answer(renderer: Renderer, toy_tasks: dict[str, Task]) -> None:
    """verl issue 4989: what was built from a row the second time lacked what the first time had taken. Rows of every
    kind, with clips as objects in memory that a careless reader could change."""
    for task in toy_tasks.values():
        before = pickle.dumps(task)
        first, second = rendered(renderer, *task.messages), rendered(renderer, *task.messages)
        assert pickle.dumps(task) == before
        assert identity(first) == identity(second)
        kinds = [kind for part in task.media for kind in (part.kind, *(["audio"] if part.use_audio else []))]
        assert [item.kind for item in first.media] == kinds


def references(path: Path, mime: str, decoded: Any) -> list[Any]:
    """A clip in every form that a row may give it in."""
    data = path.read_bytes()
    uri = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    return [path.name, str(path), path.as_uri(), data, uri, {"bytes": data, "path": None}, decoded]


def assert_all_alike(renderer: Renderer, kind: Any, refs: Sequence[Any], num_tokens: dict[str, int]) -> None:
    prompts = [
        rendered(renderer, user(MediaPart(kind=kind, ref=ref, use_audio=kind == "video"), QUESTION)) for ref in refs
    ]
    assert num_pads(renderer, prompts[0].token_ids) == {"image": 0, "video": 0, "audio": 0} | num_tokens
    for ref, prompt in zip(refs, prompts, strict=True):
        assert identity(prompt) == identity(prompts[0])
        assert all(item.raw is ref for item in prompt.media)


def test_an_image_measures_alike_however_it_is_given(renderer: Renderer, tmp_path: Path, write_image: Any) -> None:
    """verl issues 6623 and 6599: the filter knew decoded images alone, and counted a path as text."""
    pixels = noise(64, 96)
    path = write_image(tmp_path / "a.png", pixels)
    refs = [*references(path, "image/png", pixels), PIL.Image.fromarray(pixels)]
    assert_all_alike(renderer.at(tmp_path), "image", refs, {"image": 2 * 3})


def test_a_sound_measures_alike_however_it_is_given(renderer: Renderer, tmp_path: Path, write_sound: Any) -> None:
    """verl issue 6623, for sound: a second and a half are 13 tokens and an eighth of 50 frames."""
    path = write_sound(tmp_path / "a.wav", hiss(1.5))
    refs = references(path, "audio/wav", {"array": hiss(1.5), "sampling_rate": 16_000})
    assert_all_alike(renderer.at(tmp_path), "audio", refs, {"audio": 13 + 7})


def test_a_video_measures_alike_however_it_is_given(renderer: Renderer, tmp_path: Path, write_video: Any) -> None:
    """verl issue 6623, for video with its sound: three pairs of frames of 2 x 3 tokens, three seconds of sound."""
    frames, sound = noise(6, 64, 96, 3), hiss(3)
    path = write_video(tmp_path / "a.mkv", frames, 2, sound=sound)
    decoded = {"frames": frames, "fps": 2, "audio": {"array": sound, "sampling_rate": 16_000}}
    refs = references(path, "video/x-matroska", decoded)
    assert_all_alike(renderer.at(tmp_path), "video", refs, {"video": 3 * 2 * 3, "audio": 3 * 13})


@pytest.mark.parametrize(
    ("patch_size", "merge_size", "grid", "num_tokens"),
    [
        (16, 2, (8, 8), 16),  # as released: 128 / 16 = 8 patches a side, merged to 4
        (8, 2, (16, 16), 64),
        (16, 4, (8, 8), 4),
        (14, 2, (10, 10), 25),  # sides become multiples of 28: 140 pixels
    ],
)
def test_patch_and_merge_size_are_those_of_the_loaded_processor(
    random_checkpoint: Path,
    tmp_path: Path,
    make_renderer: Callable[..., Renderer],
    patch_size: int,
    merge_size: int,
    grid: tuple[int, int],
    num_tokens: int,
) -> None:
    """verl issue 6592: the filter counted with a patch size of 14 whatever the model's, and rows that it had let pass
    were too long. One picture and one pair of frames, 128 x 128."""
    folder = tmp_path / "model"
    shutil.copytree(random_checkpoint, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    sizes = {"patch_size": patch_size, "merge_size": merge_size}
    settings = json.loads((folder / "processor_config.json").read_text())
    for part in ("image_processor", "video_processor"):
        settings[part] |= sizes
    (folder / "processor_config.json").write_text(json.dumps(settings))
    model = json.loads((folder / "config.json").read_text())
    model["thinker_config"]["vision_config"] |= {"patch_size": patch_size, "spatial_merge_size": merge_size}
    (folder / "config.json").write_text(json.dumps(model))

    renderer = make_renderer(checkpoint=folder)
    film = MediaPart(kind="video", ref={"frames": noise(2, 128, 128, 3), "fps": 2})
    picture, video = rendered(renderer, user(image(noise(128, 128, 3)), film, QUESTION)).media
    assert picture.features["image_grid_thw"].tolist() == [[1, *grid]]
    assert video.features["video_grid_thw"].tolist() == [[1, *grid]]
    assert (picture.num_tokens, video.num_tokens) == (num_tokens, num_tokens)
    assert picture.features["pixel_values"].shape == (grid[0] * grid[1], 3 * 2 * patch_size**2)
    assert video.features["pixel_values_videos"].shape == (grid[0] * grid[1], 3 * 2 * patch_size**2)


# ---- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 64), (128, 128), (256, 256)])
def test_a_limit_counts_expanded_tokens(make_renderer: Callable[..., Renderer], shape: tuple[int, int]) -> None:
    """verl PRs 515 and 1052: the filter measured the prompt with one token an image, so any picture fitted."""
    sized = ImageConfig(min_pixels=4096, max_pixels=65536)
    task = conversation(user(image(noise(*shape, 3)), QUESTION))
    prompt = make_renderer(image=sized)(task)
    assert isinstance(prompt, Prompt)
    num_tokens, (item,) = len(prompt.token_ids), prompt.media
    assert item.num_tokens == shape[0] * shape[1] // 32**2
    fitting = make_renderer(image=sized, max_prompt_tokens=num_tokens)(task)
    assert isinstance(fitting, Prompt)
    assert identity(fitting) == identity(prompt)
    unexpanded = num_tokens - item.num_tokens + 1
    for limit in (num_tokens - 1, unexpanded):
        assert make_renderer(image=sized, max_prompt_tokens=limit)(task) == Skip(reason="prompt_too_long")


@pytest.mark.parametrize("where", ["before", "first", "inside", "last", "behind"])
def test_no_limit_cuts_an_image(renderer: Renderer, make_renderer: Callable[..., Renderer], where: str) -> None:
    """EasyR1 PR 76, trl PR 5904, prime-rl PR 2013: a prompt cut inside an image had features without tokens. The
    image stands at the end, where a cut from the right falls into it, and at the start for a cut from the left."""
    for parts in ((image(noise(128, 128, 3)), QUESTION), (QUESTION, image(noise(128, 128, 3)))):
        task = conversation(user(*parts))
        ((first, length),) = rendered(renderer, *task.messages).media[0].spans
        assert length == 16
        limits = {
            "before": first - 1,
            "first": first + 1,
            "inside": first + 8,
            "last": first + 15,
            "behind": first + 16,
        }
        assert make_renderer(max_prompt_tokens=limits[where])(task) == Skip(reason="prompt_too_long")


def answered(engine: EmbeddedEngine, task: Task, prompt: Prompt, max_tokens: int) -> Group:
    completion = asyncio.run(engine.generate(prompt, Sampling(max_tokens=max_tokens), key="0/0"))
    return Group(id=0, task=task, prompt=prompt, completions=[completion], scores=[Score(value=1.0)])


@pytest.mark.parametrize("max_tokens", [1, 8])
def test_a_limit_on_completions_leaves_the_prompt_whole(
    renderer: Renderer,
    thinker: Thinker,
    features: FeatureStore,
    make_engine: Callable[..., EmbeddedEngine],
    make_trainer: Callable[..., TorchTrainer],
    max_tokens: int,
) -> None:
    """verl issue 4050: the limit of the answer fell on the tokens of an image, whose pixels went on to the trainer.
    OpenRLHF issue 1220: the engine expanded ids that were expanded already, so it read another prompt than the
    trainer; here both find the same log-probabilities. Nor does a row shorter than the sample cut it."""
    task = conversation(user(image(noise(128, 128, 3)), image(noise(64, 64, 3, seed=1)), QUESTION))
    prompt = rendered(renderer, *task.messages)
    group = answered(make_engine(), task, prompt, max_tokens)
    (sample,) = samples(group, Advantages(values=np.ones(1, np.float32)))
    num = len(prompt.token_ids)
    assert 1 <= len(sample.token_ids) - num <= max_tokens
    assert sample.token_ids[:num].tolist() == prompt.token_ids.tolist()
    assert num_pads(renderer, sample.token_ids) == {"image": 16 + 4, "video": 0, "audio": 0}

    batch = pack([sample], row_tokens=8)
    ((row,),) = batch.grid
    assert row.token_ids.tolist() == sample.token_ids.tolist()
    assert [item.spans for item in row.media] == [item.spans for item in prompt.media]
    ((logprobs,),) = asyncio.run(make_trainer(thinker, store=features).logprobs(batch))
    np.testing.assert_allclose(logprobs[row.loss_mask], group.completions[0].logprobs, atol=1e-4)


# ---- expanding once ----------------------------------------------------------------------------


def test_text_that_is_an_expanded_prompt_stays_text(renderer: Renderer) -> None:
    """trl issue 6294, vllm issue 57740, sglang issue 35582: pads in the text are taken for the clip's, or expanded
    once more. Here a whole expanded prompt is quoted before, after and without an image of its own."""
    picture = image(noise(64, 64, 3))
    once = rendered(renderer, user(picture, QUESTION))
    spelled = renderer.tokenizer.decode(once.token_ids)
    assert spelled.count(PADS["image"]) == 4
    quote = TextPart(text=spelled)
    for parts, num_images in (
        ((quote,), 0),
        ((quote, picture), 1),
        ((picture, quote), 1),
        ((quote, picture, quote), 1),
    ):
        prompt = rendered(renderer, user(*parts))
        assert num_pads(renderer, prompt.token_ids) == {"image": 4 * num_images, "video": 0, "audio": 0}
        assert [item.hash for item in prompt.media] == [item.hash for item in once.media] * num_images
        text = renderer.tokenizer.decode(prompt.token_ids)
        assert text.count(spelled) == sum(part is quote for part in parts)
        turns = renderer.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
        assert np.isin(prompt.token_ids, turns).sum() == 3  # the quoted turns are text, too


def test_a_clip_of_many_tokens_beside_one_of_few(renderer: Renderer) -> None:
    """trl PR 6718: runs of pads were matched to clips by their order alone. Each run is as long as its own clip asks
    for, also where two runs of one kind follow each other."""
    shapes = [(64, 64), (128, 128), (64, 96), (64, 64)]
    prompt = rendered(renderer, user(*(image(noise(*s, 3, seed=i)) for i, s in enumerate(shapes))))
    assert [item.num_tokens for item in prompt.media] == [4, 16, 6, 4]
    spans = [item.spans for item in prompt.media]
    # <|im_start|> user \n, then <|vision_start|> pads <|vision_end|> of each
    assert spans == [((4, 4),), ((10, 16),), ((28, 6),), ((36, 4),)]


# ---- turns -------------------------------------------------------------------------------------


def test_a_turn_leaves_the_turns_before_it_as_they_were(renderer: Renderer) -> None:
    """prime-rl PR 1739: every turn expanded the pads of the turns before it again, so prompts grew by powers."""
    talk: list[Message] = []
    before: Prompt | None = None
    shapes = [(64, 64), (128, 128), (64, 96)]
    for i, shape in enumerate(shapes):
        talk.append(user(TextPart(text="And "), image(noise(*shape, 3, seed=i)), QUESTION))
        prompt = rendered(renderer, *talk)
        assert [item.num_tokens for item in prompt.media] == [4, 16, 6][: i + 1]
        assert num_pads(renderer, prompt.token_ids)["image"] == sum([4, 16, 6][: i + 1])
        if before is not None:
            num = len(before.token_ids)
            assert prompt.token_ids[:num].tolist() == before.token_ids.tolist()
            assert prompt.positions[:, :num].tolist() == before.positions.tolist()
            for item, same in zip(before.media, prompt.media, strict=False):
                assert (item.hash, item.spans) == (same.hash, same.spans)
            assert prompt.media[-1].spans[0][0] >= num
        before = prompt
        talk.append(Message(role="assistant", parts=(TextPart(text="red A"),)))


def test_images_in_every_turn_keep_their_order_and_their_pixels(renderer: Renderer) -> None:
    """verl issue 4050, trl PR 6719, mlx-vlm issue 833: images of earlier turns, or that a tool or the assistant gave
    back, were lost, or stood at the pads of another."""
    pictures = [image(np.full((64, 64, 3), level, np.uint8)) for level in (0, 51, 102, 153, 255)]
    talk = (
        Message(role="system", parts=(TextPart(text="An example: "), pictures[0])),
        user(pictures[1], TextPart(text="Zoom in.")),
        Message(role="assistant", parts=(TextPart(text="Here "), pictures[2])),
        user(TextPart(text="The tool says "), pictures[3], pictures[4], QUESTION),
    )
    prompt = rendered(renderer, *talk)
    assert num_pads(renderer, prompt.token_ids) == {"image": 5 * 4, "video": 0, "audio": 0}
    starts = [item.spans[0][0] for item in prompt.media]
    assert starts == sorted(starts)
    for item, level in zip(prompt.media, (-1.0, -0.6, -0.2, 0.2, 1.0), strict=True):  # level / 127.5 - 1
        np.testing.assert_allclose(item.features["pixel_values"], level, atol=1e-6)
        ((first, length),) = item.spans
        assert renderer.tokenizer.decode(prompt.token_ids[first - 1 : first + length + 1]) == (
            "<|vision_start|>" + 4 * PADS["image"] + "<|vision_end|>"
        )


# ---- sound in video ----------------------------------------------------------------------------


def test_a_video_with_sound_keeps_all_its_tokens(
    renderer: Renderer, thinker: Thinker, features: FeatureStore, tmp_path: Path, write_video: Any
) -> None:
    """verl-omni PR 547 and vllm-omni issue 7509: runs of pads were collapsed or masked as if a run were a clip, and
    half of an interleaved span was gone. Four seconds at 2 frames a second and 13 positions a second: four pairs of
    frames at 0, 13, 26 and 39, and before each but the first the 13 tokens of sound of the second before it."""
    path = write_video(tmp_path / "a.mkv", noise(8, 64, 96, 3), 2, sound=hiss(4))
    part = MediaPart(kind="video", ref=str(path), use_audio=True)
    prompt = rendered(renderer.at(tmp_path), user(part, QUESTION))
    video, sound = prompt.media
    assert (video.kind, sound.kind) == ("video", "audio")
    assert num_pads(renderer, prompt.token_ids) == {"image": 0, "video": 4 * 6, "audio": 4 * 13}
    first = 5  # <|im_start|> user \n <|vision_start|> <|audio_start|>
    assert video.spans == tuple((first + k * 19, 6) for k in range(4))
    assert sound.spans == tuple((first + 6 + k * 19, 13) for k in range(4))
    brackets = renderer.tokenizer.decode(prompt.token_ids[first + 76 : first + 78])
    assert brackets == "<|audio_end|><|vision_end|>"
    assert [len(f) for f in features(prompt.media)] == [24, 52]


def test_a_video_with_sound_equals_the_processor(
    renderer: Renderer, processor: Any, tmp_path: Path, write_video: Any
) -> None:
    """vllm PR 33605: with sound in video, another library's ids than the processor's own. One call over all of it."""
    frames, sound = noise(10, 64, 64, 3), hiss(5)
    path = write_video(tmp_path / "a.mkv", frames, 2, sound=sound)
    prompt = rendered(renderer.at(tmp_path), user(MediaPart(kind="video", ref=str(path), use_audio=True), QUESTION))
    content = [{"type": "video"}, {"type": "text", "text": QUESTION.text}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    output = processor(
        text=[text],
        videos=[frames],
        audio=[sound],
        return_tensors="np",
        videos_kwargs={
            "input_data_format": "channels_last",
            "do_sample_frames": False,
            "fps": 2.0,
            "use_audio_in_video": True,
            "size": {"shortest_edge": 4096, "longest_edge": 65536},
        },
    )
    assert prompt.token_ids.tolist() == output["input_ids"][0].tolist()
    assert num_pads(renderer, prompt.token_ids) == {"image": 0, "video": 5 * 4, "audio": 5 * 13}
    video, heard = prompt.media
    np.testing.assert_array_equal(video.features["pixel_values_videos"], output["pixel_values_videos"])
    np.testing.assert_array_equal(heard.features["input_features"], output["input_features"])


def test_frames_are_measured_at_the_sizes_of_the_run(make_renderer: Callable[..., Renderer]) -> None:
    """verl issue 6592 again: the filter and the rollout sized frames by settings of their own."""
    film = MediaPart(kind="video", ref={"frames": noise(4, 128, 128, 3), "fps": 2})
    for side, num_tokens in ((64, 2 * 4), (128, 2 * 16), (256, 2 * 64)):
        size = {"min_pixels": side * side, "max_pixels": side * side}
        renderer = make_renderer(video=VideoConfig(**size))
        assert rendered(renderer, user(film, QUESTION)).media[0].num_tokens == num_tokens
