"""Messages -> Prompt, with the model's own Hugging Face processor. The only code that knows placeholders.

The chat template writes one placeholder per clip. The text is cut at them, each clip's piece goes through the
processor together with its clip, and the pieces are joined: the processor expands every placeholder exactly once,
and `use_audio` is a property of one video. The cuts fall on special tokens, where the tokenizer cuts too, so the
joined ids equal those of one call over the whole text. What a placeholder becomes is special tokens alone: those are
looked up, as the tokenizer takes a fifth of an image's time to find them.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from motet.config.schema import DataConfig
from motet.data import media
from motet.data.media import Audio, Image, MediaError, Video, describe
from motet.data.reference import Reach
from motet.identity import features_hash, prompt_digest
from motet.models.qwen3_omni.positions import positions
from motet.models.qwen3_omni.timing import FRAMES_PER_PAIR, processor_fps, seconds_per_pair
from motet.types import IntArray, MediaItem, MediaKind, MediaPart, Prompt, Skip, Task, TextPart

logger = logging.getLogger(__name__)

HOP_SAMPLES = 160  # of the mel spectrogram; the engine pads sound to a whole number of hops, so we do
MIN_HOPS = 2  # its window reaches 200 samples beyond either end, mirrored, so a sound has to be longer than that
LITERAL = re.compile("\ue000(\\d+)\ue001")  # private-use marks: stand for text that spells a special token


@dataclass(frozen=True, slots=True)
class Piece:
    """Ids of a stretch of the prompt, and the features of the clip in it."""

    token_ids: Sequence[int]
    features: Mapping[str, np.ndarray]


class SpecialTokens:
    """Stands in for `tokenizer`, for the processor and for text that is nothing but special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self.init_kwargs = tokenizer.init_kwargs
        self._ids = tokenizer.get_added_vocab()
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._run = re.compile(rf"({'|'.join(map(re.escape, longest_first))})\1*")

    def __call__(self, texts: Sequence[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [self._find(text) for text in texts]}

    def _find(self, text: str) -> list[int]:
        token_ids: list[int] = []
        end = 0
        while end < len(text):
            run = self._run.match(text, end)
            assert run, f"a placeholder expands to other text: {text[end : end + 50]!r}"
            end = run.end()
            token_ids += [self._ids[run[1]]] * (len(run[0]) // len(run[1]))
        return token_ids


class Renderer:
    """Turns tasks into prompts.

    Args:
        path: Hugging Face folder of the model.
        data: sampling and size settings of the media, and the length budget.
        base: folder that relative media paths start from, and may lie in where `data.media_roots` is empty.
        load: decodes a clip, as `media.load` does.

    `adjusted_rates` counts the videos with sound whose frames per second are not those that a silent video has, by
    (that of the silent one, theirs).
    """

    def __init__(
        self, path: Path | str, data: DataConfig, base: Path, load: Callable[..., media.Media] = media.load
    ) -> None:
        from transformers import AutoProcessor

        self.path = Path(path)
        self.processor = AutoProcessor.from_pretrained(path)
        self.tokenizer = self.processor.tokenizer
        self._expander = copy(self.processor)
        self._expander.tokenizer = SpecialTokens(self.tokenizer)
        self.data = data
        self.base = base
        self.reach = Reach.of(data, base)
        self.load = load
        self.adjusted_rates: Counter[tuple[float, float]] = Counter()
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
        other.reach = Reach.of(self.data, base)
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
            clips = [self.load(part, reach=self.reach, video=self.data.video) for part in task.media]
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
        return Prompt(token_ids=ids, positions=places, media=tuple(items), digest=prompt_digest(ids, places, items))

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
            if isinstance(clip, Video):
                self._note_rate(part, clip)
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
                tokenizer = self._literal_tokenizer if literal else self.tokenizer
                token_ids += tokenizer(words, split_special_tokens=literal, add_special_tokens=False)["input_ids"]
        return token_ids

    @cached_property
    def _literal_tokenizer(self) -> Any:
        """Splitting special tokens is a state of the tokenizer, whatever its call says: where threads shared one, the
        text of one row would be read in the way of another's."""
        return deepcopy(self.tokenizer)

    def _expand(self, piece: str, clip: Image | Audio | Video) -> Piece:
        """Run the processor on one placeholder and its clip."""
        kwargs: dict[str, Any] = {}
        timing: dict[str, np.ndarray] = {}
        if isinstance(clip, Image):
            kwargs["images"] = [clip.pixels]
            kwargs["images_kwargs"] = {"input_data_format": "channels_last", **_size(self.data.image)}
        elif isinstance(clip, Audio):
            kwargs["audio"] = [_whole_hops(clip.samples)]
        else:
            seconds = seconds_per_pair(clip, self.data.video.fps)
            timing = {"video_second_per_grid": np.array([seconds])}
            kwargs["videos"] = [clip.frames]
            kwargs["videos_kwargs"] = {
                "input_data_format": "channels_last",
                "do_sample_frames": False,
                "cap_pixels_per_frame": False,
                "fps": processor_fps(seconds),
                "use_audio_in_video": clip.audio is not None,
                **_size(self.data.video),
            }
            if clip.audio is not None:
                kwargs["audio"] = [_whole_hops(clip.audio.samples)]
        output = self._expander(text=[piece], return_tensors="np", **kwargs)
        features = {name: np.asarray(value) for name, value in output.items()}
        token_ids = features.pop("input_ids")[0].tolist()
        return Piece(token_ids, features | timing)

    def _note_rate(self, part: MediaPart, clip: Video) -> None:
        """Sampling is slower where there is sound, see `sample_frames`; say so, once for a pair of rates."""
        config = self.data.video
        if clip.audio is None or len(clip.times) == FRAMES_PER_PAIR:
            return
        most = (config.max_frames - config.max_frames % FRAMES_PER_PAIR) / clip.duration_seconds
        silent = min(config.fps, clip.source_fps, most)
        fps = FRAMES_PER_PAIR / seconds_per_pair(clip, config.fps)
        if abs(fps - silent) <= 0.01 * silent:
            return
        rates = round(silent, 2), round(fps, 2)
        self.adjusted_rates[rates] += 1
        if self.adjusted_rates[rates] == 1:
            logger.warning(
                "%s: read at %g frames per second, not %g: with sound, pairs of frames are whole seconds apart",
                describe(part.ref),
                *reversed(rates),
            )

    def _items(self, piece: Piece, clip: Image | Audio | Video, part: MediaPart, *, start: int) -> list[MediaItem]:
        """The clip as one item, or two where a video brings its sound."""
        sound = clip.audio if isinstance(clip, Video) else None
        parts: list[tuple[MediaKind, Image | Audio | Video]] = [(part.kind, clip)]
        if sound is not None:
            parts.append(("audio", sound))
        ids = np.asarray(piece.token_ids)
        items = []
        for kind, held in parts:
            named = {"image": ("pixel_values", "image_grid_thw"), "audio": ("input_features", "feature_attention_mask")}
            names = named.get(kind, ("pixel_values_videos", "video_grid_thw"))
            tower = {name: piece.features[name] for name in names}
            timing = {"video_second_per_grid": piece.features["video_second_per_grid"]} if kind == "video" else {}
            items.append(
                MediaItem(
                    kind=kind,
                    content=held.content,
                    hash=features_hash(held.picture if isinstance(held, Video) else held.content, tower),
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


def _whole_hops(samples: np.ndarray) -> np.ndarray:
    num_hops = max(MIN_HOPS, -(-len(samples) // HOP_SAMPLES))
    return np.pad(samples, (0, num_hops * HOP_SAMPLES - len(samples)))


def _runs(places: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Positions -> (start, length) of each unbroken run."""
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    return tuple((int(run[0]), len(run)) for run in np.split(places, breaks))
