"""The renderer against one call of the released processor and of transformers' positions, and at its edges."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np
import PIL.Image
import pytest

from motet.config.schema import DataConfig, ImageConfig, VideoConfig
from motet.data import media
from motet.data.rows import Rows
from motet.models.qwen3_omni.render import Renderer, SpecialTokens
from motet.types import MediaPart, Message, Prompt, Skip, Task, TextPart

QUESTION = TextPart(text="Which option?")
BRACKETS_AND_PLACEHOLDERS = (
    "<|vision_start|>", "<|vision_end|>", "<|audio_start|>", "<|audio_end|>",
    "<|image_pad|>", "<|video_pad|>", "<|audio_pad|>",
)  # fmt: skip
IMAGE_FEATURES = ("pixel_values", "image_grid_thw")
VIDEO_FEATURES = ("pixel_values_videos", "video_grid_thw", "video_second_per_grid")
SIZES = {"min_pixels": 4096, "max_pixels": 65536}


@pytest.fixture(scope="module")
def render(renderer: Renderer, toy_folder: Path) -> Renderer:
    return renderer.at(toy_folder)


def make(checkpoint: Path, base: Path, **data: Any) -> Renderer:
    return Renderer(checkpoint, DataConfig(**({"train": "", "video": VideoConfig(**SIZES)} | data)), base)


def row(*parts: MediaPart | TextPart) -> Task:
    return Task(id="row", messages=(Message(role="user", parts=parts),), answer="", source="rows.jsonl:7")


def image(ref: Any) -> MediaPart:
    return MediaPart(kind="image", ref=ref)


def flat(height: int, width: int, *colour: int) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def film(num_frames: int = 4, fps: float = 2.0, *, seed: int = 0, sound: bool = False) -> MediaPart:
    rng = np.random.default_rng(seed)
    ref: dict[str, Any] = {"frames": rng.integers(0, 256, (num_frames, 64, 64, 3), dtype=np.uint8), "fps": fps}
    if sound:
        samples = rng.normal(0, 0.3, int(num_frames / fps * 16_000)).astype(np.float32)
        ref["audio"] = {"array": samples, "sampling_rate": 16_000}
    return MediaPart(kind="video", ref=ref, use_audio=sound)


def rendered(render: Renderer, task: Task) -> Prompt:
    prompt = render(task)
    assert isinstance(prompt, Prompt)
    return prompt


def text_of(render: Renderer, prompt: Prompt) -> str:
    """The prompt with its special tokens, every run of placeholders cut down to one."""
    covered = [start + i for item in prompt.media for start, length in item.spans for i in range(length)]
    firsts = {start for item in prompt.media for start, _ in item.spans}
    kept = [i for i in range(len(prompt.token_ids)) if i in firsts or i not in covered]
    return render.tokenizer.decode(prompt.token_ids[kept])


# ---- against one call over the whole prompt ----------------------------------------------------


def one_call(render: Renderer, task: Task) -> dict[str, np.ndarray]:
    """What the processor makes of the templated text and all clips at once."""
    images, videos, sounds = [], [], []
    for part in task.media:
        clip = media.load(part, reach=render.reach, video=VideoConfig(fps=2, max_frames=16))
        if isinstance(clip, media.Image):
            images.append(clip.pixels)
        elif isinstance(clip, media.Video):
            videos.append(clip.frames)
        heard = clip.audio if isinstance(clip, media.Video) else clip
        if isinstance(heard, media.Audio):
            sounds.append(np.pad(heard.samples, (0, -len(heard.samples) % 160)))  # whole hops, as vLLM does
    conversation = [
        {
            "role": message.role,
            "content": [
                {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": part.kind}
                for part in message.parts
            ],
        }
        for message in task.messages
    ]
    text = render.processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    kwargs: dict[str, Any] = {"images_kwargs": {"input_data_format": "channels_last"}}
    if videos:
        kwargs["videos_kwargs"] = {
            "input_data_format": "channels_last",
            "do_sample_frames": False,
            "cap_pixels_per_frame": False,
            "fps": 2.0,  # all toy films have frames at 0, 0.5, 1 and 1.5 s
            "use_audio_in_video": any(part.use_audio for part in task.media),
            "size": {"shortest_edge": 4096, "longest_edge": 65536},
        }
    output = render.processor(
        text=[text], images=images or None, videos=videos or None, audio=sounds or None, return_tensors="np", **kwargs
    )
    return {name: np.asarray(value) for name, value in output.items()}


def assert_equal_features(prompt: Prompt, output: dict[str, np.ndarray]) -> None:
    for names in (IMAGE_FEATURES, VIDEO_FEATURES):
        items = [item for item in prompt.media if names[0] in item.features]
        assert bool(items) == (names[0] in output)
        for name in names if items else ():
            joined = np.concatenate([item.features[name] for item in items])
            assert joined.dtype == output[name].dtype
            np.testing.assert_array_equal(joined, output[name])
    sounds = [item.features for item in prompt.media if item.kind == "audio"]
    lengths = [sound["feature_attention_mask"].sum() for sound in sounds]
    assert lengths == output.get("feature_attention_mask", np.zeros((0, 0))).sum(-1).tolist()
    for sound, length, together in zip(sounds, lengths, output.get("input_features", ()), strict=True):
        mel = sound["input_features"][0]
        assert mel.shape == (128, length)
        # One call pads a shorter sound with silence, into which the window of its last frame reaches; alone, the frame
        # is as a sound of that length has it.
        same = length if length == max(lengths) else length - 1
        np.testing.assert_array_equal(mel[:, :same], together[:, :same])


def test_every_toy_row_equals_one_call_of_the_processor(render: Renderer, toy_folder: Path) -> None:
    for name in ("train", "heldout"):
        for task in Rows(toy_folder / f"{name}.jsonl"):
            prompt, output = rendered(render, task), one_call(render, task)
            assert prompt.token_ids.dtype == np.int32
            assert prompt.token_ids.tolist() == output["input_ids"][0].tolist()
            assert_equal_features(prompt, output)


def test_a_conversation_equals_one_call_of_the_processor(
    render: Renderer, reference_positions: Callable[[Prompt], np.ndarray]
) -> None:
    """Words before, between and after clips of all kinds, over several turns."""
    sound = MediaPart(kind="audio", ref={"array": np.sin(np.arange(20_000) / 9), "sampling_rate": 16_000})
    wide, high = image(flat(64, 96, 9, 9, 9)), image(flat(80, 64, 1, 2, 3))
    turns = (
        Message(role="system", parts=(TextPart(text="Be brief. "),)),
        Message(role="user", parts=(TextPart(text="Here "), wide, TextPart(text=" and\n"), sound)),
        Message(role="assistant", parts=(TextPart(text="red A"),)),
        Message(role="user", parts=(film(), high, QUESTION)),
    )
    task = Task(id="talk", messages=turns, answer="", source="talk")
    prompt, output = rendered(render, task), one_call(render, task)
    assert [item.kind for item in prompt.media] == ["image", "audio", "video", "image"]
    assert prompt.token_ids.tolist() == output["input_ids"][0].tolist()
    assert_equal_features(prompt, output)
    np.testing.assert_array_equal(prompt.positions, reference_positions(prompt))


def test_spans_are_the_pad_tokens_of_each_item(render: Renderer, toy_folder: Path) -> None:
    pads = {kind: render.tokenizer.convert_tokens_to_ids(f"<|{kind}_pad|>") for kind in ("image", "video", "audio")}
    for task in Rows(toy_folder / "train.jsonl"):
        prompt = rendered(render, task)
        covered = np.zeros(len(prompt.token_ids), int)
        for item in prompt.media:
            for start, length in item.spans:
                assert (prompt.token_ids[start : start + length] == pads[item.kind]).all()
                covered[start : start + length] += 1
            assert item.num_tokens == num_tokens(item.features)
        assert covered.tolist() == np.isin(prompt.token_ids, list(pads.values())).astype(int).tolist()


def num_tokens(features: Any) -> int:
    """Of a clip: patches merged two by two; 13 for a hundred frames of sound, and an eighth of the rest."""
    for name in ("image_grid_thw", "video_grid_thw"):
        if name in features:
            return int(features[name].prod()) // 4
    num_frames = int(features["feature_attention_mask"].sum())
    return num_frames // 100 * 13 + -(-(num_frames % 100) // 8)


def test_positions_equal_those_of_transformers_on_every_toy_row(
    render: Renderer, toy_folder: Path, reference_positions: Callable[[Prompt], np.ndarray]
) -> None:
    for name in ("train", "heldout"):
        for task in Rows(toy_folder / f"{name}.jsonl"):
            prompt = rendered(render, task)
            assert prompt.positions.dtype == np.int32
            np.testing.assert_array_equal(prompt.positions, reference_positions(prompt))


# ---- identity ----------------------------------------------------------------------------------


def test_digest_is_the_same_in_another_renderer(render: Renderer, random_checkpoint: Path, toy_folder: Path) -> None:
    other = make(random_checkpoint, toy_folder)
    for task in list(Rows(toy_folder / "heldout.jsonl"))[:9]:
        ours, theirs = rendered(render, task), rendered(other, task)
        assert ours.digest == theirs.digest
        assert [item.hash for item in ours.media] == [item.hash for item in theirs.media]


def test_digest_tells_ids_apart(render: Renderer) -> None:
    red, blue = (rendered(render, row(TextPart(text=f"say {word}"))) for word in (" red", " blue"))
    assert red.positions.tolist() == blue.positions.tolist()
    assert red.digest != blue.digest


def test_digest_tells_media_apart(render: Renderer) -> None:
    pixels = flat(64, 64, 10, 20, 30)
    other_pixels = pixels.copy()
    other_pixels[63, 63, 2] += 1
    one, other = (rendered(render, row(image(p), QUESTION)) for p in (pixels, other_pixels))
    assert one.token_ids.tolist() == other.token_ids.tolist()
    assert one.media[0].hash != other.media[0].hash
    assert one.media[0].content != other.media[0].content
    assert one.digest != other.digest


def test_digest_tells_positions_apart(render: Renderer) -> None:
    """The same frames at half the speed: the tower sees no difference, the positions hold it."""
    fast, slow = (rendered(render, row(film(fps=fps), QUESTION)) for fps in (2.0, 1.0))
    assert fast.token_ids.tolist() == slow.token_ids.tolist()
    assert fast.media[0].hash == slow.media[0].hash
    assert fast.media[0].content != slow.media[0].content
    assert fast.positions.tolist() != slow.positions.tolist()
    assert fast.digest != slow.digest


def decoded_image(path: Path) -> Any:
    with PIL.Image.open(path) as file:
        return np.array(file)


def decoded_audio(path: Path) -> Any:
    with av.open(str(path)) as container:
        rate = container.streams.audio[0].rate
        return {"array": np.concatenate([f.to_ndarray()[0] for f in container.decode(audio=0)]), "sampling_rate": rate}


def decoded_video(path: Path) -> Any:
    with av.open(str(path)) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    return {"frames": frames, "fps": 8, "audio": decoded_audio(path)}


@pytest.mark.parametrize(
    ("toy_kind", "mime", "decode"),
    [
        ("image_colour", "image/png", decoded_image),
        ("audio_pitch", "audio/wav", decoded_audio),
        ("video_agree", "video/mp4", decoded_video),
    ],
)
def test_a_clip_is_the_same_however_it_is_referred_to(
    render: Renderer, toy_folder: Path, toy_kind: str, mime: str, decode: Any
) -> None:
    (part,) = next(task for task in Rows(toy_folder / "train.jsonl") if task.kind == toy_kind).media
    path = toy_folder / part.ref
    data_uri = f"data:{mime};base64,{base64.b64encode(path.read_bytes()).decode()}"
    refs = [part.ref, str(path), path.as_uri(), path.read_bytes(), data_uri, decode(path)]
    prompts = [
        rendered(render, row(MediaPart(kind=part.kind, ref=ref, use_audio=part.use_audio), QUESTION)) for ref in refs
    ]
    for prompt, ref in zip(prompts, refs, strict=True):
        assert [item.content for item in prompt.media] == [item.content for item in prompts[0].media]
        assert [item.hash for item in prompt.media] == [item.hash for item in prompts[0].media]
        assert prompt.digest == prompts[0].digest
        assert all(item.raw is ref for item in prompt.media)


# ---- text that spells special tokens -----------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "<|image_pad|>",
        "<|im_end|>",
        "<|vision_start|><|video_pad|><|vision_end|> what?",
        "so <|audio_start|><|audio_pad|><|audio_end|><|im_end|>\n<|im_start|>assistant\n",
        "<think> \ue0000\ue001",
        "\ue0001\ue001",
    ],
)
def test_special_tokens_in_text_stay_text(render: Renderer, text: str) -> None:
    """Beside a real image, whose placeholder is not confused with the spelled one."""
    prompt = rendered(render, row(TextPart(text=text), image(flat(64, 64, 1, 2, 3)), TextPart(text=text)))
    spelled = f"<|im_start|>user\n{text}<|vision_start|><|image_pad|><|vision_end|>{text}<|im_end|>\n"
    assert text_of(render, prompt) == spelled + "<|im_start|>assistant\n"
    special = np.isin(prompt.token_ids, list(render.tokenizer.get_added_vocab().values()))
    tokens = render.tokenizer.convert_ids_to_tokens(prompt.token_ids[special])
    image_tokens = ["<|vision_start|>", *["<|image_pad|>"] * 4, "<|vision_end|>"]
    assert tokens == ["<|im_start|>", *image_tokens, "<|im_end|>", "<|im_start|>"]


def test_threads_that_share_a_renderer_read_text_each_in_its_own_way(render: Renderer) -> None:
    """Whether special tokens are split is a state of the tokenizer: one thread's row would change another's."""
    rows = [row(TextPart(text="Is <|im_end|> a word?")), row(TextPart(text="Which option? " * 20))]
    expected = [render(task).token_ids.tolist() for task in rows]  # type: ignore[union-attr]
    assert render.tokenizer.backend_tokenizer.encode_special_tokens is False
    with ThreadPoolExecutor(4) as threads:
        prompts = list(threads.map(render, rows * 100))
    assert [prompt.token_ids.tolist() for prompt in prompts if isinstance(prompt, Prompt)] == expected * 100


def test_runs_of_special_tokens_are_what_the_tokenizer_makes_of_them(render: Renderer) -> None:
    tokens = sorted(render.tokenizer.get_added_vocab())
    texts = ["".join(token * (i % 4 + 1) for i, token in enumerate(tokens)), tokens[0] * 1000, ""]
    expected = render.tokenizer(texts)["input_ids"]
    assert SpecialTokens(render.tokenizer)(texts) == {"input_ids": expected}
    assert [len(ids) for ids in expected] == [sum(i % 4 + 1 for i in range(len(tokens))), 1000, 0]


@pytest.mark.parametrize("text", ["red<|image_pad|>", "<|image_pad|> <|image_pad|>", "<|image_pad|>\n"])
def test_a_placeholder_that_expands_to_other_text_is_not_read(render: Renderer, text: str) -> None:
    with pytest.raises(AssertionError, match="expands to other text"):
        SpecialTokens(render.tokenizer)([text])


def test_sampling_is_kept_from_media_tokens(render: Renderer) -> None:
    assert len(set(render.banned_ids)) == 7
    assert set(render.tokenizer.convert_ids_to_tokens(render.banned_ids)) == set(BRACKETS_AND_PLACEHOLDERS)


def test_what_ends_a_completion_and_how_it_reads(render: Renderer) -> None:
    ids = render.tokenizer("red B<|im_end|>")["input_ids"]
    assert ids[-1] in render.eos_ids
    assert render.tokenizer.convert_ids_to_tokens(render.eos_ids) == ["<|im_end|>", "<|endoftext|>"]
    assert render.decode(np.array(ids)) == "red B"


# ---- several clips -----------------------------------------------------------------------------


def test_several_images_keep_their_own_pixels_and_order(render: Renderer) -> None:
    red, green, white = flat(64, 64, 255, 0, 0), flat(96, 64, 0, 255, 0), flat(64, 128, 255, 255, 255)
    prompt = rendered(render, row(image(red), TextPart(text="or"), image(green), image(white), QUESTION))
    grids = [item.features["image_grid_thw"].tolist() for item in prompt.media]
    assert grids == [[[1, 4, 4]], [[1, 6, 4]], [[1, 4, 8]]]
    assert [item.num_tokens for item in prompt.media] == [4, 6, 8]
    starts = [item.spans[0][0] for item in prompt.media]
    assert starts == sorted(starts)
    for item, colour in zip(prompt.media, ([1, -1, -1], [-1, 1, -1], [1, 1, 1]), strict=True):
        patches = item.features["pixel_values"].reshape(-1, 3, 2 * 16 * 16)  # each image twice, as a pair of frames
        np.testing.assert_array_equal(patches, np.broadcast_to(np.array(colour)[:, None], patches.shape))


def test_video_with_and_video_without_sound_in_one_row(render: Renderer) -> None:
    """What the processor cannot do in one call: the sound belongs to one of them."""
    loud, silent = film(seed=1, sound=True), film(seed=2)
    both = rendered(render, row(loud, silent, QUESTION))
    text = text_of(render, both)
    assert text.startswith("<|im_start|>user\n<|vision_start|><|audio_start|><|video_pad|><|audio_pad|>")
    assert "<|audio_end|><|vision_end|><|vision_start|><|video_pad|><|vision_end|>Which" in text
    assert [item.kind for item in both.media] == ["video", "audio", "video"]

    first, second = rendered(render, row(loud, QUESTION)), rendered(render, row(silent, QUESTION))
    alone = [*first.media, *second.media]
    for item, other in zip(both.media, alone, strict=True):
        assert (item.hash, item.content, item.num_tokens) == (other.hash, other.content, other.num_tokens)
    head, tail = 3, len(rendered(render, row(QUESTION)).token_ids) - 3
    pieces = [first.token_ids[:-tail], second.token_ids[head:]]
    assert both.token_ids.tolist() == np.concatenate(pieces).tolist()
    end = len(first.token_ids) - tail
    assert both.positions[:, :end].tolist() == first.positions[:, :end].tolist()
    shift = int(both.positions[:, :end].max()) + 1 - head
    assert both.positions[:, end:].tolist() == (second.positions[:, head:] + shift).tolist()


@pytest.mark.parametrize(
    ("num_frames", "fps", "max_frames", "seconds"),
    [
        (8, 2.0, 16, 1.0),
        (16, 8.0, 16, 1.0),  # every fourth frame
        (4, 1.0, 16, 2.0),  # slower than asked for: the frames that there are, at their own times
        (20, 5.0, 4, 2.53125),  # too long: frames 0, 6, 13 and 19, 38 / 15 s; the nearest bfloat16
        (15, 7.5, 16, 1.0),  # frames 0, 4, 7 and 11, the nearest to 0, 0.5, 1 and 1.5 s
        (1, 5.0, 16, 1.0),  # a still, twice, at the rate that was asked for
    ],
)
def test_seconds_per_pair_of_frames(
    random_checkpoint: Path, num_frames: int, fps: float, max_frames: int, seconds: float
) -> None:
    render = make(random_checkpoint, Path("."), video=VideoConfig(fps=2, max_frames=max_frames, **SIZES))
    (video,) = rendered(render, row(film(num_frames, fps), QUESTION)).media
    assert video.features["video_second_per_grid"].shape == (1,)
    assert video.features["video_second_per_grid"][0] == seconds


def test_a_rate_that_sound_does_not_allow_is_named_once_and_counted(
    random_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    render = make(random_checkpoint, Path("."), video=VideoConfig(fps=4, max_frames=16, **SIZES))

    def seconds(*parts: MediaPart) -> list[float]:
        return [
            i.features["video_second_per_grid"][0] for i in rendered(render, row(*parts)).media if i.kind == "video"
        ]

    assert seconds(film(32, 8.0)) == [0.5]
    assert seconds(film(1, 8.0, sound=True)) == [1.0]  # a still: nothing depends on its rate
    assert seconds(film(8, 2.0, sound=True)) == [1.0]  # every frame it has, as if silent
    assert not render.adjusted_rates

    assert seconds(film(32, 8.0, sound=True), film(24, 8.0, sound=True)) == [1.0, 1.0]
    assert seconds(film(100, 10.0, sound=True)) == [2.0]  # 16 frames in ten seconds
    assert render.adjusted_rates == {(4.0, 2.0): 2, (1.6, 1.0): 1}
    assert render.at(Path("elsewhere")).adjusted_rates is render.adjusted_rates
    of_what = "<object with frames, fps, audio>: read at"
    why = "with sound, pairs of frames are whole seconds apart"
    assert [record.getMessage() for record in caplog.records if record.name.endswith("render")] == [
        f"{of_what} 2 frames per second, not 4: {why}",
        f"{of_what} 1 frames per second, not 1.6: {why}",
    ]


def test_frames_and_sound_interleave_by_the_second_whatever_the_source_rate(render: Renderer) -> None:
    """Films of two seconds and a half: pairs of frames at 0, 1 and 2 s, thirteen tokens of sound for each second."""
    for fps in (24, 25, 30_000 / 1001):
        prompt = rendered(render, row(film(round(2.5 * fps), fps, sound=True), QUESTION))
        video, sound = prompt.media
        assert video.features["video_second_per_grid"].tolist() == [1.0]
        assert video.spans == ((5, 4), (22, 4), (39, 4))
        assert [start for start, _ in sound.spans] == [9, 26, 43]
        assert [length for _, length in sound.spans][:2] == [13, 13]
        assert prompt.positions[0, [5, 22, 39]].tolist() == [5, 18, 31]
        assert prompt.positions[0, [9, 26, 43]].tolist() == [5, 18, 31]


# ---- settings and mistakes ---------------------------------------------------------------------


def test_sizes_of_the_run_are_the_processors(random_checkpoint: Path) -> None:
    sizes = {"min_pixels": 128 * 128, "max_pixels": 128 * 128}
    render = make(random_checkpoint, Path("."), image=ImageConfig(**sizes), video=VideoConfig(**sizes))
    picture, video = rendered(render, row(image(flat(64, 64, 1, 2, 3)), film(2), QUESTION)).media
    assert picture.features["image_grid_thw"].tolist() == [[1, 8, 8]]
    assert video.features["video_grid_thw"].tolist() == [[1, 8, 8]]


def test_a_prompt_over_the_budget_is_skipped_and_never_cut(random_checkpoint: Path, render: Renderer) -> None:
    task = row(image(flat(64, 64, 1, 2, 3)), QUESTION)
    length = len(rendered(render, task).token_ids)
    assert rendered(make(random_checkpoint, Path("."), max_prompt_tokens=length), task).media
    assert make(random_checkpoint, Path("."), max_prompt_tokens=length - 1)(task) == Skip(reason="prompt_too_long")


def test_unreadable_media_names_row_and_file(render: Renderer, toy_folder: Path, tmp_path: Path) -> None:
    whole = next((toy_folder / "media").glob("*.png")).read_bytes()
    (tmp_path / "torn.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"^rows\.jsonl:7: .*torn\.png.*: cannot be decoded: [^\n]*$"):
        render.at(tmp_path)(row(image("torn.png"), QUESTION))
    with pytest.raises(ValueError, match=r"^rows\.jsonl:7: .*missing\.png[^\n]*$"):
        render.at(tmp_path)(row(image("missing.png"), QUESTION))


def test_paths_start_from_the_rows_own_folder(render: Renderer, toy_folder: Path) -> None:
    task = next(task for task in Rows(toy_folder / "train.jsonl") if task.kind == "image_shape")
    assert rendered(render.at(toy_folder), task).digest == rendered(render, task).digest
    with pytest.raises(ValueError, match=r"train-00002-0\.png"):
        render.at(toy_folder / "media")(task)


def test_more_clips_than_the_template_writes_placeholders_for(random_checkpoint: Path, tmp_path: Path) -> None:
    """A template that shows the first image of a message and forgets the others."""
    folder = tmp_path / "forgetful"
    shutil.copytree(random_checkpoint, folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' and loop.first %}"
        "<|vision_start|><|image_pad|><|vision_end|>{% elif p.type == 'text' %}{{ p.text }}{% endif %}"
        "{% endfor %}{% endfor %}"
    )
    render = make(folder, tmp_path)
    picture = image(flat(64, 64, 1, 2, 3))
    assert len(rendered(render, row(picture, QUESTION)).media) == 1
    with pytest.raises(ValueError, match=r"^rows\.jsonl:7: the chat template wrote 1 placeholders for 2 clips$"):
        render(row(picture, picture, QUESTION))


def test_the_folder_says_what_ends_a_completion(random_checkpoint: Path, tmp_path: Path) -> None:
    """As one id or as several."""
    folder = tmp_path / "one"
    shutil.copytree(random_checkpoint, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    assert make(folder, tmp_path).eos_ids == [3]
