"""Rows that are not all alike: media in some, text in others, sound in one video of two, and rows that are dropped."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from motet import loop, wire
from motet.algorithms import GRPO
from motet.batching.pack import pack
from motet.batching.samples import samples
from motet.build import skipping
from motet.data.rows import Rows
from motet.data.source import TaskSource, heldout
from motet.metrics.stages import Stopwatch
from motet.models.qwen3_omni.thinker import Thinker
from motet.rollout.ahead import RenderAhead
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
from motet.weights.shared import SharedWeights

if TYPE_CHECKING:
    from motet.features.store import FeatureStore
    from motet.models.qwen3_omni.render import Renderer
    from motet.rollout.embedded import EmbeddedEngine
    from motet.trainer.torch_ import TorchTrainer

Row = dict[str, Any]
FORMATS = ("jsonl", "parquet", "folder")
QUESTION = TextPart(text="Which option?")


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def hiss(seconds: float, seed: int = 0) -> np.ndarray:
    """Samples at 16 kHz that 16 bits hold exactly."""
    return (np.random.default_rng(seed).integers(-8000, 8000, round(seconds * 16_000)) / 32768).astype(np.float32)


def write_rows(folder: Path, kind: str, rows: Sequence[Row]) -> Path:
    """A row file beside its media. Columns need a value in every row: a key that a row lacks is null there."""
    if kind == "jsonl":
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder / "rows.jsonl"
    names = {name: None for row in rows for name in row}
    table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    if kind == "parquet":
        pyarrow.parquet.write_table(table, folder / "rows.parquet")
        return folder / "rows.parquet"
    datasets.Dataset(table).save_to_disk(folder / "rows")
    return folder / "rows"


def rendered(renderer: Renderer, task: Task) -> Prompt:
    prompt = renderer(task)
    assert isinstance(prompt, Prompt)
    return prompt


def asked(task: Task) -> tuple[Any, ...]:
    """All of a task but where it came from."""
    return task.messages, task.answer, task.options, task.kind, task.modality


# ---- fields that some rows lack ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "stored"), [(kind, "path") for kind in FORMATS] + [(kind, "bytes") for kind in FORMATS if kind != "jsonl"]
)
def test_the_first_row_need_not_have_the_media_of_later_rows(
    renderer: Renderer,
    tmp_path: Path,
    write_image: Any,
    write_sound: Any,
    write_video: Any,
    kind: str,
    stored: str,
) -> None:
    """datasets issues 7222 and 7092, LLaMA-Factory issue 6223: the columns were those of the first rows, and a later
    one that had images could not be read, or lost them."""
    write_image(tmp_path / "a.png", noise(64, 96, 3))
    write_sound(tmp_path / "a.wav", hiss(1))
    write_video(tmp_path / "a.mkv", noise(4, 64, 64, 3), 2)

    def ref(name: str) -> Any:
        return name if stored == "path" else {"bytes": (tmp_path / name).read_bytes(), "path": None}

    rows: list[Row] = [
        {"question": "How many?", "answer": "4"},
        {"question": "And now?", "answer": "5"},
        {"question": "<image>What colour?", "answer": "red", "images": [ref("a.png")]},
        {"question": "<audio>What pitch?", "answer": "low", "audios": [ref("a.wav")]},
        {"question": "How many?", "answer": "4"},
        {"question": "<video>Which way?<image>", "answer": "up", "videos": [ref("a.mkv")], "images": [ref("a.png")]},
    ]
    folder = tmp_path / "elsewhere" if stored == "bytes" else tmp_path  # bytes need no file beside them
    folder.mkdir(exist_ok=True)
    read = Rows(write_rows(folder, kind, rows))
    prompts = [rendered(renderer.at(read.base if kind != "folder" else folder), task) for task in read]
    assert [[(item.kind, item.num_tokens) for item in prompt.media] for prompt in prompts] == [
        [],
        [],
        [("image", 6)],
        [("audio", 13)],
        [],
        [("video", 8), ("image", 6)],
    ]
    assert [task.modality for task in read] == ["text", "text", "image", "audio", "text", "image+video"]
    picture, sound = prompts[2].media[0], prompts[3].media[0]
    by_path = renderer.at(tmp_path)
    for item, part in (
        (picture, MediaPart(kind="image", ref="a.png")),
        (sound, MediaPart(kind="audio", ref="a.wav")),
    ):
        task = Task(id="r", messages=(Message(role="user", parts=(part,)),), answer="", source="r")
        assert rendered(by_path, task).media[0].hash == item.hash
    assert prompts[0].digest == prompts[4].digest != prompts[1].digest


@pytest.mark.parametrize("kind", FORMATS)
def test_no_media_is_one_thing_however_it_is_written(
    renderer: Renderer, tmp_path: Path, write_image: Any, kind: str
) -> None:
    """verl PR 3281, LLaMA-Factory issue 7157: among rows with images, one with `[]` failed and one with null did not,
    or the other way round. Here all three are the row that never heard of media."""
    write_image(tmp_path / "a.png", noise(64, 64, 3))
    shown = {"question": "<image>What colour?", "answer": "red", "images": ["a.png"]}
    plain = {"question": "Is <image> a tag?", "answer": "yes"}
    empty: list[Row] = [
        plain,
        plain | {"images": None},
        plain | {"images": []},
        plain | {"images": [], "audios": None, "videos": [], "use_audio_in_video": None},
    ]
    rows = [shown, *empty, shown]
    read = Rows(write_rows(tmp_path, kind, rows))
    first, *same, last = read
    assert first.modality == last.modality == "image"
    alone = Rows(write_rows(tmp_path, "jsonl", [plain]))[0]
    prompt = rendered(renderer, alone)
    assert renderer.tokenizer.decode(prompt.token_ids).startswith("<|im_start|>user\nIs <image> a tag?<|im_end|>")
    for task in same:
        assert asked(task) == asked(alone)
        assert task.modality == "text"
        assert rendered(renderer, task).digest == prompt.digest
        assert rendered(renderer, task).media == ()


# ---- rows that are dropped ---------------------------------------------------------------------


def alternating(folder: Path, write_image: Any) -> Path:
    """Twelve rows, text and image in turn. Row 2 does not parse, the image of row 5 is damaged, row 8 is too long."""
    rows: list[Row] = []
    for i in range(12):
        path = write_image(folder / f"{i}.png", noise(64, 64, 3, seed=i))
        row: Row = {"id": str(i), "question": f"<image>Which of {i}?", "images": [path.name], "answer": "A"}
        rows.append(row if i % 2 else {"id": str(i), "question": f"Which of {i}?", "answer": "A"})
    del rows[2]["answer"]
    (folder / "5.png").write_bytes((folder / "5.png").read_bytes()[:200])
    rows[8]["question"] += " red" * 60
    return write_rows(folder, "jsonl", rows)


KEPT = ["0", "1", "3", "4", "6", "7", "9", "10", "11"]


@pytest.mark.parametrize(("max_lag", "num_ahead"), [(0, 0), (2, 0), (0, 5), (2, 5)])
def test_what_is_left_of_a_file_is_trained_on_in_its_order(
    random_checkpoint: Path,
    tmp_path: Path,
    write_image: Any,
    make_renderer: Callable[..., Renderer],
    make_engine: Callable[..., EmbeddedEngine],
    make_trainer: Callable[..., TorchTrainer],
    features: FeatureStore,
    max_lag: int,
    num_ahead: int,
) -> None:
    """slime PR 2237: the filter by length measured text rows first and media rows after, and the run trained on them
    in that order. A run over the file, with a filter of every kind at work, and prompts rendered by threads ahead of
    their turn."""

    async def spread(task: Task, completions: Sequence[Completion]) -> list[Score]:
        return [Score(value=float(i)) for i in range(len(completions))]

    path = alternating(tmp_path, write_image)
    source = TaskSource(Rows(path), seed=0, shuffle=False, on_bad_row="skip")
    thinker = Thinker(random_checkpoint)
    engine, trainer = make_engine(thinker, features), make_trainer(thinker, store=features)
    render = skipping(make_renderer(tmp_path, max_prompt_tokens=60), "skip")
    ahead = RenderAhead(source, render, depth=num_ahead, num_threads=2)
    parts = loop.Parts(
        source=ahead,
        render=ahead.render,
        engine=engine,
        reward=spread,
        algorithm=GRPO(),
        trainer=trainer,
        sync=SharedWeights(engine),
        watch=Stopwatch(),
    )
    sampling = Sampling(max_tokens=2)
    plan = loop.Plan(steps=3, max_lag=max_lag, groups_per_step=3, group_size=2, sampling=sampling, row_tokens=256)

    async def run() -> list[loop.Step]:
        with ahead:
            async with aclosing(loop.train(parts, plan)) as steps:
                return [step async for step in steps]

    steps = asyncio.run(run())
    assert [group.task.id for step in steps for group in step.groups] == KEPT
    assert set(source.skipped) == {"bad_answer"}
    assert sum((step.skipped for step in steps), Counter()) == {"bad_media": 1, "prompt_too_long": 1}


def test_what_is_left_of_a_heldout_file_keeps_its_order(tmp_path: Path, write_image: Any) -> None:
    """slime PR 2237, for evaluation: the first rows are those of the file, bad ones passed over."""
    rows = Rows(alternating(tmp_path, write_image))
    assert [task.id for task in heldout(rows, max_rows=4, on_bad_row="skip")] == ["0", "1", "3", "4"]
    rest = ["1", "3", "4", "5", "6", "7", "8", "9", "10", "11"]  # what renders, or is short, is found out later
    assert [task.id for task in heldout(rows, on_bad_row="skip")] == ["0", *rest]


# ---- two videos, one with sound ----------------------------------------------------------------


@pytest.mark.parametrize("loud", [(True, False), (False, True), (True, True), (False, False)])
def test_of_two_videos_each_is_heard_or_not_by_its_own_flag(
    renderer: Renderer, tmp_path: Path, write_video: Any, loud: tuple[bool, bool]
) -> None:
    """Qwen2.5-Omni issue 206, vllm PR 26334: hearing the sound of videos was a switch of the whole request, and a
    video without a track, or as many sounds as videos, was an error. Only a video that is heard needs a track. Two
    seconds each: two pairs of frames of 4 tokens, and 26 tokens of sound."""
    for i, heard in enumerate(loud):
        sound = hiss(2, seed=i) if heard else None
        write_video(tmp_path / f"{i}.mkv", noise(4, 64, 64, 3, seed=i), 2, sound=sound)
    row = {"question": "<video> or <video>?", "videos": ["0.mkv", "1.mkv"], "answer": "A"}
    parts = [{"type": "video", "video": f"{i}.mkv", "use_audio": heard} for i, heard in enumerate(loud)]
    words = [{"type": "text", "text": text} for text in (" or ", "?")]
    talk = [{"role": "user", "content": [parts[0], words[0], parts[1], words[1]]}]
    path = write_rows(tmp_path, "jsonl", [row | {"use_audio_in_video": list(loud)}, {"messages": talk, "answer": "A"}])
    render = renderer.at(tmp_path)
    by_list, by_part = (rendered(render, task) for task in Rows(path))
    assert by_list.digest == by_part.digest

    clips = [clip for heard in loud for clip in (("video", 8), ("audio", 26))[: 1 + heard]]
    assert [(item.kind, item.num_tokens) for item in by_list.media] == clips
    spelled = {
        True: "<|vision_start|><|audio_start|>" + 2 * (4 * "<|video_pad|>" + 13 * "<|audio_pad|>")
        + "<|audio_end|><|vision_end|>",
        False: "<|vision_start|>" + 8 * "<|video_pad|>" + "<|vision_end|>",
    }  # fmt: skip
    expected = f"<|im_start|>user\n{spelled[loud[0]]} or {spelled[loud[1]]}?<|im_end|>\n<|im_start|>assistant\n"
    assert render.tokenizer.decode(by_list.token_ids) == expected
    items = iter(by_list.media)
    for i, heard in enumerate(loud):
        part = MediaPart(kind="video", ref=f"{i}.mkv", use_audio=heard)
        task = Task(id="r", messages=(Message(role="user", parts=(part,)),), answer="", source="r")
        for alone in rendered(render, task).media:
            assert next(items).hash == alone.hash


def test_a_run_wide_flag_is_each_videos(renderer: Renderer, tmp_path: Path, write_video: Any) -> None:
    """Qwen2.5-Omni issue 206: one flag for the row says the same of all its videos, so a silent one among them is a
    bad row by its name, not a prompt with less in it."""
    write_video(tmp_path / "0.mkv", noise(4, 64, 64, 3), 2, sound=hiss(2))
    write_video(tmp_path / "1.mkv", noise(4, 64, 64, 3), 2)
    row = {"question": "<video><video>?", "videos": ["0.mkv", "1.mkv"], "answer": "A", "use_audio_in_video": True}
    task = Rows(write_rows(tmp_path, "jsonl", [row]))[0]
    with pytest.raises(ValueError, match=r"^rows\.jsonl:1: 1\.mkv: has no sound track; set use_audio to false$"):
        renderer.at(tmp_path)(task)


# ---- samples on the way to the trainer ---------------------------------------------------------


def answered(task: Task, prompt: Prompt) -> Sample:
    completion = Completion(
        token_ids=np.array([40, 41, 42], np.int32),
        logprobs=np.full(3, -1, np.float32),
        mask=np.array([True, True, True]),
        stop="length",
        versions=(0, 0),
        text="",
    )
    group = Group(id=0, task=task, prompt=prompt, completions=[completion], scores=[Score(value=1.0)])
    (sample,) = samples(group, Advantages(values=np.ones(1, np.float32)))
    return sample


@pytest.fixture(scope="module")
def learned(toy_tasks: Mapping[str, Task], prompts: Mapping[str, Prompt]) -> dict[str, Sample]:
    """A sample of every kind of row."""
    return {kind: answered(toy_tasks[kind], prompt) for kind, prompt in prompts.items()}


def logprobs(trainer: TorchTrainer, sample: Sample) -> np.ndarray:
    """f32[C], of the sampled tokens."""
    batch = pack([sample], row_tokens=1024)
    ((row,),) = asyncio.run(trainer.logprobs(batch))
    return row[batch.grid[0][0].loss_mask]


def test_samples_of_every_kind_keep_their_media_on_the_wire(
    learned: Mapping[str, Sample],
    thinker: Thinker,
    features: FeatureStore,
    make_trainer: Callable[..., TorchTrainer],
) -> None:
    """verifiers PR 1653 and agent-lightning issue 559: media did not survive serialisation, and the trainer ran on
    bare placeholders without complaint. Every array comes back bit for bit, and scores alike; text rows, which have
    none, travel beside them."""
    trainer = make_trainer(thinker, store=features)
    arrived = wire.from_bytes(wire.to_bytes(list(learned.values())))
    for kind, sent, got in zip(learned, learned.values(), arrived, strict=True):
        assert (len(got.media) == 0) == (kind == "text")
        assert (got.digest, got.modality) == (sent.digest, sent.modality)
        for item, same in zip(sent.media, got.media, strict=True):
            assert (item.kind, item.hash, item.content, item.spans) == (same.kind, same.hash, same.content, same.spans)
            assert item.features.keys() == same.features.keys()
            for name, array in item.features.items():
                assert array.dtype == same.features[name].dtype
                np.testing.assert_array_equal(array, same.features[name], strict=True)
        np.testing.assert_array_equal(logprobs(trainer, sent), logprobs(trainer, got))


@pytest.mark.parametrize("kind", ["image_colour", "images_colour", "audio_longer", "video_agree", "image_audio"])
def test_a_sample_that_lost_media_is_refused(
    learned: Mapping[str, Sample],
    thinker: Thinker,
    features: FeatureStore,
    make_trainer: Callable[..., TorchTrainer],
    kind: str,
) -> None:
    """agent-lightning issue 559, NeMo-RL PR 2957: pads without features are text to the model, whose loss looks
    normal. Whichever of its clips a sample has lost, neither the other end of the wire nor the forward pass takes it,
    alone or beside a whole sample."""
    whole = learned[kind]
    trainer = make_trainer(thinker, store=features)
    assert np.isfinite(logprobs(trainer, whole)).all()
    for lost in range(len(whole.media)):
        torn = replace(whole, media=whole.media[:lost] + whole.media[lost + 1 :])
        with pytest.raises(ValueError, match="spans"):
            wire.from_bytes(wire.to_bytes(torn))
        for row in ([torn], [learned["text"], torn], [torn, whole]):
            message = f"a placeholder of {whole.media[lost].kind} "
            with pytest.raises(ValueError, match=message):
                asyncio.run(trainer.logprobs(pack(row, row_tokens=4096)))


def test_a_sample_with_the_pixels_of_another_is_refused(learned: Mapping[str, Sample]) -> None:
    """verifiers PR 1653, the other way to lose them: as many pixels, of another clip. The digest knows."""
    whole = learned["images_colour"]
    first, second = whole.media[:2]
    assert first.num_tokens == second.num_tokens
    swapped = (replace(first, features=second.features), replace(second, features=first.features), *whole.media[2:])
    with pytest.raises(ValueError, match=r"features of clip 0 \(image\)"):
        wire.from_bytes(wire.to_bytes(replace(whole, media=swapped)))
