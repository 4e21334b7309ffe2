from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, boolean_dtypes, floating_dtypes, integer_dtypes

from motet.batching.pack import pack
from motet.batching.samples import samples
from motet.identity import features_hash, prompt_digest
from motet.types import (
    Advantages,
    Completion,
    Group,
    MediaItem,
    MediaPart,
    Message,
    Prompt,
    Sample,
    Sampling,
    Score,
    Skip,
    Task,
    TextPart,
)
from motet.wire import from_bytes, to_bytes

NAN = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000], np.uint32).view(np.float32)
"""NaNs whose payloads differ, a signalling one among them, and minus zero."""


def clip(kind: Any = "image", raw: Any = "a.png", start: int = 1) -> MediaItem:
    features = {"pixel_values": NAN.reshape(2, 2).copy(), "image_grid_thw": np.array([[1, 2, 2]])}
    name = features_hash("c", features)
    return MediaItem(kind=kind, content="c", hash=name, spans=((start, 2),), features=features, raw=raw)


def prompt(*media: MediaItem) -> Prompt:
    ids, positions = np.array([5, 9, 9, 7], np.int32), np.arange(12, dtype=np.int32).reshape(3, 4)
    return Prompt(token_ids=ids, positions=positions, media=media, digest=prompt_digest(ids, positions, media))


def group(ref: Any = "a.png") -> Group:
    completion = Completion(
        token_ids=np.array([33, 2], np.int32),
        logprobs=np.array([-0.5, NAN[0]], np.float32),
        mask=np.array([True, False]),
        stop="eos",
        versions=(3, 4),
        text='B\n"\u2028\ud800',
        experts=np.arange(12, dtype=np.int16).reshape(6, 2, 1),
    )
    task = Task(
        id="t",
        messages=(Message(role="user", parts=(MediaPart(kind="image", ref=ref), TextPart(text="What?"))),),
        answer="B",
        source="train.jsonl:18",
        options=("red", "blue"),
    )
    scores = [Score(value=0.1 + 0.2, parts={"accuracy": -0.0}), Score(value=float("inf"))]
    shorter = replace(completion, experts=None, stop="length")
    return Group(id=7, task=task, prompt=prompt(clip(raw=ref)), completions=[completion, shorter], scores=scores)


def learned() -> list[Sample]:
    return samples(group(), Advantages(values=np.array([1, -1], np.float32)))


def assert_same(ours: Any, theirs: Any) -> None:
    """Types, order and bits."""
    assert type(ours) is type(theirs)
    if isinstance(ours, np.ndarray):
        assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
    elif is_dataclass(ours):
        for field in fields(ours):
            assert_same(getattr(ours, field.name), getattr(theirs, field.name))
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(ours, Mapping):
        assert_same(list(ours.items()), list(theirs.items()))
    else:
        assert repr(ours) == repr(theirs)  # tells -0.0 from 0.0


# ---- there and back ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        prompt(clip(), clip("audio", start=3)),
        prompt(),
        group(),
        group().completions[0],
        learned(),
        pack(learned(), row_tokens=4),
        Sampling(max_tokens=3, temperature=1 / 3, seed=2**63),
        Skip(reason="prompt_too_long"),
        (1, [None, True, "x", b"\0\xff"], ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_noun_comes_back_bit_for_bit(value: Any) -> None:
    assert_same(from_bytes(to_bytes(value)), value)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        arrays(
            st.one_of(boolean_dtypes(), integer_dtypes(), floating_dtypes()),
            array_shapes(min_dims=0, min_side=0, max_side=4),
        ),
        max_size=4,
    ),
    st.integers(0, 3),
)
def test_any_array_comes_back_bit_for_bit(given_arrays: list[np.ndarray], turn: int) -> None:
    """Big-endian, empty, without dimensions, and not contiguous too."""
    given_arrays = [array.T if i == turn else array for i, array in enumerate(given_arrays)]
    assert_same(from_bytes(to_bytes(given_arrays)), given_arrays)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_any_tree_comes_back(tree: Any) -> None:
    """Lists that look like the marks of the format among them."""
    assert_same(from_bytes(to_bytes(tree)), tree)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 479), min_size=1, max_size=8), st.lists(st.floats(width=32), max_size=6), st.data())
def test_any_rollout_comes_back(prompt_ids: list[int], logprobs: list[float], data: st.DataObject) -> None:
    ids = np.array(prompt_ids, np.int32)
    positions = data.draw(arrays(np.int32, (3, len(ids)), elements=st.integers(0, 1 << 30)))
    features = {"input_features": data.draw(arrays(np.float32, array_shapes(max_dims=3, max_side=3)))}
    item = MediaItem(
        kind="audio", content="c", hash=features_hash("c", features), spans=((0, 1),), features=features, raw="a"
    )
    rendered = Prompt(token_ids=ids, positions=positions, media=(item,), digest=prompt_digest(ids, positions, (item,)))
    completion = Completion(
        token_ids=np.arange(len(logprobs), dtype=np.int32),
        logprobs=np.array(logprobs, np.float32),
        mask=np.ones(len(logprobs), bool),
        stop="length",
        versions=(0, 1),
        text=data.draw(st.text()),
    )
    held = replace(group(), prompt=rendered, completions=[completion, completion])
    assert_same(from_bytes(to_bytes(held)), held)
    made = samples(held, Advantages(values=np.array([0.5, -0.5], np.float32)))
    assert_same(from_bytes(to_bytes(made)), made)


def test_arrays_are_read_only_views_of_the_message() -> None:
    data = bytearray(to_bytes(np.arange(1000, dtype=np.int32)))
    array = from_bytes(data)
    assert not array.flags.writeable and array.flags.aligned
    data[data.index(array.tobytes())] = 99
    assert array[:3].tolist() == [99, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_what_samples_share_is_written_once_and_stays_shared() -> None:
    one, two = learned()
    large = clip()
    large.features["pixel_values"] = np.zeros(1 << 16, np.float32)  # type: ignore[index]
    large = replace(large, hash=features_hash("c", large.features))
    ids, positions = one.token_ids[:4], one.positions[:, :4]
    digest = prompt_digest(ids, positions, (large,))
    many = [replace(s, media=(replace(large),), digest=digest) for s in (one, two, one, two)]
    data = to_bytes(many)
    assert (1 << 18) < len(data) < (1 << 18) + 8192
    back = from_bytes(data)
    assert len({id(s.media[0].features) for s in back}) == 1


# ---- references --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "arrives"),
    [
        ("media/a.png", "media/a.png"),
        (Path("media/a.png"), "media/a.png"),
        ("data:image/png;base64,AAAA", "data:image/png;base64,AAAA"),
        (b"\x89PNG\0", b"\x89PNG\0"),
        (bytearray(b"\x89PNG"), b"\x89PNG"),
        ({"bytes": b"RIFF", "path": None}, {"bytes": b"RIFF", "path": None}),
        (None, None),
        (np.zeros((2, 3, 3), np.uint8), "<uint8 array [2, 3, 3]>"),
        (PIL.Image.new("RGB", (2, 2)), "<Image>"),
        ({"array": np.zeros(3), "sampling_rate": 16000}, "<object with array, sampling_rate>"),
    ],
)
def test_a_reference_arrives_as_it_is_or_as_its_description(ref: Any, arrives: Any) -> None:
    back = from_bytes(to_bytes(group(ref)))
    assert_same(back.prompt.media[0].raw, arrives)
    assert_same(back.task.messages[0].parts[0].ref, arrives)
    assert_same(back.prompt.media[0].features, group().prompt.media[0].features)


def test_references_that_are_made_on_the_way_do_not_mix() -> None:
    refs = [{"bytes": None, "path": f"{i}.png"} for i in range(50)]
    media = [clip(raw=ref) for ref in refs]
    assert [item.raw for item in from_bytes(to_bytes(media))] == refs


# ---- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (torch.zeros(1), "Tensor cannot be written"),
        (object(), "object cannot be written"),
        (np.array([object()]), "dtype object cannot be written"),
        (np.float32(1), "float32 cannot be written"),
    ],
)
def test_what_is_no_noun_is_refused(value: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        to_bytes([value])


@pytest.mark.parametrize("cut", [1, 64, 500])
def test_a_message_cut_short_is_refused(cut: int) -> None:
    data = to_bytes(group())
    with pytest.raises(ValueError, match=f"a message of {len(data)} bytes arrived with {len(data) - cut}"):
        from_bytes(data[:-cut])


@pytest.mark.parametrize("data", [b"", b"motet", b"\x80\x04." * 20, to_bytes(1).replace(b"\1", b"\2", 1)])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no message of this version"):
        from_bytes(data)


def test_only_nouns_are_made() -> None:
    data = to_bytes(Skip(reason="x"))
    with pytest.raises(KeyError, match="Path"):
        from_bytes(data.replace(b'"Skip"', b'"Path"'))


@pytest.mark.parametrize("made", [lambda: prompt(clip()), group, learned], ids=["prompt", "group", "samples"])
def test_a_prompt_that_is_not_what_its_digest_says_is_refused(made: Any) -> None:
    pixels = NAN.tobytes()
    data = to_bytes(made())
    assert data.count(pixels) == 1
    with pytest.raises(ValueError, match=r"is not what was sent: features of clip 0 \(image\) differ"):
        from_bytes(data.replace(pixels, bytes(16)))
    ids = np.array([5, 9, 9, 7], np.int32).tobytes()
    with pytest.raises(ValueError, match="is not what was sent: ids differ"):
        from_bytes(data.replace(ids, np.array([5, 9, 9, 8], np.int32).tobytes()))


def test_the_header_is_json() -> None:
    data = to_bytes(Skip(reason="x"))
    num = int.from_bytes(data[8:16], "little")
    assert json.loads(data[24 : 24 + num]) == {"value": ["Skip", "x"], "mappings": [], "blobs": []}
    assert len(data) % 64 == 0
