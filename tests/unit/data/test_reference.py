"""What a reference leads to, and what it may not reach."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from motet.config.schema import DataConfig
from motet.data.media import Image, MediaError, describe
from motet.data.reference import Reach, resolve

RGB = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def test_paths_are_held_to_the_roots(tmp_path: Path, load_image: Callable[..., Image]) -> None:
    inside, outside = tmp_path / "rows", tmp_path / "media"
    inside.mkdir()
    outside.mkdir()
    PIL.Image.fromarray(RGB).save(outside / "a.png")
    (inside / "link.png").symlink_to(outside / "a.png")
    for ref in ("../media/a.png", str(outside / "a.png"), (outside / "a.png").as_uri(), "link.png"):
        with pytest.raises(MediaError, match=r"a\.png|link\.png: lies outside data\.media_roots \(.*rows\); add"):
            load_image(ref, inside)
        assert load_image(ref, inside, roots=(inside, outside)).pixels.shape == (4, 6, 3)
    with pytest.raises(MediaError, match="lies outside"):
        load_image("link.png", inside, roots=(inside,))
    # The base is where relative paths start, not a root beside those that are given.
    PIL.Image.fromarray(RGB).save(inside / "b.png")
    with pytest.raises(MediaError, match="lies outside"):
        load_image("b.png", inside, roots=(outside,))


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("gone.png", r"^gone\.png: no such file: .*/gone\.png$"),
        (".", r"^\.: no such file"),
        (
            "https://a.org/x.png",
            r"^https://a\.org/x\.png: a\.org is not in data\.url_hosts; add it, or download the file",
        ),
        ("s3://bucket/x.png", r"s3:// is not read; give a path or a file://, http:// or https:// address"),
        ("file://x.png", r"^file://x\.png: a file:// URI takes an absolute path, as in file:///data/a\.png$"),
        ("data:image/png,abc", "only base64 data URIs are read"),
        ("data:image/png;base64,a*bcd", "not valid base64"),
        ("a\0b\n", r"^'a\\x00b\\n': not a usable path"),
        ("x" * 5000, r"^x{60}\.\.\. \(5000 characters\): not a usable path"),
        (b"1234", r"^<bytes, 4>: cannot be decoded: not one of PNG, JPEG"),
        (17, r"^<int>: not an image; give a path"),
        ({"url": "a.png"}, r"^<object with url>: not an image"),
        ({"bytes": None, "path": None}, r"^<object with bytes, path>: not an image"),
        (np.zeros((2, 2, 3), np.float32), r"^<float32 array \[2, 2, 3\]>: float32 array of shape .*; give uint8"),
        (np.zeros((2, 2, 4), np.uint8), r"give uint8 \[H, W, 3\] or \[H, W\]"),
        (np.zeros((0, 2, 3), np.uint8), r"give uint8"),
    ],
)
def test_a_bad_reference_is_one_line_with_its_name(
    tmp_path: Path, ref: Any, message: str, load_image: Callable[..., Image]
) -> None:
    with pytest.raises(MediaError, match=message) as caught:
        load_image(ref, tmp_path)
    assert "\n" not in str(caught.value)


def test_long_references_are_shortened_from_121_characters_on() -> None:
    assert describe("a" * 120) == "a" * 120
    assert describe("a" * 121) == "a" * 60 + "... (121 characters)"
    assert describe({"bytes": b"123", "path": None}) == "<bytes, 3>"
    assert describe({"bytes": b"123", "path": "x.wav"}) == "x.wav"


def test_files_up_to_the_limit_are_read(tmp_path: Path, load_image: Callable[..., Image]) -> None:
    PIL.Image.fromarray(RGB).save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    refs = ["a.png", data, memoryview(data), base64.b64encode(data).decode(), {"bytes": data, "path": None}]
    for ref in refs:
        assert load_image(ref, tmp_path, max_file_bytes=len(data)).pixels.shape == (4, 6, 3)
        with pytest.raises(MediaError, match=f"holds {len(data)} bytes; at most data.max_file_bytes = {len(data) - 1}"):
            load_image(ref, tmp_path, max_file_bytes=len(data) - 1)


def test_what_may_be_reached_follows_the_settings(tmp_path: Path) -> None:
    assert Reach.of(DataConfig(train="a"), tmp_path) == Reach((tmp_path,), tmp_path, (), 1 << 30)
    data = DataConfig(train="a", media_roots=("m", "/n"), url_hosts=("a.org",), max_file_bytes=7)
    reach = Reach.of(data, tmp_path)
    assert reach == Reach((Path("m"), Path("/n")), tmp_path, ("a.org",), 7)
    assert pickle.loads(pickle.dumps(reach)) == reach  # it goes to the processes that decode


# ---- base64 or path ----------------------------------------------------------------------------


def smallest_gif() -> bytes:
    return base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")


@pytest.mark.parametrize(
    "head",
    [
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",  # looks like the absolute path /9j/4...
        b"GIF89a",
        b"RIFF\x24\x00\x00\x00WEBP",
        b"RIFF\x24\x00\x00\x00WAVE",
        b"fLaC",
        b"OggS",
        b"ID3\x04",
        b"\x00\x00\x00\x20ftypisom",
        b"\x1aE\xdf\xa3",
        b"RIFF\x24\x00\x00\x00AVI ",
    ],
)
def test_base64_is_known_by_the_file_in_it(tmp_path: Path, head: bytes) -> None:
    data = head + bytes(100)
    assert resolve(base64.b64encode(data).decode(), Reach((tmp_path,), tmp_path)) == data


def test_the_smallest_file_in_base64_is_an_image(load_image: Callable[..., Image]) -> None:
    assert load_image(base64.b64encode(smallest_gif()).decode()).pixels.shape == (1, 1, 3)


def test_paths_that_look_like_base64_are_paths(tmp_path: Path) -> None:
    reach = Reach((tmp_path,), tmp_path)
    names = [
        "A" * 64,  # base64, of no media file
        "iVBORw0KGgo",  # begins as a PNG does, and is too short to be one
        base64.b64encode(b"BM" + bytes(33)).decode()[:47],
        base64.b64encode(b"\x89PNG" + bytes(60)).decode().rstrip("=") + ".png",
        base64.b64encode(b"\x89PNG" + bytes(60)).decode()[:60] + "-1",
    ]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
        assert resolve(name, reach) == tmp_path / name
    path = Path(base64.b64encode(b"GIF8" + bytes(60)).decode().rstrip("="))
    (tmp_path / path).write_bytes(b"x")
    assert resolve(path, reach) == tmp_path / path  # a Path object is a path


def test_base64_that_is_damaged_is_no_file_name(load_image: Callable[..., Image]) -> None:
    with pytest.raises(MediaError, match=r"^iVBOR.*: not valid base64: "):
        load_image(base64.b64encode(b"\x89PNG" + bytes(60)).decode().rstrip("=")[:-1])
