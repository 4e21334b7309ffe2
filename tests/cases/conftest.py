"""What the cases share beside tests/conftest.py: renderers by their settings, and writers of media files that come
back exactly as they were written. The tiny checkpoint, its Thinker, feature store and trainer are fixtures there."""

from __future__ import annotations

import wave
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import PIL.Image
import pytest

if TYPE_CHECKING:
    from motet.models.qwen3_omni.render import Renderer


@pytest.fixture(scope="session")
def processor(random_checkpoint: Path) -> Any:
    """The model's own Hugging Face processor, loaded apart from any renderer."""
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(random_checkpoint)


@pytest.fixture(scope="session")
def make_renderer(random_checkpoint: Path) -> Callable[..., Renderer]:
    """`make_renderer(base, **data)`: rows start from the folder `base`; `data` are settings of `DataConfig`. By
    default frames keep their size from 64 x 64 to 256 x 256 and are sampled at 2 per second, at most 16 of them."""
    from motet.config.schema import DataConfig, VideoConfig
    from motet.models.qwen3_omni.render import Renderer

    def make(base: Path = Path("."), *, checkpoint: Path = random_checkpoint, **data: Any) -> Renderer:
        video = VideoConfig(fps=2, max_frames=16, min_pixels=4096, max_pixels=65536)
        return Renderer(checkpoint, DataConfig(**({"train": "", "video": video} | data)), base)

    return make


@pytest.fixture(scope="session")
def write_image() -> Callable[[Path, np.ndarray], Path]:
    """`write_image(path, u8[H, W, 3])`: lossless as `.png`."""

    def write(path: Path, pixels: np.ndarray) -> Path:
        PIL.Image.fromarray(pixels).save(path)
        return path

    return write


@pytest.fixture(scope="session")
def write_sound() -> Callable[..., Path]:
    """`write_sound(path, f32[N], rate=16_000)`: a WAV of 16 bits; multiples of 1 / 32768 come back as they are."""

    def write(path: Path, samples: np.ndarray, rate: int = 16_000) -> Path:
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes((np.clip(samples, -1, 32767 / 32768) * 32768).astype("<i2").tobytes())
        return path

    return write


@pytest.fixture(scope="session")
def write_video() -> Callable[..., Path]:
    """`write_video(path, u8[F, H, W, 3], fps, sound=f32[N], rate=16_000)`: a lossless `.mkv` (FFV1, 16-bit PCM)."""

    def write(
        path: Path, frames: np.ndarray, fps: float, *, sound: np.ndarray | None = None, rate: int = 16_000
    ) -> Path:
        with av.open(str(path), "w") as container:
            video = container.add_stream("ffv1", rate=Fraction(fps).limit_denominator(1001))
            video.height, video.width = frames.shape[1:3]
            video.pix_fmt = "bgr0"  # an RGB format: no conversion of colours loses a bit
            video.codec_context.thread_count = 1
            track = container.add_stream("pcm_s16le", rate=rate, layout="mono") if sound is not None else None
            for pixels in frames:
                container.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            container.mux(video.encode())
            if track is not None and sound is not None:
                samples = (np.clip(sound, -1, 32767 / 32768) * 32768).astype(np.int16)
                frame = av.AudioFrame.from_ndarray(samples[None], "s16", "mono")
                frame.rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
                container.mux(track.encode(frame))
                container.mux(track.encode())
        return path

    return write
