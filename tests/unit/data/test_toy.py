"""The toy data set: real files, right answers, and nothing in the text that gives them away."""

from __future__ import annotations

import asyncio
import json
import math
import wave
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import av
import numpy as np
import PIL.Image
import pytest

from motet.config.schema import VideoConfig
from motet.data import media, toy
from motet.data.blind import NaiveBayes, Question
from motet.data.reference import Reach
from motet.data.rows import Rows
from motet.data.toy import ToyRow
from motet.rewards.choice import Choice
from motet.types import Completion

MEDIA_KINDS = [kind for kind in toy.KINDS if kind != "text"]
NUM_TRAIN, NUM_HELDOUT = 150, 250
"""Rows of each kind."""


def draw(split: int, num: int) -> dict[str, list[ToyRow]]:
    return {
        kind: [toy.draw(kind, np.random.default_rng((5, split, k, i))) for i in range(num)]
        for k, kind in enumerate(toy.KINDS)
    }


@pytest.fixture(scope="module")
def train() -> dict[str, list[ToyRow]]:
    return draw(0, NUM_TRAIN)


@pytest.fixture(scope="module")
def heldout() -> dict[str, list[ToyRow]]:
    return draw(1, NUM_HELDOUT)


# ---- files -------------------------------------------------------------------------------------


def parts(folder: Path) -> Iterator[dict[str, Any]]:
    for name in ("train", "heldout"):
        for line in (folder / f"{name}.jsonl").read_text().splitlines():
            yield from json.loads(line)["messages"][0]["content"]


def test_both_splits_hold_every_kind(toy_folder: Path) -> None:
    for name, num_rows in (("train", 45), ("heldout", 18)):
        rows = list(Rows(toy_folder / f"{name}.jsonl"))
        assert Counter(row.kind for row in rows) == dict.fromkeys(toy.KINDS, num_rows // 9)
        assert all(row.options[toy.LETTERS.index(row.answer)] for row in rows)


def test_images_are_png(toy_folder: Path) -> None:
    paths = [toy_folder / part["image"] for part in parts(toy_folder) if part["type"] == "image"]
    for path in paths:
        with PIL.Image.open(path) as image:
            assert (image.format, image.mode, image.size) == ("PNG", "RGB", (64, 64))
    assert len(paths) > 21 + 14  # a row of three kinds has one image, a row of `images_colour` has two or three


def test_sounds_are_wav_of_several_rates(toy_folder: Path) -> None:
    rates: Counter[int] = Counter()
    for part in parts(toy_folder):
        if part["type"] == "audio":
            with wave.open(str(toy_folder / part["audio"])) as file:
                assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
                assert 0.2 <= file.getnframes() / file.getframerate() <= 1.5
                rates[file.getframerate()] += 1
    assert rates.keys() == set(toy.RATES)


def test_videos_are_mp4_with_and_without_sound(toy_folder: Path) -> None:
    sound: Counter[int] = Counter()
    for part in parts(toy_folder):
        if part["type"] == "video":
            with av.open(str(toy_folder / part["video"])) as container:
                assert len(container.streams.audio) == part.get("use_audio", False)
                sound[len(container.streams.audio)] += 1
                frames = list(container.decode(video=0))
                assert [frame.time for frame in frames] == [i / 8 for i in range(16)]
                assert {(frame.width, frame.height) for frame in frames} == {(64, 64)}
    assert sound == {0: 7, 1: 7}


def test_splits_share_no_media(toy_folder: Path) -> None:
    contents = {
        name: [
            media.load(part, reach=Reach((toy_folder,), toy_folder), video=VideoConfig()).content
            for row in Rows(toy_folder / f"{name}.jsonl")
            for part in row.media
        ]
        for name in ("train", "heldout")
    }
    everything = contents["train"] + contents["heldout"]
    assert len(everything) == len(set(everything))


def test_files_are_those_of_the_seed(tmp_path: Path) -> None:
    for folder, seed in (("one", 3), ("same", 3), ("other", 4)):
        toy.write(tmp_path / folder, seed=seed, num_train=9, num_heldout=0)
    one, same, other = (
        {p.name: p.read_bytes() for p in (tmp_path / folder / "media").iterdir()} for folder in ("one", "same", "other")
    )
    assert same == one
    assert not set(same.values()) & set(other.values())


# ---- answers -----------------------------------------------------------------------------------


def answer_from_media(row: ToyRow) -> str:
    """The right option, from pixels and samples alone."""
    clips = row.clips
    if row.kind == "text":
        return row.question.removesuffix("?").split()[-1]
    if row.kind == "audio_longer":
        first, second = (len(clip.samples) / clip.rate for clip in clips if clip.samples is not None)
        return "first" if first > second else "second"
    if row.kind == "audio_pitch":
        return heard(clips[0])
    pixels = clips[0].pixels
    assert pixels is not None
    if row.kind == "video_motion":
        (y0, x0), (y1, x1) = centre(pixels[0]), centre(pixels[-1])
        if abs(y1 - y0) > abs(x1 - x0):
            return "down" if y1 > y0 else "up"
        return "right" if x1 > x0 else "left"
    if row.kind == "video_agree":
        return "yes" if (centre(pixels[0])[0] < 32) == (heard(clips[0]) == "high") else "no"
    if row.kind == "images_colour":
        return colour(max((clip.pixels for clip in clips), key=lambda image: int(stands_out(image).sum())))
    if row.kind == "image_shape" or (row.kind == "image_audio" and heard(clips[1]) == "low"):
        return shape(pixels)
    return colour(pixels)


def stands_out(pixels: Any) -> Any:
    """bool[H, W], where the shape is; the ground is darker than any of its colours."""
    return pixels.max(-1) > 130


def centre(pixels: Any) -> tuple[float, float]:
    y, x = np.nonzero(stands_out(pixels))
    return float(y.mean()), float(x.mean())


def colour(pixels: Any) -> str:
    mean = pixels[stands_out(pixels)].mean(0)
    return min(toy.COLOURS, key=lambda name: float(np.abs(mean - toy.COLOURS[name]).sum()))


def shape(pixels: Any) -> str:
    """By the share of the bounding box that is filled; a triangle's is narrower at its top."""
    inside = stands_out(pixels)
    y, x = np.nonzero(inside)
    box = inside[y.min() : y.max() + 1, x.min() : x.max() + 1]
    shares = {"circle": math.pi / 4, "square": 1.0, "triangle": 0.5, "cross": 0.51}
    nearest = min(shares, key=lambda name: abs(shares[name] - box.mean()))
    if nearest in ("triangle", "cross"):
        return "triangle" if box[0].mean() < 0.2 else "cross"
    return nearest


def heard(clip: toy.Clip) -> str:
    assert clip.samples is not None
    hertz = float(np.abs(np.fft.rfft(clip.samples)).argmax() * clip.rate / len(clip.samples))
    return min(toy.PITCHES, key=lambda pitch: abs(math.log(hertz / toy.PITCHES[pitch])))


@pytest.mark.parametrize("kind", toy.KINDS)
def test_the_answer_is_what_the_media_show(train: dict[str, list[ToyRow]], kind: str) -> None:
    for row in train[kind]:
        assert row.options[row.answer] == answer_from_media(row)
        assert len(set(row.options)) == len(row.options)


@pytest.mark.parametrize("kind", toy.KINDS)
def test_the_solution_is_scored_as_right_and_only_with_its_own_letter(
    train: dict[str, list[ToyRow]], kind: str
) -> None:
    for row in train[kind][:20]:
        right = toy.LETTERS[row.answer]
        assert row.solution.split()[-2:] == [row.options[row.answer], right]
        letters = toy.LETTERS[: len(row.options)]
        completions = [completion(row.solution.removesuffix(right) + letter) for letter in letters]
        scores = asyncio.run(Choice()(toy.task(row, "row 1"), completions))
        assert [score.value for score in scores] == [float(letter == right) for letter in letters]


def completion(text: str) -> Completion:
    nothing = np.zeros(0)
    return Completion(
        token_ids=nothing.astype(int), logprobs=nothing, mask=nothing > 0, stop="eos", versions=(0, 0), text=text
    )


# ---- what the text gives away ------------------------------------------------------------------

CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27}
"""Exceeded with probability 0.001, by degrees of freedom."""


@pytest.mark.parametrize("kind", toy.KINDS)
def test_answers_are_spread_over_the_letters(
    train: dict[str, list[ToyRow]], heldout: dict[str, list[ToyRow]], kind: str
) -> None:
    rows = train[kind] + heldout[kind]
    num_options = len(rows[0].options)
    expected = len(rows) / num_options
    counts = Counter(row.answer for row in rows)
    assert sum((counts[i] - expected) ** 2 / expected for i in range(num_options)) < CHI_SQUARE[num_options - 1]


def question(row: ToyRow) -> Question:
    return Question.of(toy.task(row, "row 1"))


def num_right(guesser: NaiveBayes, rows: Sequence[ToyRow]) -> int:
    return sum(guesser.guess(question(row)) == row.answer for row in rows)


def is_at_chance(guesser: NaiveBayes, rows: Sequence[ToyRow]) -> bool:
    """Whether it is within the 99.9 % interval of a guesser that draws an option."""
    chances = [1 / len(row.options) for row in rows]
    bound = NormalDist().inv_cdf(0.9995) * math.sqrt(sum(p * (1 - p) for p in chances))
    return abs(num_right(guesser, rows) - sum(chances)) < bound


@pytest.fixture(scope="module")
def guesser(train: dict[str, list[ToyRow]]) -> NaiveBayes:
    return NaiveBayes([question(row) for rows in train.values() for row in rows])


def test_a_text_blind_guesser_stays_at_chance(guesser: NaiveBayes, heldout: dict[str, list[ToyRow]]) -> None:
    assert is_at_chance(guesser, [row for kind in MEDIA_KINDS for row in heldout[kind]])


@pytest.mark.parametrize("kind", MEDIA_KINDS)
def test_a_text_blind_guesser_stays_at_chance_on_each_kind(
    guesser: NaiveBayes, heldout: dict[str, list[ToyRow]], kind: str
) -> None:
    assert is_at_chance(guesser, heldout[kind])


def test_the_guesser_finds_what_a_text_gives_away(guesser: NaiveBayes, heldout: dict[str, list[ToyRow]]) -> None:
    """Rows of text alone are there to be answered from the text."""
    assert num_right(guesser, heldout["text"]) > 0.95 * NUM_HELDOUT


@pytest.mark.parametrize("kind", MEDIA_KINDS)
def test_the_guesser_finds_a_favourite_word(
    train: dict[str, list[ToyRow]], heldout: dict[str, list[ToyRow]], kind: str
) -> None:
    """Were the right option the first in the alphabet, the tests above would fail."""
    leaky_train, leaky_heldout = (
        [row for row in rows[kind] if row.options[row.answer] == min(row.options)] for rows in (train, heldout)
    )
    assert not is_at_chance(NaiveBayes([question(row) for row in leaky_train]), leaky_heldout)
