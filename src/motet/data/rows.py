"""Row files become Tasks: JSONL, parquet, and folders written by `datasets.save_to_disk`.

A row says what to ask in one of two forms. Both may also carry `id`, `options` and `kind`; other keys are ignored.

    {"messages": [{"role": "user", "content": [{"type": "image", "image": "a.png"},
                                               {"type": "text", "text": "What colour?"}]}], "answer": "red"}
    {"question": "<image>What colour?", "images": ["a.png"], "options": ["red", "blue"], "answer": "A"}

In the second, `<image>`, `<audio>` and `<video>` stand where the lists `images`, `audios` and `videos` are filled in,
in reading order; a list that is absent, null or empty leaves its placeholder as the text it is. docs/data.md has more.
"""

from __future__ import annotations

import json
import re
import reprlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Protocol, get_args

from motet.types import MediaKind, MediaPart, Message, Part, Task, TextPart

ROLES = ("system", "user", "assistant")
KINDS: tuple[MediaKind, ...] = get_args(MediaKind)


class RowError(ValueError):
    """A row that cannot become a Task: one line that begins with `file:line: `."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        """A short name to count by: bad_json, bad_messages, bad_media, bad_options or bad_answer."""
        self.message = message

    def __str__(self) -> str:
        return self.message


class Rows:
    """The tasks of a row file by number from 0, parsed when they are asked for, so that any order is cheap.

    Raises ValueError for a file that is not there or not of a known kind; indexing raises RowError for a bad row.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.base = self.path if self.path.is_dir() else self.path.parent
        """What relative media paths start from."""
        self._raw = _open(self.path)

    def __len__(self) -> int:
        return len(self._raw)

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        source = f"{self.path.name}:{self._raw.line(index)}"
        try:
            row = self._raw.row(index)
        except UnicodeDecodeError as error:
            raise RowError("bad_json", f"{source}: not UTF-8 text: {error.reason} at byte {error.start + 1}") from error
        except json.JSONDecodeError as error:
            raise RowError("bad_json", f"{source}: not valid JSON: {error.msg} at column {error.colno}") from error
        return to_task(row, source=source, default_id=f"{self.path.stem}-{index}")


# ---- files -------------------------------------------------------------------------------------


class _RawRows(Protocol):
    def __len__(self) -> int: ...
    def line(self, index: int) -> int:
        """How messages number the row, from 1."""

    def row(self, index: int) -> Any: ...


class _JsonLines:
    """Knows where each line begins; reads and parses a line when it is asked for. Blank lines are no rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offsets, self.lines = array("q"), array("q")
        offset = 0
        with path.open("rb") as file:
            for line, text in enumerate(file, 1):
                if not text.isspace():
                    self.offsets.append(offset)
                    self.lines.append(line)
                offset += len(text)

    def __len__(self) -> int:
        return len(self.offsets)

    def line(self, index: int) -> int:
        return self.lines[index]

    def row(self, index: int) -> Any:
        with self.path.open("rb") as file:
            file.seek(self.offsets[index])
            return json.loads(file.readline())


class _Arrow:
    """Rows of an Arrow table; media columns stay `{"bytes", "path"}`."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def line(self, index: int) -> int:
        return index + 1

    def row(self, index: int) -> Any:
        return self.table[index : index + 1].to_pylist()[0]


def _open(path: Path) -> _RawRows:
    if path.is_dir():
        return _Arrow(_datasets_folder(path))
    if not path.is_file():
        raise ValueError(f"{path}: no such file or folder; data.train and data.heldout name the rows")
    if path.suffix == ".jsonl":
        return _JsonLines(path)
    if path.suffix == ".parquet":
        return _Arrow(_parquet(path))
    raise ValueError(f"{path}: unknown kind of row file; give .jsonl, .parquet or a folder of datasets.save_to_disk")


def _parquet(path: Path) -> Any:
    """The whole table, in memory; what does not fit there belongs into a datasets folder, which is mapped."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{path}: reading parquet needs pyarrow; pip install 'motet[data]'") from error
    try:
        return pyarrow.parquet.read_table(path, memory_map=True)
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path}: not a readable parquet file: {' '.join(str(error).split())}") from error


def _datasets_folder(path: Path) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(f"{path}: reading a datasets folder needs datasets; pip install 'motet[data]'") from error
    try:
        dataset = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: not a folder written by datasets.save_to_disk: {reason}") from error
    if isinstance(dataset, datasets.DatasetDict):
        raise ValueError(
            f"{path}: holds the splits {', '.join(dataset)}; give the folder of one, {path / next(iter(dataset))}"
        )
    # As stored: the library would decode media columns in its own way.
    return dataset.with_format("arrow")


# ---- one row -----------------------------------------------------------------------------------


def to_task(row: Any, *, source: str, default_id: str) -> Task:
    """The Task that a row describes. `source` is its `file:line`; `default_id` is for rows without an `id`.

    Raises RowError.
    """
    try:
        if not isinstance(row, Mapping):
            raise RowError("bad_json", f"a row must be an object, not {reprlib.repr(row)}")
        options = _options(row.get("options"))
        return Task(
            id=default_id if row.get("id") is None else str(row["id"]),
            messages=_list_options(_messages(row), options),
            answer=_answer(row.get("answer"), options),
            source=source,
            options=options,
            kind=str(row.get("kind") or ""),
        )
    except RowError as error:
        raise RowError(error.reason, f"{source}: {error}") from None


class _RowMedia:
    """The media lists of a row, handed out in reading order, and which of its videos are heard."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.refs = {kind: row.get(f"{kind}s") or [] for kind in KINDS}
        for kind, refs in self.refs.items():
            if not isinstance(refs, list | tuple) or any(ref is None for ref in refs):
                raise RowError("bad_media", f"{kind}s must be a list of references, not {reprlib.repr(refs)}")
        heard = row.get("use_audio_in_video") or False
        self.heard = list(heard) if isinstance(heard, list | tuple) else heard
        self.num_placeholders: Counter[str] = Counter()
        self.num_videos = 0

    def part(self, kind: MediaKind, ref: Any = None, use_audio: Any = None) -> MediaPart:
        """Without a `ref`, the part is a placeholder for the next one of the row's list."""
        if ref is None:
            index = self.num_placeholders[kind]
            self.num_placeholders[kind] += 1
            ref = self.refs[kind][index] if index < len(self.refs[kind]) else None  # `check` reports the missing one
        if kind != "video":
            return MediaPart(kind=kind, ref=ref)
        if not isinstance(use_audio, bool | None):
            raise RowError("bad_media", f"use_audio must be true or false, not {use_audio!r}")
        if use_audio is None:
            heard = self.heard[self.num_videos : self.num_videos + 1] if isinstance(self.heard, list) else [self.heard]
            use_audio = heard == [True]
        self.num_videos += 1
        return MediaPart(kind=kind, ref=ref, use_audio=use_audio)

    def split(self, text: str) -> Iterator[Part]:
        """Text and media of a string with placeholders, those of empty lists being text."""
        placeholders = {f"<{kind}>": kind for kind in KINDS if self.refs[kind]}
        pieces = re.split(f"({'|'.join(placeholders)})", text) if placeholders else [text]
        for piece in pieces:
            if piece in placeholders:
                yield self.part(placeholders[piece])
            elif piece:
                yield TextPart(text=piece)

    def check(self) -> None:
        """After the last message: everything was used, and nothing was missing."""
        for kind, refs in self.refs.items():
            if len(refs) != self.num_placeholders[kind]:
                given, wanted = _count(len(refs), kind), _count(self.num_placeholders[kind], f"<{kind}> placeholder")
                raise RowError("bad_media", f"{given} but {wanted}; give one placeholder per {kind}, in reading order")
        heard = self.heard if isinstance(self.heard, list) else [self.heard]
        if not all(isinstance(flag, bool) for flag in heard):
            raise RowError("bad_media", f"use_audio_in_video must be true, false or a list of them, not {self.heard!r}")
        if isinstance(self.heard, list) and len(heard) != self.num_videos:
            raise RowError(
                "bad_media", f"{_count(len(heard), 'use_audio_in_video flag')} but {_count(self.num_videos, 'video')}"
            )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _messages(row: Mapping[str, Any]) -> tuple[Message, ...]:
    turns = row.get("messages")
    if turns is None:
        text = row.get("question") if row.get("prompt") is None else row["prompt"]
        if not isinstance(text, str):
            raise RowError("bad_messages", "needs messages, or prompt or question as text")
        turns = [{"role": "user", "content": text}]
    if not isinstance(turns, list | tuple) or not turns:
        raise RowError("bad_messages", "messages must be a list with at least one message")
    media = _RowMedia(row)
    messages = tuple(_message(turn, media) for turn in turns)
    media.check()
    if messages[-1].role != "user":
        raise RowError("bad_messages", f"the last message is the {messages[-1].role}'s; it must be the user's")
    return messages


def _message(turn: Any, media: _RowMedia) -> Message:
    if not isinstance(turn, Mapping) or turn.get("role") not in ROLES:
        role = turn.get("role") if isinstance(turn, Mapping) else turn
        raise RowError("bad_messages", f"unknown role {reprlib.repr(role)}; use {', '.join(ROLES)}")
    content = turn.get("content")
    if isinstance(content, str):
        parts = tuple(media.split(content))
    elif isinstance(content, list | tuple):
        parts = tuple(_part(part, media) for part in content)
    else:
        raise RowError("bad_messages", f"the {turn['role']}'s content must be text or a list of parts")
    if not parts:
        raise RowError("bad_messages", f"the {turn['role']}'s message is empty; leave it out")
    return Message(role=turn["role"], parts=parts)


def _part(part: Any, media: _RowMedia) -> Part:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return TextPart(text=part["text"])
    for media_kind in KINDS:
        if kind in (media_kind, f"{media_kind}_url"):
            ref = part.get(kind)
            if kind != media_kind and isinstance(ref, Mapping):
                ref = ref.get("url")
            return media.part(media_kind, ref, part.get("use_audio"))
    raise RowError(
        "bad_messages", f"unknown content {reprlib.repr(part)}; use parts of type text, image, audio or video"
    )


# ---- multiple choice ---------------------------------------------------------------------------


def _options(options: Any) -> tuple[str, ...]:
    """The texts of the choices, without the letters that some data sets write before them."""
    options = options or []
    if not isinstance(options, list | tuple) or not all(isinstance(option, str) for option in options):
        raise RowError("bad_options", f"options must be a list of texts, not {reprlib.repr(options)}")
    if len(options) > len(ascii_uppercase):
        raise RowError("bad_options", f"{len(options)} options; there are only {len(ascii_uppercase)} letters")
    lettered = [re.match(rf"\(?{letter}[.):]\s+", text) for letter, text in zip(ascii_uppercase, options, strict=False)]
    return tuple(text[m.end() if m and all(lettered) else 0 :] for m, text in zip(lettered, options, strict=True))


def _list_options(messages: tuple[Message, ...], options: Sequence[str]) -> tuple[Message, ...]:
    """Append the choices, a line each, to the last message, unless its text lists them already."""
    *before, last = messages
    text = "\n".join(part.text for part in last.parts if isinstance(part, TextPart))
    if not options or re.search(r"^\s*(A[.)] |\(A\))", text, re.MULTILINE):
        return messages
    lines = "".join(f"\n{letter}. {option}" for letter, option in zip(ascii_uppercase, options, strict=False))
    *parts, end = last.parts
    if isinstance(end, TextPart):
        parts.append(TextPart(text=end.text.rstrip("\n") + lines))
    else:
        parts += [end, TextPart(text=lines)]
    return (*before, Message(role=last.role, parts=tuple(parts)))


def _answer(answer: Any, options: Sequence[str]) -> str:
    """The letter of the right option; without options, the answer's text."""
    if answer is None or answer == "":
        raise RowError("bad_answer", "has no answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise RowError("bad_answer", f"answer {reprlib.repr(answer)} is neither text nor a number")
    if not options:
        return str(answer)
    meant = [
        letter
        for index, (letter, option) in enumerate(zip(ascii_uppercase, options, strict=False))
        if answer == index or str(answer) in _spellings(letter, option)
    ]
    if not meant:
        among = reprlib.repr(list(options))
        raise RowError("bad_answer", f"answer {reprlib.repr(answer)} is not among the options {among}")
    if len(meant) > 1:
        both = " or ".join(meant)
        raise RowError(
            "bad_answer",
            f"answer {reprlib.repr(answer)} could be {both}; give the letter, text or index (from 0) that only one has",
        )
    return meant[0]


def _spellings(letter: str, option: str) -> set[str]:
    return {option, letter} | {
        mark + rest for mark in (f"{letter}.", f"{letter})", f"({letter})") for rest in ("", f" {option}")
    }
