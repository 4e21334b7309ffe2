"""Fixtures that load and write media."""

from __future__ import annotations

import wave
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from motet.config.schema import VideoConfig
from motet.data.media import Audio, Image, Video, load
from motet.data.reference import Reach
from motet.types import MediaPart


class Server(ThreadingHTTPServer):
    """A web server at 127.0.0.1; what it answers to a path is set in `routes`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.routes: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.asked: list[tuple[str, str]] = []
        """(host, path) of each request"""

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}{path}"

    def give(self, path: str, body: bytes, status: int = 200, **headers: str) -> str:
        """Answer with `body`; `Content_Length=""` leaves the header out. Returns the address."""

        def route(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in ({"Content_Length": str(len(body))} | headers).items():
                if value:
                    handler.send_header(name.replace("_", "-"), value)
            handler.end_headers()
            handler.wfile.write(body)

        self.routes[path] = route
        return self.url(path)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.asked.append((self.headers["Host"], self.path))
        with suppress(ConnectionError):  # the other side may hang up
            self.server.routes[self.path](self)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        server.block_on_close = False
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def load_image() -> Callable[..., Image]:
    def load_image(ref: Any, base: Path = Path("/"), roots: tuple[Path, ...] = (), **reach: Any) -> Image:
        part = MediaPart(kind="image", ref=ref)
        loaded = load(part, reach=Reach(roots or (base,), base, **reach), video=VideoConfig())
        assert isinstance(loaded, Image)
        return loaded

    return load_image


@pytest.fixture(scope="session")
def load_audio() -> Callable[..., Audio]:
    def load_audio(ref: Any, base: Path = Path("/"), **reach: Any) -> Audio:
        part = MediaPart(kind="audio", ref=ref)
        loaded = load(part, reach=Reach((base,), base, **reach), video=VideoConfig())
        assert isinstance(loaded, Audio)
        return loaded

    return load_audio


@pytest.fixture(scope="session")
def load_video() -> Callable[..., Video]:
    def load_video(
        ref: Any, base: Path = Path("/"), *, use_audio: bool = False, reach: Reach | None = None, **config: Any
    ) -> Video:
        part = MediaPart(kind="video", ref=ref, use_audio=use_audio)
        loaded = load(part, reach=reach or Reach((base,), base), video=VideoConfig(**config))
        assert isinstance(loaded, Video)
        return loaded

    return load_video


@pytest.fixture(scope="session")
def write_wav() -> Callable[..., Path]:
    def write_wav(path: Path, samples: NDArray[Any], rate: int) -> Path:
        """Samples [N] or [N, channels], uint8 or int16."""
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
            file.setsampwidth(samples.itemsize)
            file.setframerate(rate)
            file.writeframes(np.ascontiguousarray(samples).tobytes())
        return path

    return write_wav


@pytest.fixture(scope="session")
def write_sound() -> Callable[..., Path]:
    def write_sound(path: Path, samples: NDArray[np.int16], rate: int, codec: str, layout: str) -> Path:
        """Samples [N, channels], written as what the codec takes."""
        with av.open(str(path), "w") as container:
            track: Any = container.add_stream(codec, rate=rate, layout=layout)
            block = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(samples.reshape(1, -1)), format="s16", layout=layout
            )
            block.sample_rate = rate
            converter = av.AudioResampler(format=track.format, layout=layout, rate=rate)
            for frame in converter.resample(block) + converter.resample(None):
                container.mux(track.encode(frame))
            container.mux(track.encode())
        return path

    return write_sound


@pytest.fixture(scope="session")
def write_video() -> Callable[..., Path]:
    def write_video(
        path: Path,
        frames: NDArray[np.uint8],
        *,
        fps: int | Fraction = 5,
        pts_ms: list[int] | None = None,
        codec: str = "libx264",
        pix_fmt: str = "yuv420p",
        codec_options: dict[str, str] | None = None,
        sound: NDArray[np.float32] | None = None,
        sound_codec: str = "aac",
        sound_start_seconds: float = 0.0,
        options: dict[str, str] | None = None,
    ) -> Path:
        """Sound is mono at 16 kHz; `pts_ms` replaces the constant rate."""
        with av.open(str(path), "w", options=options or {}) as container:
            picture: Any = container.add_stream(codec, rate=1000 if pts_ms else fps, options=codec_options or {})
            picture.height, picture.width, picture.pix_fmt = *frames.shape[1:3], pix_fmt
            track: Any = None if sound is None else container.add_stream(sound_codec, rate=16_000, layout="mono")
            for number, pixels in enumerate(frames):
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                frame.pts = pts_ms[number] if pts_ms else number
                frame.time_base = Fraction(1, 1000) if pts_ms else 1 / Fraction(fps)
                container.mux(picture.encode(frame))
            container.mux(picture.encode())
            if sound is not None:
                sample_format = track.format.name
                values = (sound * 32767).astype(np.int16) if sample_format.startswith("s16") else sound
                block = av.AudioFrame.from_ndarray(values[None], format=sample_format, layout="mono")
                block.sample_rate, block.time_base = 16_000, Fraction(1, 16_000)
                block.pts = round(sound_start_seconds * 16_000)
                container.mux(track.encode(block))
                container.mux(track.encode())
        return path

    return write_video
