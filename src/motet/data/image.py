"""Images become RGB pixels: upright, 8 bits, transparent parts on white."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
from numpy.typing import NDArray

from motet.data.container import check_pixels, content_hash, decoder_errors, open_file
from motet.data.errors import MediaError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""No more than these: some of Pillow's other formats (EPS) run foreign programs."""
ORIENTATION = 0x0112
"""The EXIF entry that says how to turn the pixels; 1 is upright."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Image:
    pixels: NDArray[np.uint8]
    """[H, W, 3], RGB, upright, transparent parts on white"""
    content: str
    """Hash of the pixels."""


def read_image(source: Any) -> Image:
    """Decode a file (a path or bytes), a PIL image, u8[H, W, 3] or u8[H, W]. Of several pages, the first."""
    if isinstance(source, Path | bytes):
        with (
            decoder_errors(f"not one of {', '.join(FORMATS)}"),
            open_file(source) as file,
            PIL.Image.open(file, formats=FORMATS) as image,
        ):
            pixels = _rgb(image)
    elif isinstance(source, PIL.Image.Image):
        with decoder_errors():
            pixels = _rgb(source)
    elif isinstance(source, np.ndarray):
        rgb = np.repeat(source[..., None], 3, axis=-1) if source.ndim == 2 else source
        pixels = check_uint8(rgb, "[H, W, 3] or [H, W]", ndim=3)
    else:
        raise MediaError("not an image; give a path, address, data URI, bytes, PIL image or uint8 array")
    return Image(pixels=pixels, content=content_hash("image", pixels))


def check_uint8(pixels: NDArray[Any], shape: str, *, ndim: int) -> NDArray[np.uint8]:
    if pixels.dtype != np.uint8 or pixels.ndim != ndim or pixels.shape[-1] != 3 or not pixels.size:
        raise MediaError(f"{pixels.dtype} array of shape {list(pixels.shape)}; give uint8 {shape}, 0 to 255")
    check_pixels(pixels.shape[-2], pixels.shape[-3])
    return pixels


def _rgb(image: PIL.Image.Image) -> NDArray[np.uint8]:
    check_pixels(image.width, image.height)
    if image.getexif().get(ORIENTATION, 1) != 1:
        image = PIL.ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise MediaError("its pixels are floats; save it with 8 bits per channel")
    if image.mode.startswith("I"):
        image = _eight_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        white = PIL.Image.new("RGBA", image.size, "white")
        image = PIL.Image.alpha_composite(white, image.convert("RGBA"))
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _eight_bits(image: PIL.Image.Image) -> PIL.Image.Image:
    """16-bit gray, which Pillow's own conversion clips at 255 instead of scaling."""
    levels = np.asarray(image).astype(np.int64)
    if levels.min() < 0 or levels.max() > 65535:
        raise MediaError("its pixels have more than 16 bits; save it with 8 bits per channel")
    gray = PIL.Image.fromarray(((levels + 128) // 257).astype(np.uint8))
    if "transparency" not in image.info:
        return gray
    gray.putalpha(PIL.Image.fromarray(np.where(levels == image.info["transparency"], 0, 255).astype(np.uint8)))
    return gray
