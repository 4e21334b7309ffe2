from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np
import PIL.Image
import pytest

from motet.config.schema import VideoConfig
from motet.data import media
from motet.data.decode import Decoder
from motet.data.media import Audio, Image, Media, MediaError, Video
from motet.data.reference import Reach
from motet.types import MediaKind, MediaPart

MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a.png, a.wav, a.mp4 (10 frames at 5 fps, silent)."""
    folder = tmp_path_factory.mktemp("media")
    rng = np.random.default_rng(0)
    PIL.Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).save(folder / "a.png")
    with wave.open(str(folder / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(rng.integers(-9000, 9000, 8000, np.int16).tobytes())
    with av.open(str(folder / "a.mp4"), "w") as container:
        picture: Any = container.add_stream("libx264", rate=5)
        picture.height, picture.width, picture.pix_fmt = 48, 64, "yuv420p"
        for number in range(10):
            container.mux(picture.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 * number, np.uint8))))
        container.mux(picture.encode())
    return folder


@pytest.fixture
def ask(folder: Path) -> Callable[..., Media]:
    """Loads a reference with a loader."""

    def ask(load: Callable[..., Media], ref: Any, kind: MediaKind = "image", **video: Any) -> Media:
        part = MediaPart(kind=kind, ref=ref)
        return load(part, reach=Reach((folder,), folder), video=VideoConfig(**video))

    return ask


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Decoder]:
    with Decoder(num_workers=2, timeout_seconds=60, cache_bytes=64 * MIB) as decoder:
        yield decoder


@pytest.fixture
def one_worker() -> Iterator[Decoder]:
    """Keeps nothing."""
    with Decoder(num_workers=1, timeout_seconds=60, cache_bytes=0) as decoder:
        yield decoder


def arrays(clip: Media) -> list[np.ndarray]:
    if isinstance(clip, Image):
        return [clip.pixels]
    return [clip.samples] if isinstance(clip, Audio) else [clip.frames, clip.times, clip.indices]


def pids(decoder: Decoder) -> list[int]:
    return [worker._process.pid for worker in decoder._workers]


def wait_until(condition: Callable[[], bool]) -> None:
    """For what another process or thread is about to do."""
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends, "never happened"
        time.sleep(0.01)


# ---- the same as load --------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("kind", "ref"), [("image", "a.png"), ("audio", "a.wav"), ("video", "a.mp4")])
def test_a_clip_is_what_load_gives(
    two_workers: Decoder, ask: Callable[..., Media], num_workers: int, kind: MediaKind, ref: str
) -> None:
    decoder = two_workers if num_workers else Decoder(num_workers=0, timeout_seconds=60, cache_bytes=0)
    clip, loaded = ask(decoder, ref, kind), ask(media.load, ref, kind)
    assert type(clip) is type(loaded) and clip.content == loaded.content
    for array, expected in zip(arrays(clip), arrays(loaded), strict=True):
        np.testing.assert_array_equal(array, expected, strict=True)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("kind", "ref"),
    [
        ("image", "b.png"),
        ("image", "a.wav"),
        ("audio", b"RIFF"),
        ("video", "a.wav"),
        ("image", "/etc/passwd"),
        ("image", "https://media.example.org/a.png"),
        ("image", "data:image/png,x"),
        ("image", {"bytes": b"", "path": "a.png"}),
        ("audio", {"array": [0.0], "sampling_rate": 0}),
    ],
)
def test_an_error_says_what_load_says(
    two_workers: Decoder, ask: Callable[..., Media], num_workers: int, kind: MediaKind, ref: Any
) -> None:
    with pytest.raises(MediaError) as expected:
        ask(media.load, ref, kind)
    decoder = two_workers if num_workers else Decoder(num_workers=0, timeout_seconds=60, cache_bytes=0)
    with pytest.raises(MediaError, match=f"^{re.escape(str(expected.value))}$"):
        ask(decoder, ref, kind)


def test_what_goes_wrong_in_the_code_is_no_media_error(one_worker: Decoder, folder: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*NoneType"):
        one_worker(MediaPart(kind="image", ref="a.png"), reach=None, video=VideoConfig())  # type: ignore[arg-type]
    assert one_worker(MediaPart(kind="image", ref="a.png"), reach=Reach((folder,), folder), video=VideoConfig())


# ---- kept by content ---------------------------------------------------------------------------


def test_a_clip_is_decoded_once_however_it_is_given(
    two_workers: Decoder, ask: Callable[..., Media], folder: Path, tmp_path: Path
) -> None:
    data = (folder / "a.png").read_bytes()
    (folder / "copy.png").write_bytes(data)
    encoded = base64.b64encode(data).decode()
    refs: list[Any] = [folder / "a.png", "copy.png", (folder / "a.png").as_uri(), f"data:image/png;base64,{encoded}"]
    refs += [encoded, data, bytearray(data), {"bytes": data, "path": None}, {"bytes": None, "path": "a.png"}]
    first = ask(two_workers, "a.png")
    assert all(ask(two_workers, ref) is first for ref in refs)


def test_another_way_of_reading_is_another_clip(two_workers: Decoder, ask: Callable[..., Media]) -> None:
    def video(**config: Any) -> Video:
        clip = ask(two_workers, "a.mp4", "video", **config)
        assert isinstance(clip, Video)
        return clip

    first = video(fps=5, max_frames=4)
    assert first.indices.tolist() == [0, 3, 6, 9]
    assert video(fps=5, max_frames=10).indices.tolist() == list(range(10))
    assert video(fps=1, max_frames=10).indices.tolist() == [0, 5]
    assert video(fps=5, max_frames=4, max_pixels=1) is first  # the renderer's affair
    with pytest.raises(MediaError, match=r"a.mp4: .*not one of"):
        ask(two_workers, "a.mp4", "image")


def test_decoded_objects_are_not_kept(two_workers: Decoder, ask: Callable[..., Media]) -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    first = ask(two_workers, pixels)
    pixels[:] = 9
    second = ask(two_workers, pixels)
    assert isinstance(first, Image) and isinstance(second, Image)
    assert (first.content == second.content, int(second.pixels.max())) == (False, 9)


def test_threads_share_the_workers(two_workers: Decoder, ask: Callable[..., Media], folder: Path) -> None:
    for number in range(12):
        PIL.Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    with ThreadPoolExecutor(8) as threads:
        clips = list(threads.map(lambda number: ask(two_workers, f"{number % 12}.png"), range(48)))
    assert [int(clip.pixels[0, 0, 0]) for clip in clips if isinstance(clip, Image)] == [n % 12 for n in range(48)]
    assert len({id(clip) for clip in clips}) == 12
    assert len(pids(two_workers)) == 2


# ---- workers that fail -------------------------------------------------------------------------


def test_a_late_worker_is_killed_and_another_takes_its_place(ask: Callable[..., Media]) -> None:
    with Decoder(num_workers=1, timeout_seconds=2, cache_bytes=0) as decoder:
        ask(decoder, "a.png")
        (pid,) = pids(decoder)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(MediaError, match=r"^a.png: took longer than 2 s \(data.decode_timeout_seconds\)$"):
            ask(decoder, "a.png")
        assert not Path(f"/proc/{pid}").exists()
        assert isinstance(ask(decoder, "a.png"), Image)
        assert len(pids(decoder)) == 1 and pids(decoder) != [pid]


def test_a_worker_that_dies_at_a_clip_is_named_by_its_signal(one_worker: Decoder, ask: Callable[..., Media]) -> None:
    ask(one_worker, "a.png")
    (worker,) = one_worker._workers
    os.kill(worker._process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        clip = threads.submit(ask, one_worker, "a.png")
        wait_until(lambda: not worker.is_idle)
        os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(MediaError, match=r"^a.png: ended the process that decoded it \(SIGKILL\)$"):
            clip.result()
    assert isinstance(ask(one_worker, "a.png"), Image)


def test_a_worker_that_died_while_idle_is_no_clips_fault(one_worker: Decoder, ask: Callable[..., Media]) -> None:
    ask(one_worker, "a.png")
    (worker,) = one_worker._workers
    os.kill(worker._process.pid, signal.SIGKILL)
    wait_until(lambda: worker.has_ended)
    assert isinstance(ask(one_worker, "a.png"), Image)


def test_a_worker_that_cannot_start_is_no_clips_fault(
    one_worker: Decoder, ask: Callable[..., Media], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        for _ in range(2):
            with pytest.raises(RuntimeError, match="did not start"):
                ask(one_worker, "a.png")
    assert isinstance(ask(one_worker, "a.png"), Image)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_leaves_signals_to_the_run(one_worker: Decoder, ask: Callable[..., Media], number: int) -> None:
    ask(one_worker, "a.png")
    (pid,) = pids(one_worker)
    os.kill(pid, number)
    ask(one_worker, "a.png")
    assert pids(one_worker) == [pid]


def test_a_worker_gives_up_where_memory_ends() -> None:
    code = "from motet.data import worker; worker._confine(); print(worker._answer(lambda: bytearray(9 << 30), ()))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "('refused', 'takes more than 8 GiB of memory to decode')\n"


# ---- ends --------------------------------------------------------------------------------------


def test_nothing_is_left_when_it_is_closed(ask: Callable[..., Media]) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with Decoder(num_workers=2, timeout_seconds=60, cache_bytes=0) as decoder:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: ask(decoder, "a.mp4", "video"), range(8)))
        started = pids(decoder)
        killed = next(iter(decoder._workers))
        killed.kill()
        wait_until(lambda: killed.has_ended)
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert sorted(os.listdir("/proc/self/fd")) == before
    with pytest.raises(RuntimeError, match="closed"):
        ask(decoder, "a.png")


def test_closing_ends_calls_in_progress_and_those_that_wait(ask: Callable[..., Media]) -> None:
    decoder = Decoder(num_workers=1, timeout_seconds=60, cache_bytes=0)
    ask(decoder, "a.png")
    (worker,) = decoder._workers
    os.kill(worker._process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(ask, decoder, "a.png") for _ in range(3)]
        wait_until(lambda: not worker.is_idle)
        decoder.close()
        for call in calls:
            with pytest.raises(RuntimeError, match="the decoder is closed"):
                call.result()


def test_workers_end_with_a_process_that_is_killed(folder: Path) -> None:
    code = f"""
import os
from pathlib import Path
from motet.config.schema import VideoConfig
from motet.data.decode import Decoder
from motet.data.reference import Reach
from motet.types import MediaPart
folder = Path({str(folder)!r})
decoder = Decoder(num_workers=1, timeout_seconds=60, cache_bytes=0)
decoder(MediaPart(kind="image", ref="a.png"), reach=Reach((folder,), folder), video=VideoConfig())
print([worker._process.pid for worker in decoder._workers][0], flush=True)
os.kill(os.getpid(), 9)
"""
    parent = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    assert parent.returncode == -9
    wait_until(lambda: not Path(f"/proc/{parent.stdout.strip()}").exists())


def test_threads_that_ask_outlive_none_of_the_workers(one_worker: Decoder, ask: Callable[..., Media]) -> None:
    """A worker belongs to the process, not to the thread that happened to start it."""
    thread = threading.Thread(target=ask, args=(one_worker, "a.png"))
    thread.start()
    thread.join()
    (pid,) = pids(one_worker)
    ask(one_worker, "a.png")
    assert pids(one_worker) == [pid]
