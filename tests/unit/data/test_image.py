"""Images of every kind become the RGB that they show."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from motet.data import container
from motet.data.media import Image, MediaError

RGB = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def png(image: PIL.Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_transparent_parts_are_white(tmp_path: Path, load_image: Callable[..., Image]) -> None:
    rgba = np.array([[[255, 0, 0, 255], [255, 0, 0, 128], [255, 0, 0, 0]]], np.uint8)
    PIL.Image.fromarray(rgba).save(tmp_path / "rgba.png")
    expected = [[[255, 0, 0], [255, 127, 127], [255, 255, 255]]]
    assert load_image("rgba.png", tmp_path).pixels.tolist() == expected
    # One colour of a palette can be the transparent one.
    palette = PIL.Image.fromarray(np.array([[0, 1]], np.uint8), mode="P")
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.save(tmp_path / "palette.png", transparency=1)
    assert load_image("palette.png", tmp_path).pixels.tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_sixteen_bit_gray_is_scaled_to_eight(tmp_path: Path, load_image: Callable[..., Image]) -> None:
    levels = np.array([[0, 128, 129, 257 * 100, 65535]], np.uint16)
    PIL.Image.fromarray(levels).save(tmp_path / "gray.png")
    assert load_image("gray.png", tmp_path).pixels.tolist() == [[[0] * 3, [0] * 3, [1] * 3, [100] * 3, [255] * 3]]
    assert load_image(PIL.Image.open(tmp_path / "gray.png")).content == load_image("gray.png", tmp_path).content


def test_gray_is_three_equal_channels(tmp_path: Path, load_image: Callable[..., Image]) -> None:
    gray = np.array([[0, 7], [200, 255]], np.uint8)
    PIL.Image.fromarray(gray).save(tmp_path / "gray.png")
    assert load_image("gray.png", tmp_path).pixels.tolist() == [[[0] * 3, [7] * 3], [[200] * 3, [255] * 3]]
    assert load_image(gray).content == load_image("gray.png", tmp_path).content


def test_exif_rotation_is_applied(tmp_path: Path, load_image: Callable[..., Image]) -> None:
    stored = np.zeros((16, 32, 3), np.uint8)
    stored[:, 16:] = 255  # black left, white right
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # shown rotated by a quarter to the right: left becomes top
    PIL.Image.fromarray(stored).save(tmp_path / "phone.jpg", exif=exif)
    pixels = load_image("phone.jpg", tmp_path).pixels
    assert pixels.shape == (32, 16, 3)
    assert pixels[:14].max() < 20
    assert pixels[18:].min() > 235


def test_a_truncated_png_is_an_error_that_names_it(tmp_path: Path, load_image: Callable[..., Image]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    PIL.Image.fromarray(noise).save(tmp_path / "whole.png")
    data = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(MediaError, match=r"^cut\.png: cannot be decoded: .*truncated"):
        load_image("cut.png", tmp_path)
    with PIL.Image.open(tmp_path / "cut.png") as lazy, pytest.raises(MediaError, match=r"^<PngImageFile>: .*truncated"):
        load_image(lazy)


def test_pixels_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch, load_image: Callable[..., Image]) -> None:
    monkeypatch.setattr(container, "MAX_PIXELS", 100)
    assert load_image(PIL.Image.new("RGB", (20, 5))).pixels.shape == (5, 20, 3)
    with pytest.raises(MediaError, match="101 x 1 pixels; at most 100 are read: scale it down"):
        load_image(PIL.Image.new("RGB", (101, 1)))
    with pytest.raises(MediaError, match="1 x 101 pixels"):
        load_image(png(PIL.Image.new("RGB", (1, 101))))


def test_formats_that_run_foreign_programs_are_not_read(tmp_path: Path, load_image: Callable[..., Image]) -> None:
    PIL.Image.fromarray(RGB).save(tmp_path / "a.eps")
    with pytest.raises(MediaError, match=r"^a\.eps: cannot be decoded: not one of PNG"):
        load_image("a.eps", tmp_path)
    for name in ("a.webp", "a.gif", "a.bmp", "a.tiff", "a.ppm"):
        PIL.Image.fromarray(RGB).save(tmp_path / name)
        assert load_image(name, tmp_path).pixels.shape == (4, 6, 3)


def test_float_and_deep_images_are_refused(tmp_path: Path, load_image: Callable[..., Image]) -> None:
    with pytest.raises(MediaError, match="its pixels are floats"):
        load_image(PIL.Image.fromarray(np.zeros((2, 2), np.float32)))
    with pytest.raises(MediaError, match="more than 16 bits"):
        load_image(PIL.Image.fromarray(np.full((2, 2), 65536, np.int32)))
    assert load_image(PIL.Image.fromarray(np.full((1, 1), 65535, np.int32))).pixels.tolist() == [[[255, 255, 255]]]


@pytest.mark.parametrize(("mode", "name"), [("RGB", "a.gif"), ("RGB", "a.webp"), ("RGB", "a.tiff"), ("RGB", "a.png")])
def test_of_several_pictures_the_first_is_read(
    tmp_path: Path, load_image: Callable[..., Image], mode: str, name: str
) -> None:
    pages = [PIL.Image.new(mode, (8, 8), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    options: dict[str, Any] = {"lossless": True} if name == "a.webp" else {}
    pages[0].save(tmp_path / name, save_all=True, append_images=pages[1:], **options)
    with PIL.Image.open(tmp_path / name) as written:
        assert written.n_frames == 3
    assert np.abs(load_image(name, tmp_path).pixels.astype(int) - [255, 0, 0]).max() == 0


def test_a_partly_transparent_gif_frame_and_palette_alpha_are_on_white(
    tmp_path: Path, load_image: Callable[..., Image]
) -> None:
    gif = PIL.Image.fromarray(np.array([[0, 1]], np.uint8), mode="P")
    gif.putpalette([10, 20, 30, 40, 50, 60])
    gif.save(tmp_path / "a.gif", transparency=0)
    assert load_image("a.gif", tmp_path).pixels.tolist() == [[[255, 255, 255], [40, 50, 60]]]
    gif.save(tmp_path / "a.png", transparency=bytes([255, 128]))  # an alpha for each colour
    assert load_image("a.png", tmp_path).pixels.tolist() == [[[10, 20, 30], [147, 152, 157]]]


def test_deep_colour_and_deep_transparency_are_scaled(tmp_path: Path, load_image: Callable[..., Image]) -> None:
    (tmp_path / "rgb.png").write_bytes(png_file(2, np.array([[[0, 0x80FF, 0xFFFF]]], ">u2")))
    assert load_image("rgb.png", tmp_path).pixels.tolist() == [[[0, 0x80, 255]]]
    (tmp_path / "rgba.png").write_bytes(png_file(6, np.array([[[0xFFFF, 0, 0, 0xFFFF], [0, 0, 0, 0]]], ">u2")))
    assert load_image("rgba.png", tmp_path).pixels.tolist() == [[[255, 0, 0], [255, 255, 255]]]
    # Gray of 16 bits, of which one level is transparent.
    (tmp_path / "gray.png").write_bytes(png_file(0, np.array([[[257], [258], [0]]], ">u2"), b"\x01\x02"))
    assert load_image("gray.png", tmp_path).pixels.tolist() == [[[1] * 3, [255] * 3, [0] * 3]]


def png_file(colour_type: int, pixels: np.ndarray, transparent: bytes = b"") -> bytes:
    """16 bits a channel, which Pillow does not write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    optional = chunk(b"tRNS", transparent) if transparent else b""
    body = chunk(b"IHDR", header) + optional + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_cmyk_is_converted(tmp_path: Path, load_image: Callable[..., Image]) -> None:
    inks = PIL.Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # magenta and yellow: red
    inks.save(tmp_path / "a.tiff")
    inks.save(tmp_path / "a.jpg", quality=95)
    assert load_image("a.tiff", tmp_path).pixels[8, 8].tolist() == [255, 0, 0]
    assert np.abs(load_image("a.jpg", tmp_path).pixels[8, 8].astype(int) - [255, 0, 0]).max() < 8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_upright(
    tmp_path: Path, load_image: Callable[..., Image], orientation: int
) -> None:
    """The pixel at the top left of what is shown, and its neighbours, for the eight ways to store a picture."""
    stored = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    shown = [
        stored,
        stored[:, ::-1],
        stored[::-1, ::-1],
        stored[::-1],
        stored.T,
        stored[::-1].T,
        stored[::-1, ::-1].T,
        stored[:, ::-1].T,
    ][orientation - 1]
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    PIL.Image.fromarray(stored).save(tmp_path / "a.png", exif=exif)
    assert load_image("a.png", tmp_path).pixels[..., 0].tolist() == shown.tolist()


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path: Path, load_image: Callable[..., Image]) -> None:
    (tmp_path / "bomb.png").write_bytes(png_file(0, np.zeros((1, 1, 1), ">u2")))
    data = bytearray((tmp_path / "bomb.png").read_bytes())
    data[16:24] = struct.pack(">II", 8001, 8000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    (tmp_path / "bomb.png").write_bytes(data)
    with pytest.raises(MediaError, match=r"^bomb\.png: 8001 x 8000 pixels; at most 64000000 are read: scale it down"):
        load_image("bomb.png", tmp_path)
    with pytest.raises(MediaError, match="8001 x 8000 pixels"):
        load_image(np.broadcast_to(np.zeros(3, np.uint8), (8000, 8001, 3)))


def test_the_image_given_is_left_as_it_is(load_image: Callable[..., Image]) -> None:
    image = PIL.Image.new("RGB", (2, 1), "red")
    image.getexif()[0x0112] = 6
    assert load_image(image).pixels.shape == (2, 1, 3)
    assert image.size == (2, 1)
