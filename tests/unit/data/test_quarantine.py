from __future__ import annotations

import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from motet.config.schema import VideoConfig
from motet.data import media
from motet.data.media import Image, Media, MediaError
from motet.data.quarantine import Quarantine
from motet.data.reference import Reach
from motet.types import MediaKind, MediaPart


class Load:
    """`media.load`, counted."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, part: MediaPart, *, reach: Reach, video: VideoConfig) -> Media:
        self.calls[str(part.ref)[:20]] += 1
        return media.load(part, reach=reach, video=video)


@pytest.fixture
def load() -> Load:
    return Load()


def ask(load: Any, folder: Path, ref: Any, kind: MediaKind = "image") -> Media:
    return load(MediaPart(kind=kind, ref=ref), reach=Reach((folder,), folder), video=VideoConfig())


def reason(load: Any, folder: Path, ref: Any, kind: MediaKind = "image") -> str:
    with pytest.raises(MediaError) as error:
        ask(load, folder, ref, kind)
    return str(error.value)


def lines(path: Path) -> list[dict[str, str]]:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for entry in entries:
        assert len(entry.pop("clip")) == 64
    return entries


def test_a_clip_that_fails_is_named_once_and_not_tried_again(tmp_path: Path, load: Load) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")
    quarantine = Quarantine(load, tmp_path / "quarantine.jsonl")
    first = reason(quarantine, tmp_path, "bad.png")
    assert first == reason(media.load, tmp_path, "bad.png") == reason(quarantine, tmp_path, "bad.png")
    assert load.calls == {"bad.png": 1}
    assert lines(tmp_path / "quarantine.jsonl") == [
        {"kind": "image", "ref": "bad.png", "reason": first.removeprefix("bad.png: ")}
    ]
    assert len(quarantine) == 1


def test_a_clip_that_is_read_is_not_named(tmp_path: Path, load: Load) -> None:
    PIL.Image.new("RGB", (3, 2)).save(tmp_path / "a.png")
    quarantine = Quarantine(load, tmp_path / "quarantine.jsonl")
    for _ in range(2):
        assert isinstance(ask(quarantine, tmp_path, "a.png"), Image)
    assert load.calls == {"a.png": 2}
    assert not (tmp_path / "quarantine.jsonl").exists()


def test_what_was_wrong_for_one_kind_may_be_right_for_another(tmp_path: Path, load: Load) -> None:
    PIL.Image.new("RGB", (3, 2)).save(tmp_path / "a.png")
    quarantine = Quarantine(load, tmp_path / "quarantine.jsonl")
    assert "sound" in reason(quarantine, tmp_path, "a.png", "audio")
    assert isinstance(ask(quarantine, tmp_path, "a.png"), Image)


def test_a_file_that_was_put_right_is_tried_again(tmp_path: Path, load: Load) -> None:
    quarantine = Quarantine(load, tmp_path / "quarantine.jsonl")
    assert "no such file" in reason(quarantine, tmp_path, "a.png")
    (tmp_path / "a.png").write_bytes(b"no picture")
    assert "not one of" in reason(quarantine, tmp_path, "a.png")
    (tmp_path / "a.png").write_bytes(b"NO PICTURE")
    os.utime(tmp_path / "a.png", ns=(0, 12345))
    assert "not one of" in reason(quarantine, tmp_path, "a.png")
    PIL.Image.new("RGB", (3, 2)).save(tmp_path / "a.png")
    assert isinstance(ask(quarantine, tmp_path, "a.png"), Image)
    assert load.calls == {"a.png": 4}
    assert len(lines(tmp_path / "quarantine.jsonl")) == 3


def test_the_same_name_under_another_base_is_another_file(tmp_path: Path, load: Load) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    PIL.Image.new("RGB", (3, 2)).save(tmp_path / "two" / "a.png")
    quarantine = Quarantine(load, tmp_path / "quarantine.jsonl")
    assert "no such file" in reason(quarantine, tmp_path / "one", "a.png")
    assert isinstance(ask(quarantine, tmp_path / "two", "a.png"), Image)


@pytest.mark.parametrize(
    "ref", [b"bytes", bytearray(b"bytes"), {"bytes": b"bytes"}, "data:image/png;base64,AAAA", "\0"]
)
def test_whatever_names_a_file_is_known_again(tmp_path: Path, load: Load, ref: Any) -> None:
    quarantine = Quarantine(load, tmp_path / "quarantine.jsonl")
    assert reason(quarantine, tmp_path, ref) == reason(quarantine, tmp_path, ref)
    assert load.calls.total() == 1
    assert isinstance(ask(quarantine, tmp_path, PIL.Image.new("RGB", (3, 2))), Image)


def test_other_bytes_of_the_same_length_are_another_clip(tmp_path: Path, load: Load) -> None:
    quarantine = Quarantine(load, tmp_path / "quarantine.jsonl")
    assert reason(quarantine, tmp_path, b"one") == reason(quarantine, tmp_path, b"two")
    assert load.calls.total() == 2


def test_decoded_objects_are_always_tried(tmp_path: Path, load: Load) -> None:
    quarantine = Quarantine(load, tmp_path / "quarantine.jsonl")
    for _ in range(2):
        reason(quarantine, tmp_path, {"array": [0.0], "sampling_rate": 0}, "audio")
    assert load.calls.total() == 2
    assert not (tmp_path / "quarantine.jsonl").exists()


def test_the_list_outlives_the_run(tmp_path: Path, load: Load) -> None:
    path = tmp_path / "quarantine.jsonl"
    first = [reason(Quarantine(load, path), tmp_path, ref) for ref in ("a.png", "b.png")]
    path.write_text(path.read_text() + '{"kind": "image", "ref": "cut by a cr')
    again = Quarantine(load, path)
    assert len(again) == 2
    assert [reason(again, tmp_path, ref) for ref in ("a.png", "b.png", "c.png")][:2] == first
    assert load.calls == {"a.png": 1, "b.png": 1, "c.png": 1}
    assert [entry["ref"] for entry in lines(path)] == ["a.png", "b.png", "c.png"]


def test_threads_that_fail_at_the_same_clip_name_it_once(tmp_path: Path) -> None:
    quarantine = Quarantine(media.load, tmp_path / "quarantine.jsonl")
    with ThreadPoolExecutor(8) as threads:
        reasons = list(threads.map(lambda n: reason(quarantine, tmp_path, f"{n % 5}.png"), range(100)))
    assert len(set(reasons)) == 5
    assert sorted(entry["ref"] for entry in lines(tmp_path / "quarantine.jsonl")) == [f"{n}.png" for n in range(5)]
