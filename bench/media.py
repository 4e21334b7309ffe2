"""How fast clips become prompts, and how much memory that takes: `python bench/media.py [--seconds 3]`.

For each kind of clip it prints how many are decoded and rendered in a second of one core, by Motet (worker processes
and the renderer) and by bare calls of Pillow, PyAV and the model's processor that give the same arrays, and the ratio
of the two. Motet hashes the file, the decoded arrays and what the tower reads on top. Seconds are CPU seconds of this
process and its workers, and both take turns, so that other work on the machine weighs on both alike. It makes its own
clips and model folder.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import PIL.Image
import torch

from motet.config.schema import DataConfig, ImageConfig
from motet.data.decode import Decoder
from motet.data.media import Audio, Image, Media, Video
from motet.models.qwen3_omni import tiny
from motet.models.qwen3_omni.render import Renderer
from motet.types import MediaKind, MediaPart, Message, Prompt, Task, TextPart

SECONDS = 10
RATE_HZ = 48_000
NUM_IN_FLIGHT = 64
DATA = DataConfig(train="", image=ImageConfig(min_pixels=3136, max_pixels=12_845_056))
"""The sizes of the released model, whose processor the tiny one otherwise has."""
QUESTION = "What is to be seen or heard? Answer with a letter."
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Clip(NamedTuple):
    name: str
    kind: MediaKind
    file: str


CLIPS = (
    Clip("image, 1024x768 JPEG", "image", "0.jpg"),
    Clip("sound, 10 s 48 kHz stereo FLAC", "audio", "0.flac"),
    Clip("sound, 10 s 48 kHz stereo MP3", "audio", "0.mp3"),
    Clip("video, 10 s 640x360 MP4 with sound", "video", "0.mp4"),
)


def task(kind: MediaKind, file: str) -> Task:
    part = MediaPart(kind=kind, ref=file, use_audio=kind == "video")
    message = Message(role="user", parts=(part, TextPart(text=QUESTION)))
    return Task(id=file, messages=(message,), answer="", source=file)


# ---- clips -------------------------------------------------------------------------------------


def write_clips(folder: Path, number: int) -> None:
    """`number` of each; no two are the same file."""
    rng = np.random.default_rng(0)
    for index in range(number):
        pixels = PIL.Image.fromarray(rng.integers(0, 256, (96, 128, 3), np.uint8)).resize((1024, 768))
        pixels.save(folder / f"{index}.jpg", quality=90)
        for suffix in ("flac", "mp3"):
            with av.open(str(folder / f"{index}.{suffix}"), "w") as container:
                codec = {"flac": "flac", "mp3": "libmp3lame"}[suffix]
                write_sound(container, container.add_stream(codec, rate=RATE_HZ, layout="stereo"), rng)
    write_video(folder / "0.mp4", rng)
    for index in range(1, number):  # a comment at the end makes another file of it
        comment = f"{index}".encode()
        box = (8 + len(comment)).to_bytes(4, "big") + b"free" + comment
        (folder / f"{index}.mp4").write_bytes((folder / "0.mp4").read_bytes() + box)


def write_sound(container: Any, stream: Any, rng: np.random.Generator) -> None:
    seconds = np.arange(SECONDS * RATE_HZ) / RATE_HZ
    tone = 0.3 * np.sin(2 * np.pi * (300 + 200 * seconds) * seconds) + rng.normal(0, 0.01, len(seconds))
    samples = (np.stack([tone, tone[::-1]]) * 32767).astype(np.int16)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T).reshape(1, -1), format="s16", layout="stereo")
    frame.sample_rate, frame.time_base, frame.pts = RATE_HZ, Fraction(1, RATE_HZ), 0
    container.mux(stream.encode(frame))
    container.mux(stream.encode())


def write_video(path: Path, rng: np.random.Generator) -> None:
    """25 frames a second of a picture that drifts, with some noise."""
    scene = np.asarray(PIL.Image.fromarray(rng.integers(0, 256, (30, 60, 3), np.uint8)).resize((1280, 640)))
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=25, options={"preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
        sound = container.add_stream("aac", rate=RATE_HZ, layout="stereo")
        for index in range(SECONDS * 25):
            view = scene[index : index + 360, 2 * index : 2 * index + 640].astype(np.int16)
            noisy = (view + rng.integers(-4, 5, view.shape, np.int16)).clip(0, 255).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noisy)))
        container.mux(stream.encode())
        write_sound(container, sound, rng)


# ---- bare calls --------------------------------------------------------------------------------


def bare_decode(path: Path, clip: Media) -> Any:
    """The arrays of `clip`, by the libraries alone."""
    if isinstance(clip, Image):
        return np.array(PIL.Image.open(path).convert("RGB"))
    if isinstance(clip, Audio):
        return bare_sound(path)
    wanted = set(clip.indices.tolist())
    frames: list[np.ndarray] = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for index, frame in enumerate(container.decode(stream)):
            if index in wanted:
                frames.append(frame.to_ndarray(format="rgb24"))
            if len(frames) == len(wanted):
                break
    return np.stack(frames), bare_sound(path)


def bare_sound(path: Path) -> np.ndarray:
    resampler = av.AudioResampler(format="flt", layout="mono", rate=16_000)
    with av.open(str(path)) as container:
        frames = [frame for block in container.decode(audio=0) for frame in resampler.resample(block)]
    return np.concatenate([frame.to_ndarray()[0] for frame in [*frames, *resampler.resample(None)]])


def bare_render(processor: Any, clip: Media, data: DataConfig) -> Any:
    """One call of the processor over the whole prompt."""
    kind = {Image: "image", Audio: "audio", Video: "video"}[type(clip)]
    content = [{"type": kind}, {"type": "text", "text": QUESTION}]
    conversation = [{"role": "user", "content": content}]
    text = processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    if isinstance(clip, Image):
        size = {"shortest_edge": data.image.min_pixels, "longest_edge": data.image.max_pixels}
        media: dict[str, Any] = {"images": [clip.pixels]}
        media["images_kwargs"] = {"input_data_format": "channels_last", "size": size}
    elif isinstance(clip, Audio):
        media = {"audio": [clip.samples]}
    else:
        assert clip.audio is not None
        options = {"input_data_format": "channels_last", "do_sample_frames": False, "cap_pixels_per_frame": False}
        options |= {"fps": data.video.fps, "use_audio_in_video": True}
        media = {"videos": [clip.frames], "audio": [clip.audio.samples], "videos_kwargs": options}
    return processor(text=[text], return_tensors="np", **media)


# ---- speed -------------------------------------------------------------------------------------


def cpu_seconds(pids: list[int]) -> float:
    """Of this process and of those."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / TICKS_PER_SECOND


def rates(ours: Callable[[], Any], bare: Callable[[], Any], *, seconds: float, pids: list[int]) -> tuple[float, float]:
    """Calls per CPU second of each; they take turns for about `seconds` each."""
    spent, calls = [0.0, 0.0], 0
    while min(spent) < seconds:
        for which, call in enumerate((ours, bare)):
            started = cpu_seconds(pids)
            for _ in range(10):
                call()
            spent[which] += cpu_seconds(pids) - started
        calls += 10
    return calls / spent[0], calls / spent[1]


def speed(folder: Path, model: Path, seconds: float) -> None:
    print(f"{'clips per second and core':36}{'decode':^24}{'render':^24}both")
    print(f"{'':36}{'Motet':>8}{'bare':>8}{'ratio':>6}  {'Motet':>8}{'bare':>8}{'ratio':>6}  {'ratio':>6}")
    all_seconds = np.zeros(2)
    with Decoder(num_workers=1, timeout_seconds=60, cache_bytes=0) as decoder:
        renderer = Renderer(model, DATA, folder)
        for name, kind, file in CLIPS:
            row = task(kind, file)
            (part,) = row.media
            clip = decoder(part, reach=renderer.reach, video=DATA.video)
            pids = workers(decoder)

            def decode(part: MediaPart = part) -> Media:
                return decoder(part, reach=renderer.reach, video=DATA.video)

            def bare(file: str = file, clip: Media = clip) -> Any:
                return bare_decode(folder / file, clip)

            check_same(clip, bare())
            decoded = rates(decode, bare, seconds=seconds, pids=pids)
            renderer.load = lambda *_, clip=clip, **__: clip
            rendered = rates(
                lambda row=row: renderer(row),  # type: ignore[misc]
                lambda clip=clip: bare_render(renderer.processor, clip, DATA),  # type: ignore[misc]
                seconds=seconds,
                pids=[],
            )
            clip_seconds = 1 / np.array(decoded) + 1 / np.array(rendered)
            all_seconds += clip_seconds
            cells = (f"{a:8.1f}{b:8.1f}{a / b:6.2f}  " for a, b in (decoded, rendered))
            print(f"{name:36}{''.join(cells)}{clip_seconds[1] / clip_seconds[0]:6.2f}")
    print(f"{'one of each':84}{all_seconds[1] / all_seconds[0]:6.2f}")


def check_same(clip: Media, arrays: Any) -> None:
    """Both did the same work."""
    if isinstance(clip, Image):
        np.testing.assert_array_equal(clip.pixels, arrays)
    elif isinstance(clip, Audio):
        np.testing.assert_allclose(clip.samples, arrays / 2**0.5, atol=1e-3)  # FFmpeg keeps the power, not the mean
    else:
        np.testing.assert_array_equal(clip.frames, arrays[0])


# ---- memory ------------------------------------------------------------------------------------


def workers(decoder: Decoder) -> list[int]:
    return [worker._process.pid for worker in decoder._workers]


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def peak(pids: Callable[[], list[int]]) -> Iterator[list[int]]:
    """Within it, the largest sum of resident bytes of this process and of those; looked at 50 times a second."""
    largest, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            largest[0] = max(largest[0], resident_bytes() + sum(map(resident_bytes, pids())))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield largest
    finally:
        done.set()
        thread.join()


def memory(folder: Path, model: Path) -> None:
    """All kinds of clips at once; each prompt is held until all are there."""
    rows = [task(kind, f"{i}{Path(file).suffix}") for i in range(NUM_IN_FLIGHT // 4) for _, kind, file in CLIPS]
    prompts: list[Any] = [None] * len(rows)
    with Decoder(num_workers=2, timeout_seconds=60, cache_bytes=0) as decoder:
        renderer = Renderer(model, DATA, folder, load=decoder)

        def render(index: int) -> None:
            prompts[index] = renderer(rows[index])

        render(0)
        before = resident_bytes()
        threads = [threading.Thread(target=render, args=(index,)) for index in range(len(rows))]
        with peak(lambda: workers(decoder)) as largest:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        after = sum(resident_bytes(pid) for pid in workers(decoder))
    assert all(isinstance(prompt, Prompt) for prompt in prompts)
    held = sum(array.nbytes for prompt in prompts for item in prompt.media for array in item.features.values())
    print(f"\nmemory with {len(rows)} clips in flight and 2 workers, in MiB")
    for name, num_bytes in (
        ("this process before", before),
        ("peak, this process and workers", largest[0]),
        ("workers after", after),
        ("features of the prompts", held),
    ):
        print(f"  {name:32}{num_bytes / 2**20:8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU seconds for each figure (default 3)")
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), Path(name) / "model"
        tiny.build(model, warm_steps=0)
        write_clips(folder, NUM_IN_FLIGHT // 4)
        speed(folder, model, seconds)
        memory(folder, model)


if __name__ == "__main__":
    main()
