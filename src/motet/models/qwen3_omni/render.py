"""Messages -> Prompt, with the model's own Hugging Face processor. The only code that knows placeholders.

The chat template writes one placeholder per clip. The text is cut at them, each clip's piece goes through the
processor together with its clip, and the pieces are joined: the processor expands every placeholder exactly once,
and `use_audio` is a property of one video. The cuts fall on special tokens, where the tokenizer cuts too, so the
joined ids equal those of one call over the whole text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from motet.config.schema import DataConfig
from motet.data import media as media_module
from motet.data.media import Audio, Image, MediaError, Video
from motet.models.qwen3_omni.positions import positions
from motet.types import IntArray, MediaItem, MediaKind, MediaPart, Prompt, Skip, Task, TextPart

HOP_SAMPLES = 160  # of the mel spectrogram; the engine pads sound to a whole number of hops, so we do
LITERAL = re.compile("\ue000(\\d+)\ue001")  # private-use marks: stand for text that spells a special token


@dataclass(frozen=True, slots=True)
class Piece:
    """Ids of a stretch of the prompt, and the features of the clip in it."""

    token_ids: Sequence[int]
    features: Mapping[str, np.ndarray]


class Renderer:
    """Turns tasks into prompts.

    Args:
        path: Hugging Face folder of the model.
        data: sampling and size settings of the media, and the length budget.
        base: folder that relative media paths start from, and may lie in where `data.media_roots` is empty.
    """

    def __init__(self, path: Path | str, data: DataConfig, base: Path) -> None:
        from transformers import AutoProcessor

        self.path = Path(path)
        self.processor = AutoProcessor.from_pretrained(path)
        self.tokenizer = self.processor.tokenizer
        self.data = data
        self.base = base
        self.roots = [Path(r) for r in data.media_roots]
        self.config = json.loads((self.path / "config.json").read_text())["thinker_config"]
        p = self.processor
        self._pads: dict[MediaKind, str] = {"image": p.image_token, "video": p.video_token, "audio": p.audio_token}
        self._pad_ids = {kind: self.tokenizer.convert_tokens_to_ids(token) for kind, token in self._pads.items()}
        wrapped = f"(?:{re.escape(p.vision_bos_token)}|{re.escape(p.audio_bos_token)})?({{}})"
        wrapped += f"(?:{re.escape(p.vision_eos_token)}|{re.escape(p.audio_eos_token)})?"
        self._placeholder = re.compile(wrapped.format("|".join(map(re.escape, self._pads.values()))))
        self._special = re.compile("|".join(map(re.escape, self.tokenizer.get_added_vocab())))

    def at(self, base: Path) -> Renderer:
        """The same renderer for rows whose media paths start from another folder."""
        other = copy(self)
        other.base = base
        return other

    @property
    def banned_ids(self) -> list[int]:
        """Ids that sampling never draws: placeholders and their brackets."""
        p = self.processor
        brackets = (p.vision_bos_token, p.vision_eos_token, p.audio_bos_token, p.audio_eos_token)
        return sorted({*self._pad_ids.values(), *self.tokenizer.convert_tokens_to_ids(list(brackets))})

    @property
    def eos_ids(self) -> list[int]:
        """Ids that end a completion, as the model's generation config says."""
        eos = json.loads((self.path / "generation_config.json").read_text())["eos_token_id"]
        return eos if isinstance(eos, list) else [eos]

    def decode(self, token_ids: IntArray) -> str:
        """Text of a completion, special tokens left out."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def __call__(self, task: Task) -> Prompt | Skip:
        """Render one row.

        Raises MediaError, naming the row, where a clip cannot be read. A prompt over `data.max_prompt_tokens` is a
        `Skip`: nothing is ever cut.
        """
        try:
            clips = [self._load(part) for part in task.media]
        except MediaError as error:
            raise MediaError(f"{task.source}: {error}") from error
        text, literals = self._template(task)
        token_ids, items = self._join(task, text, literals, clips)
        if len(token_ids) > self.data.max_prompt_tokens:
            return Skip(reason="prompt_too_long")
        ids = np.asarray(token_ids, np.int32)
        places = positions(
            len(ids),
            items,
            position_id_per_seconds=self.config["position_id_per_seconds"],
            spatial_merge_size=self.config["vision_config"]["spatial_merge_size"],
        )
        return Prompt(token_ids=ids, positions=places, media=tuple(items), digest=_digest(ids, places, items))

    def _load(self, part: MediaPart) -> Image | Audio | Video:
        return media_module.load(part, base=self.base, roots=self.roots, video=self.data.video)

    def _template(self, task: Task) -> tuple[str, list[str]]:
        """The templated conversation, with text that spells special tokens set aside."""
        literals: list[str] = []

        def content(part: TextPart | MediaPart) -> dict[str, str]:
            if isinstance(part, MediaPart):
                return {"type": part.kind}
            if not self._special.search(part.text) and not LITERAL.search(part.text):
                return {"type": "text", "text": part.text}
            literals.append(part.text)
            return {"type": "text", "text": f"\ue000{len(literals) - 1}\ue001"}

        conversation = [{"role": m.role, "content": [content(p) for p in m.parts]} for m in task.messages]
        text = self.processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        return text, literals

    def _join(
        self, task: Task, text: str, literals: list[str], clips: Sequence[Image | Audio | Video]
    ) -> tuple[list[int], list[MediaItem]]:
        token_ids: list[int] = []
        items: list[MediaItem] = []
        cursor = 0
        matches = list(self._placeholder.finditer(text))
        wanted = [self._pads[part.kind] for part in task.media]
        if [m.group(1) for m in matches] != wanted:
            raise ValueError(
                f"{task.source}: the chat template wrote {len(matches)} placeholders for {len(wanted)} clips"
            )
        for match, part, clip in zip(matches, task.media, clips, strict=True):
            token_ids += self._tokenize(text[cursor : match.start()], literals)
            piece = self._expand(match.group(), clip)
            items += self._items(piece, clip, part, start=len(token_ids))
            token_ids += piece.token_ids
            cursor = match.end()
        return token_ids + self._tokenize(text[cursor:], literals), items

    def _tokenize(self, text: str, literals: list[str]) -> list[int]:
        token_ids: list[int] = []
        for i, part in enumerate(LITERAL.split(text)):
            literal = i % 2 == 1
            if part:
                words = literals[int(part)] if literal else part
                token_ids += self.tokenizer(words, split_special_tokens=literal, add_special_tokens=False)["input_ids"]
        return token_ids

    def _expand(self, piece: str, clip: Image | Audio | Video) -> Piece:
        """Run the processor on one placeholder and its clip."""
        kwargs: dict[str, Any] = {}
        if isinstance(clip, Image):
            kwargs["images"] = [clip.pixels]
            kwargs["images_kwargs"] = {"input_data_format": "channels_last", **_size(self.data.image)}
        elif isinstance(clip, Audio):
            kwargs["audio"] = [_whole_hops(clip.samples)]
        else:
            kwargs["videos"] = [clip.frames]
            kwargs["videos_kwargs"] = {
                "input_data_format": "channels_last",
                "do_sample_frames": False,
                "cap_pixels_per_frame": False,
                "fps": _sampled_fps(clip, self.data.video.fps),
                "use_audio_in_video": clip.audio is not None,
                **_size(self.data.video),
            }
            if clip.audio is not None:
                kwargs["audio"] = [_whole_hops(clip.audio.samples)]
        output = self.processor(text=[piece], return_tensors="np", **kwargs)
        features = {name: np.asarray(value) for name, value in output.items()}
        token_ids = features.pop("input_ids")[0].tolist()
        features.pop("attention_mask")
        return Piece(token_ids, features)

    def _items(self, piece: Piece, clip: Image | Audio | Video, part: MediaPart, *, start: int) -> list[MediaItem]:
        """The clip as one item, or two where a video brings its sound."""
        sound = clip.audio if isinstance(clip, Video) else None
        parts: list[tuple[MediaKind, str]] = [(part.kind, clip.content)]
        if sound is not None:
            parts.append(("audio", sound.content))
        ids = np.asarray(piece.token_ids)
        items = []
        for kind, content in parts:
            named = {"image": ("pixel_values", "image_grid_thw"), "audio": ("input_features", "feature_attention_mask")}
            names = named.get(kind, ("pixel_values_videos", "video_grid_thw"))
            tower = {name: piece.features[name] for name in names}
            timing = {"video_second_per_grid": piece.features["video_second_per_grid"]} if kind == "video" else {}
            items.append(
                MediaItem(
                    kind=kind,
                    content=content,
                    hash=_hash(kind, tower),
                    spans=_runs(np.flatnonzero(ids == self._pad_ids[kind]) + start),
                    features={**tower, **timing},
                    raw=part.ref,
                )
            )
        return items


def _size(config: Any) -> dict[str, Any]:
    """The processor's `size`, where the run sets one."""
    if config.min_pixels is None and config.max_pixels is None:
        return {}
    return {"size": {"shortest_edge": config.min_pixels, "longest_edge": config.max_pixels}}


def _sampled_fps(clip: Video, wanted: float) -> float:
    """Frames per second of the sampled frames, by their true times; a still has the rate that was asked for."""
    seconds = float(clip.times[-1] - clip.times[0])
    return (len(clip.times) - 1) / seconds if seconds > 0 else wanted


def _whole_hops(samples: np.ndarray) -> np.ndarray:
    return np.pad(samples, (0, -len(samples) % HOP_SAMPLES))


def _runs(places: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Positions -> (start, length) of each unbroken run."""
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    return tuple((int(run[0]), len(run)) for run in np.split(places, breaks))


def _hash(kind: str, features: Mapping[str, np.ndarray]) -> str:
    hasher = blake3(kind.encode())
    for name in sorted(features):
        array = np.ascontiguousarray(features[name])
        hasher.update(f"{name}{array.dtype.str}{array.shape}".encode())
        hasher.update(array.tobytes())
    return hasher.hexdigest()


def _digest(token_ids: np.ndarray, places: np.ndarray, items: Sequence[MediaItem]) -> str:
    hasher = blake3(token_ids.tobytes())
    hasher.update(places.tobytes())
    for item in items:
        hasher.update(f"{item.kind}{item.hash}{item.spans}".encode())
    return hasher.hexdigest()
