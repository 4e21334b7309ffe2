from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from motet.data.formats.clips import Clips
from motet.data.rows import RowError


def test_inside_is_relative_and_outside_is_absolute(tmp_path: Path) -> None:
    home, away = tmp_path / "rows", tmp_path / "away"
    for folder in (home / "in", away / "deep"):
        folder.mkdir(parents=True)
        (folder / f"{folder.name}.wav").touch()
    clips = Clips((away, home), home)
    assert clips.reference("in/in.wav") == "in/in.wav"
    assert clips.roots == ()
    assert clips.reference("deep/deep.wav") == str(away / "deep/deep.wav")
    assert clips.reference(str(away / "deep/deep.wav")) == str(away / "deep/deep.wav")
    assert clips.reference(f"file://{home}/in/in.wav") == "in/in.wav"
    assert clips.roots == (home, away / "deep")
    (away / "a.wav").touch()
    clips.reference("a.wav")
    assert clips.roots == (home, away)


def test_a_link_out_of_the_folder_is_outside(tmp_path: Path) -> None:
    home, away = tmp_path / "rows", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    (away / "a.wav").touch()
    (home / "a.wav").symlink_to(away / "a.wav")
    clips = Clips((home,), home)
    assert clips.reference("a.wav") == "a.wav"
    assert clips.roots == (away,)


def test_the_first_folder_that_has_one(tmp_path: Path) -> None:
    for name in ("one/b.wav", "two/a.wav", "two/b.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    clips = Clips((tmp_path / "one", tmp_path / "two"), tmp_path)
    assert [clips.reference(name) for name in ("a.wav", "b.wav")] == ["two/a.wav", "one/b.wav"]
    assert clips.find(["a.wav", "b.wav"]) == tmp_path / "two/a.wav"  # the name counts before the folder


@pytest.mark.parametrize("ref", ["https://example.org/a.png", "HTTP://example.org/a.png", "data:image/png;base64,AAAA"])
def test_addresses_and_data_stay(tmp_path: Path, ref: str) -> None:
    assert Clips((tmp_path,), tmp_path).reference(ref) == ref


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("no.wav", "missing_clip"),
        ("x" * 5000, "missing_clip"),
        ("a\0.wav", "missing_clip"),
        ({"path": "no.wav", "bytes": None}, "missing_clip"),
        ("", "bad_media"),
        (None, "bad_media"),
        ({"path": None}, "bad_media"),
        (7, "bad_media"),
    ],
)
def test_no_clip(tmp_path: Path, ref: Any, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        Clips((tmp_path,), tmp_path).reference(ref)
    assert caught.value.reason == reason
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
