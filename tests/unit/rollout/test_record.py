from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from motet.config.schema import DataConfig, VideoConfig
from motet.data import toy
from motet.data.media import Audio, Image, Video, load
from motet.data.reference import Reach
from motet.data.rows import Rows
from motet.rollout.record import GroupRecord
from motet.types import Advantages, Completion, Group, MediaPart, Message, Prompt, Score, Task, TextPart

DATA = DataConfig(train="train.jsonl")
PROMPT = Prompt(token_ids=np.zeros(3, np.int32), positions=np.zeros((3, 3), np.int32), media=(), digest="d")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rows of every toy kind, with their files."""
    folder = tmp_path_factory.mktemp("toy")
    toy.write(folder, num_train=18, num_heldout=0)
    return folder


def task(kind: str = "text", *refs: MediaPart) -> Task:
    message = Message(role="user", parts=(*refs, TextPart(text="Which?")))
    return Task(id="t", messages=(message,), answer="A", source="train.jsonl:7", kind=kind)


def completion(text: str, num_tokens: int) -> Completion:
    return Completion(
        token_ids=np.zeros(num_tokens, np.int32),
        logprobs=np.zeros(num_tokens, np.float32),
        mask=np.ones(num_tokens, bool),
        stop="length" if num_tokens == 3 else "eos",
        versions=(0, 0),
        text=text,
    )


def group(task: Task, id: int = 0) -> Group:
    return Group(
        id=id,
        task=task,
        prompt=PROMPT,
        completions=[completion("A", 2), completion("no idea", 3)],
        scores=[Score(value=1.0, parts={"accuracy": 1.0}), Score(value=-0.5)],
    )


def record(folder: Path, base: Path, num_groups: int = 1, num_steps: int = 1, **options: Any) -> GroupRecord:
    return GroupRecord(folder, num_groups=num_groups, num_steps=num_steps, data=DATA, base=base, **options)


def offer(groups: GroupRecord, kinds_by_step: dict[int, str]) -> None:
    for step, kinds in kinds_by_step.items():
        for kind in kinds:
            groups.offer(step, group(task(kind)))


def kept(folder: Path) -> list[tuple[int, str]]:
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [(r["step"], r["kind"]) for r in records]


# ---- which groups are kept ---------------------------------------------------------------------


def test_places_come_due_evenly_over_the_run(tmp_path: Path) -> None:
    offer(record(tmp_path, tmp_path, 12, 60), dict.fromkeys(range(1, 61), "aa"))
    assert [step for step, _ in kept(tmp_path)] == [1, 6, 11, 16, 21, 26, 31, 36, 41, 46, 51, 56]


def test_a_short_run_fills_the_places_kind_by_kind(tmp_path: Path) -> None:
    offer(record(tmp_path, tmp_path, 4, 1), {1: "abaac"})
    assert kept(tmp_path) == [(1, "a"), (1, "b"), (1, "a"), (1, "c")]  # a third `a` is refused: `b` has but one


@pytest.mark.parametrize(
    ("kinds_by_step", "expected"),
    [
        ({1: "ab", 2: "ab", 3: "ab"}, [(1, "a"), (3, "b")]),  # due at 1 and 3
        ({1: "a", 2: "b", 3: "a", 4: "b"}, [(1, "a"), (4, "b")]),  # `b` has been seen, so `a` waits
        ({1: "a", 3: "ab"}, [(1, "a"), (3, "a")]),  # `b` has not been seen yet
    ],
)
def test_a_due_place_takes_the_rarest_kind_seen(
    tmp_path: Path, kinds_by_step: dict[int, str], expected: list[tuple[int, str]]
) -> None:
    offer(record(tmp_path, tmp_path, 2, 4), kinds_by_step)
    assert kept(tmp_path) == expected


def test_a_place_waits_for_a_rare_kind_until_the_next_is_overdue(tmp_path: Path) -> None:
    # Due at 1, 3 and 5. `b` is seen at 1 and never again: `a` is refused at 3, 4 and 5, and taken at 6.
    offer(record(tmp_path, tmp_path, 3, 6), {1: "ab", **dict.fromkeys(range(2, 7), "aa")})
    assert kept(tmp_path) == [(1, "a"), (6, "a")]


def test_rows_without_a_kind_go_by_modality(tmp_path: Path, base: Path) -> None:
    groups = record(tmp_path, base, 2, 1)
    groups.offer(1, group(task("")))
    groups.offer(1, group(task("", MediaPart(kind="image", ref="media/train-00001-0.png"))))
    assert kept(tmp_path) == [(1, "text"), (1, "image")]


def test_no_groups_are_kept_where_none_are_wanted(tmp_path: Path) -> None:
    offer(record(tmp_path, tmp_path, 0, 4), {1: "a", 4: "a"})
    assert list(tmp_path.iterdir()) == []


# ---- what is written ---------------------------------------------------------------------------


def test_a_record_says_all_about_its_group(tmp_path: Path, base: Path) -> None:
    row = next(task for task in Rows(base / "train.jsonl") if task.kind == "image_audio")
    image, sound = row.media
    record(tmp_path, base).offer(1, group(row, id=41), Advantages(values=np.array([0.75, -0.75], np.float32)))
    question = row.messages[0].parts[-1]
    assert isinstance(question, TextPart)
    assert json.loads((tmp_path / "000.json").read_text()) == {
        "step": 1,
        "group": 41,
        "task": "train-00008",
        "kind": "image_audio",
        "modality": "image+audio",
        "source": "train.jsonl:9",
        "options": list(row.options),
        "answer": row.answer,
        "messages": [
            {
                "role": "user",
                "parts": [
                    {"kind": "image", "file": "000-0.png"},
                    {"kind": "audio", "file": "000-1.wav"},
                    {"kind": "text", "text": question.text},
                ],
            }
        ],
        "completions": [
            {
                "text": "A",
                "score": 1.0,
                "parts": {"accuracy": 1.0},
                "stop": "eos",
                "num_tokens": 2,
                "advantage": 0.75,
            },
            {"text": "no idea", "score": -0.5, "parts": {}, "stop": "length", "num_tokens": 3, "advantage": -0.75},
        ],
    }
    assert (tmp_path / "000-0.png").read_bytes() == (base / image.ref).read_bytes()
    assert (tmp_path / "000-1.wav").read_bytes() == (base / sound.ref).read_bytes()


def test_without_advantages_none_are_written(tmp_path: Path) -> None:
    record(tmp_path, tmp_path).offer(1, group(task()))
    completions = json.loads((tmp_path / "000.json").read_text())["completions"]
    assert [sorted(c) for c in completions] == [["num_tokens", "parts", "score", "stop", "text"]] * 2


def keep(folder: Path, base: Path, part: MediaPart) -> Path:
    """The file that the media part of a recorded group ends up in."""
    record(folder, base).offer(1, group(task("k", part)))
    (path,) = folder.glob("000-*")
    return path


def test_a_video_stays_the_original_file(tmp_path: Path, base: Path) -> None:
    original = next(iter(sorted(base.glob("media/*.mp4"))))
    path = keep(tmp_path, base, MediaPart(kind="video", ref=original.as_uri(), use_audio=False))
    assert path.name == "000-0.mp4"
    assert path.read_bytes() == original.read_bytes()


def encoded(form: str) -> bytes:
    buffer = BytesIO()
    PIL.Image.new("RGB", (4, 4), "red").save(buffer, form)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("form", "suffix"),
    [("PNG", ".png"), ("JPEG", ".jpg"), ("GIF", ".gif"), ("WEBP", ".webp"), ("BMP", ".bmp"), ("TIFF", ".tiff")],
)
def test_bytes_are_written_as_they_are_under_the_suffix_of_their_kind(tmp_path: Path, form: str, suffix: str) -> None:
    data = encoded(form)
    path = keep(tmp_path, tmp_path, MediaPart(kind="image", ref=data))
    assert (path.name, path.read_bytes()) == (f"000-0{suffix}", data)


@pytest.mark.parametrize("suffix", [".wav", ".mp4"])
def test_sounds_and_videos_are_told_by_their_bytes(tmp_path: Path, base: Path, suffix: str) -> None:
    data = next(base.glob(f"media/*{suffix}")).read_bytes()
    assert keep(tmp_path, tmp_path, MediaPart(kind="video", ref=data)).name == f"000-0{suffix}"


def test_bytes_of_an_unknown_kind_are_kept_too(tmp_path: Path) -> None:
    assert keep(tmp_path, tmp_path, MediaPart(kind="audio", ref=b"?" * 20)).name == "000-0.bin"


@pytest.mark.parametrize(
    "ref",
    [
        "data:image/png;base64," + base64.b64encode(encoded("PNG")).decode(),
        {"bytes": encoded("PNG"), "path": None},
    ],
)
def test_data_uris_and_datasets_columns_are_bytes(tmp_path: Path, ref: Any) -> None:
    assert keep(tmp_path, tmp_path, MediaPart(kind="image", ref=ref)).read_bytes() == encoded("PNG")


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [("a.png", encoded("JPEG"), ".jpg"), ("blob", encoded("PNG"), ".png"), ("a.MKA", b"?" * 20, ".mka")],
)
def test_the_suffix_goes_by_the_bytes_before_the_name(tmp_path: Path, name: str, data: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert keep(tmp_path / "groups", tmp_path, MediaPart(kind="image", ref=name)).suffix == expected


def decode(path: Path, part: MediaPart, fps: float = 4) -> Image | Audio | Video:
    copy = MediaPart(kind=part.kind, ref=path.name, use_audio=part.use_audio)
    return load(copy, reach=Reach((path.parent,), path.parent), video=VideoConfig(fps=fps))


@pytest.mark.parametrize("form", ["array", "pil"])
def test_a_decoded_image_becomes_png(tmp_path: Path, form: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    part = MediaPart(kind="image", ref=pixels if form == "array" else PIL.Image.fromarray(pixels))
    path = keep(tmp_path, tmp_path, part)
    image = decode(path, part)
    assert isinstance(image, Image)
    assert path.suffix == ".png"
    np.testing.assert_array_equal(image.pixels, pixels)


def test_a_decoded_sound_becomes_wav(tmp_path: Path) -> None:
    samples = np.array([0.0, 0.5, -0.5, 1.0, -1.0], np.float32)
    part = MediaPart(kind="audio", ref={"array": samples, "sampling_rate": 16_000})
    path = keep(tmp_path, tmp_path, part)
    sound = decode(path, part)
    assert isinstance(sound, Audio)
    assert path.suffix == ".wav"
    np.testing.assert_allclose(sound.samples, samples, atol=1e-4)


def test_a_decoded_video_becomes_mp4_with_its_sound(tmp_path: Path) -> None:
    frames = np.zeros((8, 33, 49, 3), np.uint8)  # odd sizes, which H.264 has not
    frames[4:] = 200
    tone = 0.5 * np.sin(np.arange(32_000) * 2 * np.pi * 440 / 16_000).astype(np.float32)
    sound = {"array": tone, "sampling_rate": 16_000}
    part = MediaPart(kind="video", ref={"frames": frames, "fps": 4.0, "audio": sound}, use_audio=True)
    path = keep(tmp_path, tmp_path, part)
    video = decode(path, part)
    assert isinstance(video, Video)
    assert path.suffix == ".mp4"
    # Of its 8 frames in 2 s the model sees 4, at the default 2 fps, and so does the viewer.
    assert video.frames.shape == (4, 34, 50, 3)
    np.testing.assert_allclose(video.frames.mean(axis=(1, 2, 3)), [0, 0, 200, 200], atol=3)
    assert video.duration_seconds == pytest.approx(2.0, abs=0.01)
    assert video.audio is not None
    assert len(video.audio.samples) / 16_000 == pytest.approx(2.0, abs=0.1)
    assert np.abs(video.audio.samples[8000:24_000]).max() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("ref", "expected"),
    [("gone.png", "train.jsonl:7: gone.png: no such file"), ("../a.png", "train.jsonl:7: ../a.png: lies outside")],
)
def test_media_that_cannot_be_read_any_more_names_the_row(tmp_path: Path, ref: str, expected: str) -> None:
    with pytest.raises(ValueError) as caught:
        keep(tmp_path, tmp_path, MediaPart(kind="image", ref=ref))
    assert str(caught.value).startswith(expected)
    assert list(tmp_path.glob("*.json")) == []


# ---- resuming ----------------------------------------------------------------------------------


def names(folder: Path) -> Sequence[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def filled(tmp_path: Path, base: Path) -> Path:
    """Records of steps 1, 2 and 3, each with an image, and a file of somebody else's."""
    groups = record(tmp_path, base, 6, 6)
    for step in (1, 2, 3):
        groups.offer(step, group(task("a", MediaPart(kind="image", ref="media/train-00001-0.png"))))
    (tmp_path / "notes.txt").touch()
    return tmp_path


def test_a_resumed_run_keeps_what_came_before_the_checkpoint_and_goes_on(filled: Path, base: Path) -> None:
    before = (filled / "001.json").read_bytes()
    groups = record(filled, base, 6, 6, resume_step=2)
    assert names(filled) == ["000-0.png", "000.json", "001-0.png", "001.json", "notes.txt"]
    offer(groups, {2: "a", 3: "b"})  # the place of step 2 is taken
    assert kept(filled) == [(1, "a"), (2, "a"), (3, "b")]
    assert (filled / "001.json").read_bytes() == before


def test_a_resumed_run_knows_the_kinds_that_it_has(filled: Path, base: Path) -> None:
    groups = record(filled, base, 6, 6, resume_step=3)
    offer(groups, {3: "b", 4: "ab"})
    assert kept(filled)[3:] == [(4, "b")]


def test_a_new_run_drops_the_records_of_another(filled: Path, base: Path) -> None:
    record(filled, base, 6, 6)
    assert names(filled) == ["notes.txt"]
