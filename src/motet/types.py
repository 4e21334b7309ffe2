"""The nouns of Motet, in pipeline order: Task, Prompt, Completion, Group, Sample, MicroBatch, Batch.

Every stage takes a frozen value and returns a new one; no field is filled in later. Host-side arrays are
numpy; a torch tensor means that you are inside a trainer (`LossInputs`). Letters used for shapes:

    P  tokens of a prompt        C  tokens of a completion      L = P + C
    T  tokens of a packed row    S  samples in a packed row     G  completions of a group
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # the types are importable without torch
    from torch import Tensor

MediaKind = Literal["image", "audio", "video"]
StopReason = Literal["eos", "length", "abort"]
IntArray = NDArray[np.integer[Any]]
FloatArray = NDArray[np.floating[Any]]
BoolArray = NDArray[np.bool_]


# ---- what a row says ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """Literal text. A media token written in it is text, never a placeholder."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPart:
    """One image, sound or video by reference.

    >>> MediaPart(kind="image", ref="media/00017.png")
    MediaPart(kind='image', ref='media/00017.png', use_audio=False)
    """

    kind: MediaKind
    ref: Any
    """A path, `file://`, `http(s)://` or data URI, base64, bytes, or a decoded object: see `motet.data.media.load`."""
    use_audio: bool = False
    """Videos only: the sound track is part of the input, interleaved in time with the frames."""


Part = TextPart | MediaPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row of a data set: what to ask and how to judge it.

    >>> Task(
    ...     id="train-17",
    ...     messages=(
    ...         Message(role="user", parts=(
    ...             MediaPart(kind="image", ref="media/00017.png"),
    ...             TextPart(text="What colour is the shape?\\nA. red\\nB. blue"))),),
    ...     answer="B", options=("red", "blue"), kind="image_colour", source="train.jsonl:18",
    ... ).answer
    'B'
    """

    id: str
    messages: tuple[Message, ...]
    answer: str
    source: str
    """Where the row came from, `file:line`; every error about the row names it."""
    options: tuple[str, ...] = ()
    """The choices in the order of their letters; empty for an open question."""
    kind: str = ""
    """A label that evaluation reports by, such as `image_colour`."""

    @property
    def media(self) -> tuple[MediaPart, ...]:
        """The media parts, in reading order."""
        return tuple(p for m in self.messages for p in m.parts if isinstance(p, MediaPart))

    @property
    def modality(self) -> str:
        """`text`, or the media kinds joined in a fixed order, such as `image+audio`."""
        kinds = {k for p in self.media for k in ((p.kind, "audio") if p.use_audio else (p.kind,))}
        return "+".join(k for k in ("image", "video", "audio") if k in kinds) or "text"


# ---- what the model reads ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MediaItem:
    """One clip exactly as a tower consumes it, and where its tokens stand in the prompt.

    A 64x64 image in patches of 16, merged 2x2, four tokens from position 5 on:

        MediaItem(kind="image", content="9c1...", hash="9c1...-4f0...", spans=((5, 4),),
                  features={"pixel_values": f32[16, 1536], "image_grid_thw": i64[1, 3]}, raw="media/00017.png")
    """

    kind: MediaKind
    content: str
    """Hash of the decoded media and its timing: what splits and duplicates go by."""
    hash: str
    """Of what the tower reads, `motet.identity.features_hash`: the identity in the feature store and at the engine."""
    spans: tuple[tuple[int, int], ...]
    """(start, length) ranges of the prompt; several where the sound of a video interleaves with its frames."""
    features: Mapping[str, NDArray[Any]]
    """What the model's forward takes, by its own argument names."""
    raw: Any
    """The reference that the row gave, for reports."""

    @property
    def num_tokens(self) -> int:
        return sum(length for _, length in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """The one record that both sampler and trainer consume.

    `token_ids` are always expanded: one id per placeholder token, never one per clip.
    """

    token_ids: IntArray
    """i32[P]"""
    positions: IntArray
    """i32[3, P]: temporal, height and width axis of M-RoPE."""
    media: tuple[MediaItem, ...]
    digest: str
    """Over ids, positions, clips and spans: `motet.identity.prompt_digest`."""


# ---- what came back ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample. `temperature = 0` is greedy; a greedy completion is for evaluation, not for training."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """One answer of the policy.

    Completion(token_ids=[33, 2], logprobs=[-0.7, -0.01], mask=[True, True], stop="eos",
               versions=(4, 4), text="B")
    """

    token_ids: IntArray
    """i32[C], the end-of-sequence token included where there is one."""
    logprobs: FloatArray
    """f32[C], of the distribution that each token was drawn from (temperature and banned ids applied)."""
    mask: BoolArray
    """bool[C], True where the policy sampled (False for text that a tool inserted)."""
    stop: StopReason
    versions: tuple[int, int]
    """Oldest and newest weight version that produced a token of it."""
    text: str
    experts: IntArray | None = None
    """i16[L, layers, k], the routed experts, where the engine returns them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named components, such as `accuracy` and `format`; each becomes a metric."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """The completions of one prompt and their scores; media is held once."""

    id: int
    task: Task
    prompt: Prompt
    completions: Sequence[Completion]
    scores: Sequence[Score]


# ---- what is learned from ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A group that teaches nothing. The reason becomes the metric `groups/skipped/<reason>`."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advantages:
    """f32[G], one advantage per completion; every sampled token of the completion carries it."""

    values: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One trainable sequence. With P = 3 and C = 2:

    Sample(group_id=7, token_ids=[5, 6, 7, 33, 2], positions=i32[3, 5],
           loss_mask=[F, F, F, T, T], logprobs=[0, 0, 0, -.7, -.01], advantages=[0, 0, 0, .9, .9],
           version=4, media=(...), digest="...", num_prompt_tokens=3)

    Entry i of `loss_mask`, `logprobs` and `advantages` is about token i, not about the token after it.
    """

    group_id: int
    token_ids: IntArray
    """i32[L]"""
    positions: IntArray
    """i32[3, L]"""
    loss_mask: BoolArray
    """bool[L]"""
    logprobs: FloatArray
    """f32[L]"""
    advantages: FloatArray
    """f32[L]"""
    version: int
    """The oldest weight version that produced a token of it."""
    media: tuple[MediaItem, ...]
    digest: str
    """`Prompt.digest`, of the first tokens"""
    num_prompt_tokens: int
    """P"""
    modality: str = "text"
    experts: IntArray | None = None
    """i16[L, layers, k]"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """One packed row. Shifted once, here: entry i of labels, loss_mask, logprobs and advantages belongs to the
    prediction made at i, so that nobody shifts later. Two samples, [5, 6, 33] (one sampled token) and [5, 2]:

        token_ids  = [5, 6, 33, 5, 2]    cu_seqlens = [0, 3, 5]
        labels     = [6, 33, -100, 2, -100]
        loss_mask  = [F, T, F, T, F]

    The last prediction of each sample has no label.
    """

    token_ids: IntArray
    """i64[T]"""
    labels: IntArray
    """i64[T], -100 where there is none"""
    positions: IntArray
    """i64[3, T]"""
    loss_mask: BoolArray
    """bool[T]"""
    logprobs: FloatArray
    """f32[T], of the behaviour policy"""
    advantages: FloatArray
    """f32[T]"""
    cu_seqlens: IntArray
    """i32[S + 1]"""
    media: tuple[MediaItem, ...]
    """Spans are relative to the row."""
    group_ids: tuple[int, ...]
    """[S]"""
    modalities: tuple[str, ...]
    """[S]"""
    digests: tuple[str, ...]
    """[S], of each sample's prompt: what the trainer proves its input by"""
    num_prompt_tokens: tuple[int, ...]
    """[S]"""
    experts: IntArray | None = None
    """i16[T, layers, k], where every sample of the row has them"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """What one optimizer step learns from; carries the denominators of the whole step."""

    grid: Sequence[Sequence[MicroBatch]]
    """[num_micro][dp]"""
    num_tokens: int
    """Tokens under the loss mask, over the whole grid."""
    num_sequences: int
    """Samples, over the whole grid."""
    oldest_version: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossInputs:
    """All that a loss may see. Only entries under `mask` count."""

    new_logprobs: Tensor
    """f32[T], with gradient"""
    old_logprobs: Tensor
    """f32[T]"""
    advantages: Tensor
    """f32[T]"""
    mask: Tensor
    """bool[T]"""
    cu_seqlens: Tensor
    """i32[S + 1]"""
    ref_logprobs: Tensor | None = None
    """f32[T], of the frozen reference"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    version: int
    metrics: Mapping[str, float]
