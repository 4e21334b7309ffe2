"""Items of published data sets, and small clips to go with them."""

from __future__ import annotations

import json
import wave
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

FIXTURES = Path(__file__).parents[3] / "fixtures" / "formats"
RATE_HZ = 8000


class Made:
    """Writes clips into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def png(self, name: str, level: int = 128) -> Path:
        path = self.path(name)
        Image.new("RGB", (16, 16), (level, level, level)).save(path)
        return path

    def wav(self, name: str, seconds: float = 0.1) -> Path:
        path = self.path(name)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE_HZ)
            file.writeframes(_tone(seconds).tobytes())
        return path

    def mp4(self, name: str, *, num_frames: int = 10, with_sound: bool = True) -> Path:
        """At 5 frames a second; frame k is grey of level 20 k. The sound is a tone of 440 Hz."""
        path = self.path(name)
        with av.open(str(path), "w") as container:
            video = container.add_stream("libx264", rate=5, options={"crf": "10", "preset": "ultrafast"})
            video.width = video.height = 32
            video.pix_fmt = "yuv420p"
            sound = container.add_stream("aac", rate=RATE_HZ, layout="mono") if with_sound else None
            for k in range(num_frames):
                pixels = np.full((32, 32, 3), 20 * k, np.uint8)
                container.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            container.mux(video.encode())
            if sound is not None:
                samples = _tone(num_frames / 5).astype(np.float32) / 32768
                for start in range(0, len(samples), 1024):
                    frame = av.AudioFrame.from_ndarray(samples[None, start : start + 1024], "fltp", "mono")
                    frame.sample_rate, frame.pts, frame.time_base = RATE_HZ, start, Fraction(1, RATE_HZ)
                    container.mux(sound.encode(frame))
                container.mux(sound.encode())
        return path

    def path(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def _tone(seconds: float) -> np.ndarray:
    times = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    return np.round(np.sin(2 * np.pi * 440 * times) * 16000).astype("<i2")


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "clips")


@pytest.fixture
def clips(made: Made, tmp_path: Path) -> Any:
    """Clips looked for where `made` writes them, for a row file in `tmp_path`."""
    from motet.data.formats.clips import Clips

    return Clips((made.folder,), tmp_path)


@pytest.fixture
def published() -> Any:
    """The items of a fixture."""

    def read(name: str) -> list[Any]:
        text = (FIXTURES / name).read_text()
        return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]

    return read
