"""A dozen groups of a run, kept with their media, for the report to show.

    groups/003.json     what was asked, answered and scored
    groups/003-0.png    its first clip: the file that the row names, or its bytes, or what a decoded object shows
    groups/003-1.mp4    its second

A record, shortened:

    {"step": 16, "group": 241, "task": "train-17", "kind": "image_colour", "modality": "image",
     "source": "train.jsonl:18", "options": ["red", "blue"], "answer": "B",
     "messages": [{"role": "user", "parts": [{"kind": "image", "file": "003-0.png"},
                                             {"kind": "text", "text": "What colour is the shape?"}]}],
     "completions": [{"text": "B", "score": 1.0, "parts": {"accuracy": 1.0}, "stop": "eos", "num_tokens": 2,
                      "advantage": 0.9}]}
"""

from __future__ import annotations

import json
import shutil
import wave
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import PIL.Image

from motet.config.schema import DataConfig
from motet.data.media import SAMPLE_RATE_HZ, Audio, Image, Media, Video, load
from motet.data.reference import MediaError, Reach, describe, resolve
from motet.data.signatures import HEAD_BYTES, suffix
from motet.types import Advantages, Group, MediaPart, TextPart


class GroupRecord:
    """Chooses which groups to keep, and writes them into `folder`.

    The choice covers the run in time and in kinds, and draws nothing: the `num_groups` places come due evenly over
    the steps 1 to `num_steps`. A place that is due takes the first group of the kind that has the fewest records among
    the kinds seen. Once the next place is overdue too, it takes any group, so a kind that hardly ever comes holds up
    nothing. With 60 steps and 12 places, places come due at steps 1, 6, 11, ..., 56.

    `base` is the folder that relative media paths start from; of `data`, `video` and what media may reach apply.

    `resume_step` is the step of the checkpoint that the run goes on from: records of later steps are dropped, as those
    steps come again, and the others are kept. None starts a new run and drops all.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_groups: int,
        num_steps: int,
        data: DataConfig,
        base: Path,
        resume_step: int | None = None,
    ) -> None:
        self._folder = folder
        self._num_groups = num_groups
        self._num_steps = num_steps
        self._video = data.video
        self._reach = Reach.of(data, base)
        self._num_by_kind: Counter[str] = Counter()
        self._place = 0
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("[0-9]*.json")):
            record = json.loads(path.read_text())
            if resume_step is None or record["step"] > resume_step:
                _drop(path)
            else:
                self._num_by_kind[record["kind"]] += 1
                self._place = int(path.stem) + 1

    def offer(self, step: int, group: Group, advantages: Advantages | None = None) -> None:
        """Keep the group of `step`, counted from 1, if a place is due for it.

        Raises ValueError, naming the row, where its media cannot be read any more.
        """
        kind = _kind(group)
        self._num_by_kind[kind] += 0  # it has been seen
        if self._place >= self._num_groups or step < self._due(self._place):
            return
        is_rarest = self._num_by_kind[kind] == min(self._num_by_kind.values())
        if is_rarest or step > self._due(self._place + 1):
            self._write(step, group, advantages)
            self._num_by_kind[kind] += 1
            self._place += 1

    def _due(self, place: int) -> int:
        return 1 + place * self._num_steps // self._num_groups

    def _write(self, step: int, group: Group, advantages: Advantages | None) -> None:
        name = f"{self._place:03}"
        task = group.task
        try:
            files = iter([self._keep(part, self._folder / f"{name}-{k}") for k, part in enumerate(task.media)])
        except MediaError as error:
            raise MediaError(f"{task.source}: {error}") from error
        record = {
            "step": step,
            "group": group.id,
            "task": task.id,
            "kind": _kind(group),
            "modality": task.modality,
            "source": task.source,
            "options": task.options,
            "answer": task.answer,
            "messages": [
                {"role": message.role, "parts": [_part(part, files) for part in message.parts]}
                for message in task.messages
            ],
            "completions": _completions(group, advantages),
        }
        draft = self._folder / f"{name}.draft"
        draft.write_text(json.dumps(record, indent=1, allow_nan=False))
        draft.replace(self._folder / f"{name}.json")  # last, so that a record is never without its media

    def _keep(self, part: MediaPart, stem: Path) -> str:
        """Writes the clip beside the record; returns the name of its file."""
        try:
            source = resolve(part.ref, self._reach)
        except MediaError as error:
            raise MediaError(f"{describe(part.ref)}: {error}") from error
        if isinstance(source, Path):
            with source.open("rb") as file:
                path = stem.with_suffix(suffix(file.read(HEAD_BYTES)) or source.suffix.lower())
            shutil.copyfile(source, path)
        elif isinstance(source, bytes):
            path = stem.with_suffix(suffix(source) or ".bin")
            path.write_bytes(source)
        else:
            path = _encode(load(part, reach=self._reach, video=self._video), stem)
        return path.name


def _kind(group: Group) -> str:
    return group.task.kind or group.task.modality


def _part(part: TextPart | MediaPart, files: Iterator[str]) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"kind": "text", "text": part.text}
    return {"kind": part.kind, "file": next(files)}


def _completions(group: Group, advantages: Advantages | None) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = [
        {
            "text": completion.text,
            "score": score.value,
            "parts": dict(score.parts),
            "stop": completion.stop,
            "num_tokens": len(completion.token_ids),
        }
        for completion, score in zip(group.completions, group.scores, strict=True)
    ]
    if advantages is not None:
        for record, advantage in zip(records, advantages.values.tolist(), strict=True):
            record["advantage"] = advantage
    return records


def _drop(path: Path) -> None:
    path.unlink()
    for media in path.parent.glob(f"{path.stem}-*"):
        media.unlink()


# ---- media as files ----------------------------------------------------------------------------


def _encode(media: Media, stem: Path) -> Path:
    """What a decoded object shows, as a file of a kind that every browser plays."""
    if isinstance(media, Image):
        path = stem.with_suffix(".png")
        PIL.Image.fromarray(media.pixels).save(path)
    elif isinstance(media, Audio):
        path = stem.with_suffix(".wav")
        _write_wav(path, media)
    else:
        path = stem.with_suffix(".mp4")
        _write_mp4(path, media)
    return path


def _write_wav(path: Path, audio: Audio) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes((audio.samples.clip(-1, 1) * 32767).astype("<i2").tobytes())


def _write_mp4(path: Path, video: Video) -> None:
    """The frames that the model sees, evenly over the length of the clip, and the sound where the row asks for it."""
    num_frames, height, width = video.frames.shape[:3]
    with av.open(str(path), "w") as container:
        rate = Fraction(num_frames / video.duration_seconds).limit_denominator(1000)
        stream = container.add_stream("libx264", rate=rate, options={"crf": "18"})
        stream.height, stream.width = height + height % 2, width + width % 2  # the format has no odd sizes
        stream.pix_fmt = "yuv420p"
        sound = container.add_stream("aac", rate=SAMPLE_RATE_HZ, layout="mono") if video.audio else None
        for pixels in np.pad(video.frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge"):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
        if sound is not None and video.audio is not None:
            frame = av.AudioFrame.from_ndarray(video.audio.samples[None], "fltp", "mono")
            frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE_HZ, 0, Fraction(1, SAMPLE_RATE_HZ)
            container.mux(sound.encode(frame))
            container.mux(sound.encode())
