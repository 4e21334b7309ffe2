from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from motet.data.formats import avqa
from motet.data.formats.clips import Clips
from motet.data.reference import MediaError
from motet.data.rows import RowError, to_task


def parse(row: Any) -> Any:
    return to_task(row, source="train_qa.json[0]", default_id="")


def test_the_clip_with_its_sound(published: Any, made: Any, clips: Clips) -> None:
    made.mp4("-HG3Omg_89c_000030.mp4")
    row = avqa.row(published("avqa_train_qa.json")[0], clips)
    assert row == {
        "id": "183",
        "kind": "view_happening",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "video", "video": "clips/-HG3Omg_89c_000030.mp4", "use_audio": True},
                    {"type": "text", "text": "What happened in the video?"},
                ],
            }
        ],
        "options": ["motorboat", "Yacht consignment", "Sailboat set sail", "Consignment car"],
        "answer": "B",
    }
    task = parse(row)
    assert (task.id, task.answer, task.modality) == ("183", "B", "video+audio")


def test_options_that_are_letters(published: Any, made: Any, clips: Clips) -> None:
    made.mp4("--0PQM4-hqg_000030.mp4")
    row = avqa.row(published("avqa_train_qa.json")[2], clips)
    assert (row["options"], row["answer"]) == (["C", "D", "A", "B"], "C. A")
    assert parse(row).answer == "C"


@pytest.mark.parametrize(
    ("video_name", "file"),
    [
        ("-HG3Omg_89c_000030", "-HG3Omg_89c_000030.mp4"),
        ("-HG3Omg_89c_000030", "-HG3Omg_89c_30.mp4"),
        ("-HG3Omg_89c_30", "-HG3Omg_89c_000030.webm"),
        ("-HG3Omg_89c_000030.mp4", "-HG3Omg_89c_000030.mp4"),
        ("clip", "clip.mkv"),
    ],
)
def test_names_of_files(published: Any, made: Any, clips: Clips, video_name: str, file: str) -> None:
    made.path(file).touch()
    row = avqa.row({**published("avqa_train_qa.json")[0], "video_name": video_name}, clips)
    assert row["messages"][0]["content"][0]["video"] == f"clips/{file}"


def test_another_second_is_another_clip(published: Any, made: Any, clips: Clips) -> None:
    made.mp4("-HG3Omg_89c_000031.mp4")
    with pytest.raises(RowError) as caught:
        avqa.row(published("avqa_train_qa.json")[0], clips)
    assert caught.value.reason == "missing_clip"
    assert str(caught.value) == f"no file for -HG3Omg_89c_000030 in {made.folder}"


def test_picture_and_sound_are_taken_from_the_video(published: Any, made: Any, clips: Clips, tmp_path: Path) -> None:
    made.mp4("-HG3Omg_89c_000030.mp4")
    row = avqa.row(published("avqa_train_qa.json")[0], clips, form="image+audio")
    assert row["messages"][0]["content"][:2] == [
        {"type": "image", "image": "media/-HG3Omg_89c_000030.png"},
        {"type": "audio", "audio": "media/-HG3Omg_89c_000030.wav"},
    ]
    assert parse(row).modality == "image+audio"
    with Image.open(tmp_path / "media/-HG3Omg_89c_000030.png") as image:
        assert (image.format, image.size) == ("PNG", (32, 32))
        # Of 2 s, frame 5 is shown from 1.0 s on; its neighbours are 20 levels away.
        assert np.abs(np.asarray(image).astype(int) - 100).max() < 8
    with wave.open(str(tmp_path / "media/-HG3Omg_89c_000030.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert 2.0 <= len(samples) / 16000 < 2.3  # AAC pads
    spectrum = np.abs(np.fft.rfft(samples[8000:24000]))  # one second: a bin for each Hz
    assert spectrum.argmax() == 440
    assert np.abs(samples[8000:24000]).max() == pytest.approx(16000, rel=0.05)
    assert sorted(path.name for path in (tmp_path / "media").iterdir()) == [
        "-HG3Omg_89c_000030.png",
        "-HG3Omg_89c_000030.wav",
    ]


def test_files_that_exist_are_used(published: Any, made: Any, clips: Clips, tmp_path: Path) -> None:
    made.png("-HG3Omg_89c_000030.jpg")
    made.wav("-HG3Omg_89c_30.wav")
    row = avqa.row(published("avqa_train_qa.json")[0], clips, form="image+audio")
    assert row["messages"][0]["content"][:2] == [
        {"type": "image", "image": "clips/-HG3Omg_89c_000030.jpg"},
        {"type": "audio", "audio": "clips/-HG3Omg_89c_30.wav"},
    ]
    assert not (tmp_path / "media").exists()


def test_what_was_extracted_before_is_kept(published: Any, made: Any, clips: Clips, tmp_path: Path) -> None:
    made.mp4("-HG3Omg_89c_000030.mp4")
    item = published("avqa_train_qa.json")[0]
    avqa.row(item, clips, form="audio")
    (tmp_path / "media/-HG3Omg_89c_000030.wav").write_bytes(b"kept")
    row = avqa.row(item, clips, form="audio")
    assert [part["type"] for part in row["messages"][0]["content"]] == ["audio", "text"]
    assert (tmp_path / "media/-HG3Omg_89c_000030.wav").read_bytes() == b"kept"


def test_a_silent_or_damaged_clip_gives_no_half_row(published: Any, made: Any, clips: Clips, tmp_path: Path) -> None:
    item = published("avqa_train_qa.json")[0]
    path = made.mp4("-HG3Omg_89c_000030.mp4", with_sound=False)
    with pytest.raises(MediaError, match="has no sound track"):
        avqa.row(item, clips, form="audio")
    path.write_bytes(b"not a video")
    with pytest.raises(MediaError, match=r"000030\.mp4: cannot be decoded: Invalid data"):
        avqa.row(item, clips, form="image+audio")
    assert not (tmp_path / "media").exists()


@pytest.mark.parametrize(("answer", "letter"), [(0, "A"), (3, "D"), (4, None), (-1, None), ("B", None), (True, None)])
def test_the_answer_is_an_index(published: Any, made: Any, clips: Clips, answer: Any, letter: str | None) -> None:
    made.path("-HG3Omg_89c_000030.mp4").touch()
    item = {**published("avqa_train_qa.json")[0], "answer": answer}
    if letter is not None:
        assert avqa.row(item, clips)["answer"] == letter
    else:
        with pytest.raises(RowError, match="is no index into its 4 options") as caught:
            avqa.row(item, clips)
        assert caught.value.reason == "bad_answer"


@pytest.mark.parametrize("name", ["id", "video_name", "question_text", "multi_choice", "answer"])
def test_a_field_that_is_missing(published: Any, made: Any, clips: Clips, name: str) -> None:
    made.path("-HG3Omg_89c_000030.mp4").touch()
    with pytest.raises(RowError, match=f"has no {name}") as caught:
        avqa.row({**published("avqa_train_qa.json")[0], name: None}, clips)
    assert caught.value.reason == "missing_field"
