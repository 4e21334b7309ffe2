"""The same image, sound or clip is the same however a row refers to it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import PIL.Image
import pytest

from motet.data import reference
from motet.data.fetch import fetch
from motet.data.media import Audio, Image, Video
from motet.data.reference import Reach

RGB = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


@pytest.fixture
def references(server: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], list[Any]]:
    """Every way to refer to a file; its folder is the base."""
    monkeypatch.setattr(reference, "fetch", partial(fetch, is_public=lambda address: True))

    def references(path: Path) -> list[Any]:
        data = path.read_bytes()
        encoded = base64.b64encode(data).decode()
        lines = "\n".join(encoded[at : at + 76] for at in range(0, len(encoded), 76))
        return [
            path.name,
            path,
            str(path),
            path.as_uri(),
            path.as_uri().replace("file://", "FILE://localhost"),
            server.give("/" + path.name.replace(" ", "%20"), data).replace("%20", " "),
            f"data:image/png;base64,{encoded}",
            f"data:;base64,{lines}",
            encoded,
            lines,
            data,
            bytearray(data),
            memoryview(data),
            {"bytes": data, "path": "elsewhere"},
            {"bytes": None, "path": path.name},
        ]

    return references


def test_an_image(tmp_path: Path, load_image: Callable[..., Image], references: Callable[[Path], list[Any]]) -> None:
    path = tmp_path / "a b.png"
    PIL.Image.fromarray(RGB).save(path)
    refs = [*references(path), PIL.Image.open(path), RGB]
    loaded = [load_image(ref, tmp_path, url_hosts=("127.0.0.1",)) for ref in refs]
    assert all(np.array_equal(image.pixels, RGB) for image in loaded)
    assert len({image.content for image in loaded}) == 1
    assert len(loaded[0].content) == 64
    other = RGB.copy()
    other[0, 0, 0] += 1
    assert load_image(other).content != loaded[0].content
    assert load_image(RGB.reshape(6, 4, 3)).content != loaded[0].content


def test_a_sound(
    tmp_path: Path,
    load_audio: Callable[..., Audio],
    write_wav: Callable[..., Path],
    references: Callable[[Path], list[Any]],
) -> None:
    # Multiples of 1/32768, so that int16 and float32 say the same.
    samples = np.round(16384 * np.sin(np.arange(4410) / 16)) / 32768
    path = write_wav(tmp_path / "a.wav", (samples * 32768).astype(np.int16), 44_100)
    with av.open(str(tmp_path / "float.wav"), "w") as container:
        track: Any = container.add_stream("pcm_f32le", rate=44_100, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None].astype(np.float32), format="flt", layout="mono")
        frame.sample_rate = 44_100
        container.mux(track.encode(frame))
    refs = [
        *references(path),
        "float.wav",
        {"array": samples, "sampling_rate": 44_100},
        {"array": samples.tolist(), "sampling_rate": 44_100},
        {"array": np.stack([samples, samples]), "sampling_rate": 44_100},
        {"array": samples, "sampling_rate": 44_100, "path": "gone.wav"},  # as Hugging Face datasets decode sounds
    ]
    contents = {load_audio(ref, tmp_path, url_hosts=("*",)).content for ref in refs}
    assert len(contents) == 1
    assert load_audio({"array": samples, "sampling_rate": 48_000}).content not in contents


def test_a_clip(
    tmp_path: Path,
    load_video: Callable[..., Video],
    write_video: Callable[..., Path],
    references: Callable[[Path], list[Any]],
) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (10, 16, 32, 3), dtype=np.uint8)
    path = write_video(tmp_path / "a.mkv", frames, codec="ffv1", pix_fmt="bgr0")  # lossless
    reach = Reach((tmp_path,), tmp_path, url_hosts=("127.0.0.1",))
    refs = [*references(path), {"frames": frames, "fps": 5}]
    clips = [load_video(ref, reach=reach) for ref in refs]
    assert all(np.array_equal(clip.frames, frames[[0, 2, 5, 7]]) for clip in clips)
    assert len({clip.content for clip in clips}) == 1
    # The same pictures at another pace are another clip.
    slower = load_video({"frames": frames[[0, 2, 5, 7]], "fps": 2})
    assert np.array_equal(slower.frames, clips[0].frames)
    assert slower.content != clips[0].content
