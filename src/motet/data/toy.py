"""A toy data set of real files: multiple choice over images, sounds and videos, in the manner of AVQA.

Every row is drawn from its own random stream, so train and held-out share no media, and the options of every row are
shuffled, so a guesser that reads only the text stays at chance on the media rows. `draw` makes one row in memory,
`write` makes the files.
"""

from __future__ import annotations

import json
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from motet.types import MediaKind, MediaPart, Message, Task, TextPart

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 80, 230),
    "yellow": (230, 210, 50),
}
SHAPES = ("circle", "square", "triangle", "cross")
PITCHES = {"low": 220.0, "middle": 700.0, "high": 2200.0}
DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
RATES = (8_000, 16_000, 22_050, 44_100)
LETTERS = "ABCDEFGH"
SIZE = 64  # pixels per side
FRAMES_PER_SECOND = 8
VIDEO_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """One piece of media before it is a file: pixels u8[H, W, 3], frames u8[F, H, W, 3] or samples f32[N]."""

    kind: MediaKind
    caption: str
    """What is to be seen or heard, in the words of the options."""
    pixels: NDArray[np.uint8] | None = None
    samples: NDArray[np.float32] | None = None
    rate: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyRow:
    """A question about clips; `answer` indexes `options`, `words` are what leads to it."""

    kind: str
    clips: tuple[Clip, ...]
    question: str
    options: tuple[str, ...]
    answer: int
    words: str
    """What a good answer says before its letter: the option, or what was perceived and then the option."""

    @property
    def solution(self) -> str:
        """A good answer, such as `red B`, or `up low no A` where picture and sound must be compared."""
        return f"{self.words} {LETTERS[self.answer]}"


# ---- clips -------------------------------------------------------------------------------------


def _canvas(rng: Generator) -> NDArray[np.float64]:
    return rng.uniform(20, 60) + rng.normal(0, 6, (SIZE, SIZE, 3))


def _stamp(canvas: NDArray[Any], shape: str, colour: str, *, y: float, x: float, radius: float) -> NDArray[np.uint8]:
    """Draw a filled shape of the given radius (pixels) at (y, x)."""
    rows, cols = np.mgrid[0:SIZE, 0:SIZE]
    dy, dx = rows - y, cols - x
    inside = {
        "circle": dy**2 + dx**2 <= radius**2,
        "square": np.maximum(abs(dy), abs(dx)) <= radius * 0.85,
        "triangle": (dy <= radius * 0.8) & (dy >= 2 * abs(dx) - radius),
        "cross": (np.minimum(abs(dy), abs(dx)) <= radius * 0.3) & (np.maximum(abs(dy), abs(dx)) <= radius),
    }[shape]
    pixels = np.where(inside[..., None], np.asarray(COLOURS[colour], float), canvas)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _picture(rng: Generator, colour: str, shape: str, *, radius: tuple[float, float] = (18, 24)) -> Clip:
    y, x = rng.uniform(SIZE / 2 - 5, SIZE / 2 + 5, 2)
    pixels = _stamp(_canvas(rng), shape, colour, y=y, x=x, radius=rng.uniform(*radius))
    return Clip(kind="image", caption=f"{colour} {shape}", pixels=pixels)


def _tone(rng: Generator, hertz: float, seconds: float, rate: int) -> NDArray[np.float32]:
    time = np.arange(int(seconds * rate)) / rate
    wave_ = rng.uniform(0.3, 0.6) * np.sin(2 * np.pi * hertz * rng.uniform(0.93, 1.07) * time + rng.uniform(0, 6.28))
    return (wave_ + rng.normal(0, 0.01, time.shape)).astype(np.float32)


def _sound(rng: Generator, pitch: str, seconds: float) -> Clip:
    rate = int(rng.choice(RATES))
    return Clip(kind="audio", caption=pitch, samples=_tone(rng, PITCHES[pitch], seconds, rate), rate=rate)


def _film(
    rng: Generator, *, start: tuple[float, float], step: tuple[float, float], where: str, pitch: str | None
) -> Clip:
    """A shape that starts at (y, x) and moves by `step` pixels a frame; with a tone where a pitch is given."""
    shape, colour = str(rng.choice(SHAPES)), str(rng.choice(list(COLOURS)))
    caption = " ".join(word for word in (where, pitch, colour) if word)
    canvas, radius = _canvas(rng), rng.uniform(13, 16)
    frames = [
        _stamp(canvas, shape, colour, y=start[0] + k * step[0], x=start[1] + k * step[1], radius=radius)
        for k in range(int(VIDEO_SECONDS * FRAMES_PER_SECOND))
    ]
    samples = None if pitch is None else _tone(rng, PITCHES[pitch], VIDEO_SECONDS, 16_000)
    rate = 0 if pitch is None else 16_000
    return Clip(kind="video", caption=caption, pixels=np.stack(frames), samples=samples, rate=rate)


# ---- rows --------------------------------------------------------------------------------------


def _choose(rng: Generator, right: str, others: list[str], num_options: int) -> tuple[tuple[str, ...], int]:
    """Shuffled options with `right` among them, and its index."""
    wrong = [o for o in others if o != right]
    picked = [right, *(str(o) for o in rng.choice(wrong, num_options - 1, replace=False))]
    order = rng.permutation(num_options)
    return tuple(picked[i] for i in order), int(np.flatnonzero(order == 0)[0])


def _row(
    rng: Generator,
    kind: str,
    clips: tuple[Clip, ...],
    question: str,
    right: str,
    choices: list[str],
    perceived: str = "",
) -> ToyRow:
    options, answer = _choose(rng, right, choices, min(4, len(choices)))
    words = f"{perceived} {right}".lstrip()
    return ToyRow(kind=kind, clips=clips, question=question, options=options, answer=answer, words=words)


def _pick(rng: Generator, choices: Any) -> str:
    return str(rng.choice(list(choices)))


def _image_colour(rng: Generator) -> ToyRow:
    colour = _pick(rng, COLOURS)
    clip = _picture(rng, colour, _pick(rng, SHAPES))
    return _row(rng, "image_colour", (clip,), "What colour is the shape?", colour, list(COLOURS))


def _image_shape(rng: Generator) -> ToyRow:
    shape = _pick(rng, SHAPES)
    clip = _picture(rng, _pick(rng, COLOURS), shape)
    return _row(rng, "image_shape", (clip,), "Which shape is in the image?", shape, list(SHAPES))


def _images_colour(rng: Generator) -> ToyRow:
    """Two or three images; the answer needs all of them."""
    colours = [str(c) for c in rng.choice(list(COLOURS), int(rng.integers(2, 4)), replace=False)]
    biggest = int(rng.integers(len(colours)))
    clips = tuple(
        _picture(rng, c, _pick(rng, SHAPES), radius=(22, 26) if k == biggest else (7, 9)) for k, c in enumerate(colours)
    )
    return _row(rng, "images_colour", clips, "What colour is the biggest shape?", colours[biggest], list(COLOURS))


def _audio_pitch(rng: Generator) -> ToyRow:
    pitch = _pick(rng, PITCHES)
    clip = _sound(rng, pitch, rng.uniform(0.4, 0.8))
    return _row(rng, "audio_pitch", (clip,), "What pitch is the sound?", pitch, list(PITCHES))


def _audio_longer(rng: Generator) -> ToyRow:
    short = rng.uniform(0.2, 0.5)
    seconds = [short, short * rng.uniform(2.0, 3.0)]
    right = int(rng.integers(2))
    clips = tuple(_sound(rng, _pick(rng, PITCHES), seconds[int(k == right)]) for k in range(2))
    return _row(rng, "audio_longer", clips, "Which sound is longer?", ("first", "second")[right], ["first", "second"])


def _video_motion(rng: Generator) -> ToyRow:
    direction = _pick(rng, DIRECTIONS)
    dy, dx = DIRECTIONS[direction]
    y, x = SIZE / 2 + rng.uniform(-4, 4, 2) - np.array([dy, dx]) * 20
    clip = _film(rng, start=(y, x), step=(dy * 2.6, dx * 2.6), where=direction, pitch=None)
    return _row(rng, "video_motion", (clip,), "Which way does the shape move?", direction, list(DIRECTIONS))


def _video_agree(rng: Generator) -> ToyRow:
    top, high = bool(rng.integers(2)), bool(rng.integers(2))
    y = (14 if top else SIZE - 14) + rng.uniform(-3, 3)
    where, pitch = "up" if top else "down", "high" if high else "low"
    clip = _film(rng, start=(y, rng.uniform(20, 44)), step=(0, 0), where=where, pitch=pitch)
    right = "yes" if top == high else "no"
    question = "Do shape and tone agree?"
    return _row(rng, "video_agree", (clip,), question, right, ["yes", "no"], perceived=f"{where} {pitch}")


def _image_audio(rng: Generator) -> ToyRow:
    """The sound says what to look for: neither clip alone gives the answer."""
    colour, other_colour = (str(c) for c in rng.choice(list(COLOURS), 2, replace=False))
    shape, other_shape = (str(s) for s in rng.choice(list(SHAPES), 2, replace=False))
    pitch = _pick(rng, ("high", "low"))
    clips = (_picture(rng, colour, shape), _sound(rng, pitch, rng.uniform(0.4, 0.8)))
    right = colour if pitch == "high" else shape
    choices = [colour, other_colour, shape, other_shape]
    question = "Tone high: which colour? Tone low: which shape?"
    return _row(rng, "image_audio", clips, question, right, choices, perceived=pitch)


def _text(rng: Generator) -> ToyRow:
    word = _pick(rng, COLOURS)
    return _row(rng, "text", (), f"Which option says {word}?", word, list(COLOURS))


KINDS: dict[str, Callable[[Generator], ToyRow]] = {
    "text": _text,
    "image_colour": _image_colour,
    "image_shape": _image_shape,
    "images_colour": _images_colour,
    "audio_pitch": _audio_pitch,
    "audio_longer": _audio_longer,
    "video_motion": _video_motion,
    "video_agree": _video_agree,
    "image_audio": _image_audio,
}


def draw(kind: str, rng: Generator) -> ToyRow:
    """One row of the given kind, clips in memory."""
    return KINDS[kind](rng)


def prompt_text(question: str, options: tuple[str, ...]) -> str:
    """The text under the clips.

    >>> prompt_text("Which sound is longer?", ("second", "first"))
    'Which sound is longer?\\nA. second\\nB. first'
    """
    return "\n".join([question, *(f"{LETTERS[i]}. {o}" for i, o in enumerate(options))])


def task(row: ToyRow, source: str) -> Task:
    """The row with its clips in memory."""
    parts: list[MediaPart | TextPart] = [
        MediaPart(kind=clip.kind, ref=_decoded(clip), use_audio=clip.kind == "video" and clip.samples is not None)
        for clip in row.clips
    ]
    parts.append(TextPart(text=prompt_text(row.question, row.options)))
    message = Message(role="user", parts=tuple(parts))
    answer = LETTERS[row.answer]
    return Task(id=source, messages=(message,), answer=answer, options=row.options, kind=row.kind, source=source)


def _decoded(clip: Clip) -> Any:
    """The clip as `motet.data.media` takes decoded objects."""
    sound = None if clip.samples is None else {"array": clip.samples, "sampling_rate": clip.rate}
    if clip.kind == "video":
        film = {"frames": clip.pixels, "fps": FRAMES_PER_SECOND}
        return film | ({"audio": sound} if sound else {})
    return clip.pixels if clip.kind == "image" else sound


# ---- files -------------------------------------------------------------------------------------


def _write_wav(path: Path, samples: NDArray[np.float32], rate: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def _write_mp4(path: Path, clip: Clip) -> None:
    import av

    assert clip.pixels is not None
    # With its assembly code, x264's lookahead reads memory that it never wrote where pictures are this small: one run
    # in five gave other bytes. Its C code does not, and is the same on every processor.
    options = {"crf": "18", "preset": "veryfast", "x264-params": "asm=0"}
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=FRAMES_PER_SECOND, options=options)
        video.width = video.height = SIZE
        video.pix_fmt = "yuv420p"
        video.codec_context.thread_count = 1
        sound = container.add_stream("aac", rate=clip.rate, layout="mono") if clip.samples is not None else None
        for pixels in clip.pixels:
            container.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(video.encode())
        if sound is not None and clip.samples is not None:
            for start in range(0, len(clip.samples), 1024):
                frame = av.AudioFrame.from_ndarray(clip.samples[None, start : start + 1024], "fltp", "mono")
                frame.rate, frame.pts, frame.time_base = clip.rate, start, Fraction(1, clip.rate)
                container.mux(sound.encode(frame))
            container.mux(sound.encode())


def _write_clip(stem: Path, clip: Clip) -> Path:
    from PIL import Image

    path = stem.with_suffix({"image": ".png", "audio": ".wav", "video": ".mp4"}[clip.kind])
    if clip.kind == "image":
        assert clip.pixels is not None
        Image.fromarray(clip.pixels).save(path)
    elif clip.kind == "audio":
        assert clip.samples is not None
        _write_wav(path, clip.samples, clip.rate)
    else:
        _write_mp4(path, clip)
    return path


def _write_row(folder: Path, row: ToyRow, name: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    for k, clip in enumerate(row.clips):
        path = _write_clip(folder / "media" / f"{name}-{k}", clip)
        part: dict[str, Any] = {"type": clip.kind, clip.kind: str(path.relative_to(folder))}
        if clip.kind == "video" and clip.samples is not None:
            part["use_audio"] = True
        content.append(part)
    content.append({"type": "text", "text": prompt_text(row.question, row.options)})
    return {
        "id": name,
        "kind": row.kind,
        "messages": [{"role": "user", "content": content}],
        "options": list(row.options),
        "answer": LETTERS[row.answer],
    }


def _rows(seed: int, split: int, num_rows: int) -> Iterator[ToyRow]:
    """Kinds take turns; row i of a split has a random stream of its own."""
    kinds = list(KINDS)
    for i in range(num_rows):
        yield draw(kinds[i % len(kinds)], np.random.default_rng((seed, split, i)))


def write(path: Path | str, *, seed: int = 0, num_train: int = 1350, num_heldout: int = 450) -> None:
    """Write `train.jsonl`, `heldout.jsonl` and their `media/` into the folder `path`."""
    folder = Path(path)
    (folder / "media").mkdir(parents=True, exist_ok=True)
    for split, (name, num_rows) in enumerate((("train", num_train), ("heldout", num_heldout))):
        with (folder / f"{name}.jsonl").open("w") as file:
            for i, row in enumerate(_rows(seed, split, num_rows)):
                file.write(json.dumps(_write_row(folder, row, f"{name}-{i:05d}")) + "\n")
