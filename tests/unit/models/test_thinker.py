from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from motet.batching.pack import laid_side_by_side
from motet.batching.samples import extend_positions
from motet.data import toy
from motet.models.attention import Decode, Packed, Prefill
from motet.models.qwen3_omni.thinker import Thinker
from motet.types import MediaItem, MediaKind, MediaPart, Message, Prompt, Task

if TYPE_CHECKING:
    from motet.features.store import FeatureStore
    from motet.models.qwen3_omni.render import Renderer

HIDDEN, NUM_TAPS = 128, 3
ANSWER = np.array([40, 41, 42, 43], np.int32)
"""What every prompt is continued with."""
ROUNDING = 5e-6
"""Of hidden states, which reach 10: an expert multiplies other numbers of tokens, in another order."""
KINDS = tuple(toy.KINDS)


@dataclass(frozen=True)
class Example:
    """A prompt and its answer."""

    token_ids: np.ndarray
    positions: np.ndarray
    media: tuple[MediaItem, ...]
    features: list[Tensor]


@pytest.fixture(scope="module")
def sequences(prompts: dict[str, Prompt], features: FeatureStore) -> dict[str, Example]:
    return {
        kind: Example(
            np.concatenate([prompt.token_ids, ANSWER]),
            extend_positions(prompt.positions, len(ANSWER)),
            prompt.media,
            features(prompt.media),
        )
        for kind, prompt in prompts.items()
    }


@torch.no_grad()
def hidden(thinker: Thinker, row: Sequence[Example]) -> list[Tensor]:
    """Hidden states [L, H] of each sequence of a packed row."""
    bounds, media = laid_side_by_side([(len(s.token_ids), s.media) for s in row])
    states = thinker.hidden(
        np.concatenate([s.token_ids for s in row]),
        np.concatenate([s.positions for s in row], axis=1),
        media,
        [f for s in row for f in s.features],
        Packed(bounds.tolist()),
    )
    assert states.shape == (bounds[-1], HIDDEN)
    return list(states.split(np.diff(bounds).tolist()))


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


# ---- rows --------------------------------------------------------------------------------------


def test_a_packed_row_equals_its_samples_alone(thinker: Thinker, sequences: dict[str, Example]) -> None:
    row = list(sequences.values())
    for states, sequence in zip(hidden(thinker, row), row, strict=True):
        (alone,) = hidden(thinker, [sequence])
        assert distance(states, alone) < 1e-5
        assert alone.abs().mean() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_that_changes_leaves_the_others_as_they_are(
    thinker: Thinker, sequences: dict[str, Example], kind: str
) -> None:
    at = KINDS.index(kind)
    before = hidden(thinker, list(sequences.values()))
    changed = sequences[kind]
    changed = replace(changed, token_ids=np.append(5, changed.token_ids[1:]), features=[-f for f in changed.features])
    after = hidden(thinker, list((sequences | {kind: changed}).values()))
    distances = [distance(a, b) for a, b in zip(before, after, strict=True)]
    assert distances.pop(at) > 0.1
    assert max(distances) <= ROUNDING


@pytest.mark.parametrize("kind", KINDS)
def test_prefill_and_decode_equal_one_pass_over_everything(
    thinker: Thinker, sequences: dict[str, Example], prompts: dict[str, Prompt], kind: str
) -> None:
    (expected,) = hidden(thinker, [sequences[kind]])
    prompt, features = prompts[kind], sequences[kind].features
    num = len(prompt.token_ids)
    prefill = Prefill([0, num])
    with torch.no_grad():
        states = thinker.hidden(prompt.token_ids, prompt.positions, prompt.media, features, prefill)
        assert distance(states, expected[:num]) < 1e-5
        layout = Decode(prefill, [0, 0], len(ANSWER))
        for i, token in enumerate(ANSWER):
            place = np.full((3, 2), prompt.positions.max() + 1 + i)
            states = thinker.hidden(np.array([token, token]), place, (), (), layout)
            layout.advance()
            assert distance(states, expected[num + i]) < 1e-5


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "audio_longer"])
def test_equal_to_the_released_forward(
    random_checkpoint: Path, thinker: Thinker, sequences: dict[str, Example], kind: str
) -> None:
    """The module as transformers runs it on its own: SDPA, its own positions, its towers in one call. It pads sounds
    of one row to the longest, so a row with two is not among these."""
    from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

    released: Any = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(random_checkpoint).eval()
    sequence = sequences[kind]
    ids = torch.as_tensor(sequence.token_ids, dtype=torch.long)[None]
    inputs: dict[str, list[np.ndarray]] = {}
    for item in sequence.media:
        for name, value in item.features.items():
            inputs.setdefault(name, []).append(value)
    with torch.no_grad():
        logits = released(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            use_audio_in_video=kind == "video_agree",
            **{name: torch.from_numpy(np.concatenate(values)) for name, values in inputs.items()},
        ).logits[0]
        (states,) = hidden(thinker, [sequence])
        assert distance(thinker.head(states), logits) < 1e-4


# ---- media -------------------------------------------------------------------------------------


VISUAL = [kind for kind in KINDS if kind.startswith(("image", "video"))]


@pytest.mark.parametrize("kind", VISUAL)
@pytest.mark.parametrize("tap", range(NUM_TAPS))
def test_every_deepstack_tap_matters_to_its_own_sample(
    thinker: Thinker, sequences: dict[str, Example], kind: str, tap: int
) -> None:
    def without_tap(item: MediaItem, features: Tensor) -> Tensor:
        if item.kind == "audio":
            return features
        features = features.clone()
        features[:, HIDDEN * (1 + tap) : HIDDEN * (2 + tap)] = 0
        return features

    text, sequence = sequences["text"], sequences[kind]
    beside = sequences["video_motion" if kind.startswith("image") else "image_colour"]
    changed = replace(
        sequence, features=[without_tap(i, f) for i, f in zip(sequence.media, sequence.features, strict=True)]
    )
    before, after = (hidden(thinker, [beside, s, text]) for s in (sequence, changed))
    distances = [distance(a, b) for a, b in zip(before, after, strict=True)]
    first = sequence.media[0].spans[0][0]
    assert distance(before[1][:first], after[1][:first]) <= ROUNDING  # what stands before the clip
    assert distances[1] > 1e-2
    assert max(distances[0], distances[2]) <= ROUNDING


def test_every_clip_stands_at_its_own_place(thinker: Thinker, sequences: dict[str, Example]) -> None:
    for kind in ("images_colour", "audio_longer", "video_agree", "image_audio"):
        sequence = sequences[kind]
        (before,) = hidden(thinker, [sequence])
        for i, item in enumerate(sequence.media):
            features = [2 * f if i == j else f for j, f in enumerate(sequence.features)]
            (after,) = hidden(thinker, [replace(sequence, features=features)])
            start = item.spans[0][0]
            assert distance(before[:start], after[:start]) <= ROUNDING
            assert distance(before[start], after[start]) > 1e-2


PADS: dict[str, MediaKind] = {"image_audio": "image", "audio_pitch": "audio", "video_agree": "video"}


@pytest.mark.parametrize("kind", PADS)
def test_placeholders_without_features_are_refused(
    thinker: Thinker, prompts: dict[str, Prompt], features: FeatureStore, kind: str
) -> None:
    prompt, lost = prompts[kind], PADS[kind]
    clip = next(item for item in prompt.media if item.kind == lost)
    kept = [item for item in prompt.media if item is not clip]
    layout = Packed([0, len(prompt.token_ids)])
    said = rf"token {clip.spans[0][0]} of {len(prompt.token_ids)}: a placeholder of {lost} without features"
    with pytest.raises(ValueError, match=said):
        thinker.hidden(prompt.token_ids, prompt.positions, kept, features(kept), layout)
    ids = np.where(prompt.token_ids == prompt.token_ids[clip.spans[0][0]], 5, prompt.token_ids)
    thinker.hidden(ids, prompt.positions, kept, features(kept), layout)  # it was those alone


def test_one_placeholder_in_an_answer_is_refused(thinker: Thinker, prompts: dict[str, Prompt]) -> None:
    pad = prompts["image_colour"].token_ids[prompts["image_colour"].media[0].spans[0][0]]
    for token, refused in ((pad, True), (pad - 10, False)):
        with pytest.raises(ValueError, match=r"token 1 of 2: .* image") if refused else nullcontext():
            thinker.hidden(np.array([5, token]), np.array([[0, 1]] * 3), (), (), Packed([0, 2]))


def test_features_for_what_is_no_placeholder_are_refused(
    thinker: Thinker, prompts: dict[str, Prompt], features: FeatureStore
) -> None:
    prompt = prompts["image_colour"]
    (item,) = prompt.media
    (start, length) = item.spans[0]
    layout = Packed([0, len(prompt.token_ids)])
    for spans, said in (
        (((start - 1, length),), "token .* without features"),
        (((start - 1, 1), (start, length)), f"{length + 1} features of image for {length} placeholders"),
        (((start, length), (start, 1)), f"{length + 1} features of image for {length} placeholders"),
    ):
        moved = replace(item, spans=spans)
        with pytest.raises(ValueError, match=said):
            thinker.hidden(prompt.token_ids, prompt.positions, [moved], features([item]), layout)
    as_video = replace(item, kind="video")
    with pytest.raises(ValueError, match="a placeholder of image without features"):
        thinker.hidden(prompt.token_ids, prompt.positions, [as_video], features([item]), layout)


def test_the_embedding_of_a_clip_matters_beside_its_taps(thinker: Thinker, sequences: dict[str, Example]) -> None:
    sequence = sequences["image_colour"]
    (features,) = sequence.features
    blank = torch.cat([torch.zeros_like(features[:, :HIDDEN]), features[:, HIDDEN:]], dim=1)
    (before,), (after,) = (hidden(thinker, [replace(sequence, features=[f])]) for f in (features, blank))
    assert distance(before, after) > 1e-2


def test_a_clip_with_too_few_features_is_refused_by_its_name(thinker: Thinker, sequences: dict[str, Example]) -> None:
    sequence = sequences["audio_pitch"]
    (features,) = sequence.features
    named = replace(sequence, media=(replace(sequence.media[0], raw="media/7.wav"),))
    num = len(features)
    with pytest.raises(AssertionError, match=rf"audio 'media/7.wav': {num} tokens, {num - 1} features"):
        hidden(thinker, [replace(named, features=[features[:-1]])])
    with pytest.raises(ValueError, match="zip"):
        hidden(thinker, [replace(named, features=[])])


# ---- towers ------------------------------------------------------------------------------------


def test_features_have_the_width_of_the_text_and_for_pictures_that_of_their_taps(
    thinker: Thinker, prompts: dict[str, Prompt]
) -> None:
    for prompt in prompts.values():
        for item in prompt.media:
            with torch.no_grad():
                features = thinker.encode(item)
            width = HIDDEN if item.kind == "audio" else HIDDEN * (1 + NUM_TAPS)
            assert features.shape == (item.num_tokens, width)


def test_pictures_encoded_together_equal_those_encoded_alone(thinker: Thinker, prompts: dict[str, Prompt]) -> None:
    items = [i for kind in ("images_colour", "video_motion", "image_colour") for i in prompts[kind].media]
    with torch.no_grad():
        together = thinker.encode_visuals(items)
        for item, features in zip(items, together, strict=True):
            assert distance(features, thinker.encode(item)) < 1e-5


@pytest.fixture(scope="module")
def noise(renderer: Renderer) -> dict[int, MediaItem]:
    """Sounds of so many seconds."""
    items = {}
    for seconds in (1, 7, 20):
        samples = np.random.default_rng(seconds).normal(0, 0.3, seconds * 16_000).astype(np.float32)
        part = MediaPart(kind="audio", ref={"array": samples, "sampling_rate": 16_000})
        prompt = renderer(Task(id="t", messages=(Message(role="user", parts=(part,)),), answer="", source="t"))
        assert isinstance(prompt, Prompt)
        (items[seconds],) = prompt.media
    return items


def test_sounds_encoded_together_equal_those_encoded_alone(thinker: Thinker, noise: dict[int, MediaItem]) -> None:
    items = [noise[7], noise[1], noise[20]]
    with torch.no_grad():
        for item, features in zip(items, thinker.encode_audios(items), strict=True):
            assert distance(features, thinker.encode(item)) < 1e-5


@pytest.mark.parametrize(("seconds", "num_tokens"), [(1, 13), (7, 91), (20, 260)])
def test_a_second_of_sound_is_thirteen_tokens(
    thinker: Thinker, noise: dict[int, MediaItem], seconds: int, num_tokens: int
) -> None:
    with torch.no_grad():
        features = thinker.encode(noise[seconds])
    assert features.shape == (num_tokens, HIDDEN)
    assert noise[seconds].num_tokens == num_tokens


def test_the_audio_tower_attends_within_windows_of_eight_seconds(thinker: Thinker, noise: dict[int, MediaItem]) -> None:
    window = 8 * 13
    item = noise[20]
    mel = item.features["input_features"].copy()
    mel[..., 1900:2000] += 1  # the last second
    changed = replace(item, features=dict(item.features) | {"input_features": mel})
    with torch.no_grad():
        before, after = thinker.encode(item), thinker.encode(changed)
    assert torch.equal(before[: 2 * window], after[: 2 * window])
    assert (before[2 * window :] != after[2 * window :]).any(dim=1).all()  # all of the third, not the last second alone


def test_frames_past_the_end_of_a_sound_are_not_encoded(thinker: Thinker, noise: dict[int, MediaItem]) -> None:
    item = noise[1]
    mel = np.pad(item.features["input_features"], ((0, 0), (0, 0), (0, 50)), constant_values=7.0)
    mask = np.pad(item.features["feature_attention_mask"], ((0, 0), (0, 50)))
    padded = replace(item, features={"input_features": mel, "feature_attention_mask": mask})
    with torch.no_grad():
        assert torch.equal(thinker.encode(padded), thinker.encode(item))


def test_the_towers_are_frozen_and_the_rest_learns(thinker: Thinker) -> None:
    learns = {name for name, p in thinker.module.named_parameters() if p.requires_grad}
    assert learns == thinker.trained().keys()
    assert {name.split(".")[0] for name in learns} == {"model", "lm_head"}
    frozen = {name.split(".")[0] for name, _ in thinker.module.named_parameters() if name not in learns}
    assert frozen == {"visual", "audio_tower"}


def test_the_fingerprint_is_of_the_weights_of_the_towers(random_checkpoint: Path, thinker: Thinker) -> None:
    other = Thinker(random_checkpoint)
    assert other.towers_fingerprint() == thinker.towers_fingerprint()
    with torch.no_grad():
        other.module.lm_head.weight += 1
    assert other.towers_fingerprint() == thinker.towers_fingerprint()
    seen = {thinker.towers_fingerprint()}
    for name in ("visual.merger.mlp.0.bias", "audio_tower.proj2.bias"):
        with torch.no_grad():
            other.module.get_parameter(name)[0] += 1
        seen.add(other.towers_fingerprint())
    assert len(seen) == 3


def test_the_fingerprint_goes_by_what_the_towers_do_and_not_by_where_they_lie(
    random_checkpoint: Path, thinker: Thinker, tmp_path: Path
) -> None:
    folder = shutil.copytree(random_checkpoint, tmp_path / "moved")
    assert Thinker(folder).towers_fingerprint() == thinker.towers_fingerprint()
    config = json.loads((folder / "config.json").read_text())
    config["thinker_config"]["audio_config"]["n_window_infer"] *= 2  # the weights stay, the windows do not
    (folder / "config.json").write_text(json.dumps(config))
    assert Thinker(folder).towers_fingerprint() != thinker.towers_fingerprint()


def test_the_module_computes_in_the_dtype_it_is_asked_for(random_checkpoint: Path, prompts: dict[str, Prompt]) -> None:
    half = Thinker(random_checkpoint, dtype=torch.bfloat16)
    prompt = prompts["image_audio"]
    assert (half.dtype, half.device.type, half.vocab_size) == (torch.bfloat16, "cpu", 480)
    with torch.no_grad():
        features = [half.encode(item) for item in prompt.media]
        layout = Packed([0, len(prompt.token_ids)])
        states = half.hidden(prompt.token_ids, prompt.positions, prompt.media, features, layout)
    assert {f.dtype for f in features} == {torch.bfloat16}
    assert states.dtype == half.head(states).dtype == torch.bfloat16
