"""The recorded groups as HTML: media to see and hear, the question, the right answer, the completions and scores."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import ascii_uppercase
from typing import Any
from urllib.parse import quote

from motet.report.curves import number

Record = Mapping[str, Any]
"""As `rollout.record` writes it."""

MAX_CLIP_BYTES = 4_000_000
MAX_MEDIA_BYTES = 48_000_000
"""What the page holds at most, of a clip and of all; others are linked, and play while the page lies in the run."""
FORMATS = {
    "image": {"png": "png", "jpg": "jpeg", "jpeg": "jpeg", "gif": "gif", "webp": "webp", "bmp": "bmp"},
    "audio": {"wav": "wav", "mp3": "mpeg", "flac": "flac", "ogg": "ogg", "mp4": "mp4", "m4a": "mp4", "webm": "webm"},
    "video": {"mp4": "mp4", "m4v": "mp4", "webm": "webm", "ogg": "ogg"},
}
"""Suffix to media subtype, of what browsers play."""


def read(folder: Path) -> list[Record]:
    """In the order in which they were recorded; none where there is no folder."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]


def cards(records: Sequence[Record], folder: Path) -> str:
    sources = _sources(records, folder)
    return "".join(_card(record, sources) for record in records)


def _sources(records: Sequence[Record], folder: Path) -> dict[str, str]:
    """What `src` says for each clip: its bytes as a data URI where they fit, or where it lies from the run folder."""
    sources = {}
    left_bytes = MAX_MEDIA_BYTES
    for part in (p for record in records for m in record["messages"] for p in m["parts"] if p["kind"] != "text"):
        path = folder / part["file"]
        num_bytes = path.stat().st_size
        if num_bytes > min(MAX_CLIP_BYTES, left_bytes) or not _subtype(part):
            sources[path.name] = f"{quote(folder.name)}/{quote(path.name)}"
        else:
            left_bytes -= num_bytes
            data = b64encode(path.read_bytes()).decode()
            sources[path.name] = f"data:{part['kind']}/{_subtype(part)};base64,{data}"
    return sources


def _subtype(part: Mapping[str, Any]) -> str | None:
    return FORMATS[part["kind"]].get(part["file"].rpartition(".")[2])


def _card(record: Record, sources: Mapping[str, str]) -> str:
    scores = [completion["score"] for completion in record["completions"]]
    labels = "".join(f"<span>{escape(name)}</span>" for name in dict.fromkeys((record["kind"], record["modality"])))
    messages = "".join(_message(message, record, sources) for message in record["messages"])
    return (
        '<article class="group"><header>'
        f"<b>step {record['step']}</b>{labels}"
        f"<output>mean score {number(sum(scores) / len(scores))}</output></header>"
        f"{messages}{_answer(record)}"
        f"<ol>{_completions(record)}</ol>"
        f"<footer>{escape(record['task'])} · {escape(record['source'])}</footer></article>"
    )


# ---- the question ------------------------------------------------------------------------------


def _message(message: Mapping[str, Any], record: Record, sources: Mapping[str, str]) -> str:
    parts = "".join(
        _text(part["text"], record) if part["kind"] == "text" else _clip(part, sources[part["file"]])
        for part in message["parts"]
    )
    role = "" if len(record["messages"]) == 1 else f"<small>{escape(message['role'])}</small>"
    return f'<div class="message">{role}{parts}</div>'


def _clip(part: Mapping[str, Any], source: str) -> str:
    if not _subtype(part):
        return f'<a href="{source}">{escape(part["file"])}</a>'
    if part["kind"] == "image":
        return f'<img src="{source}" alt="{escape(part["file"])}">'
    linked = "" if source.startswith("data:") else ' preload="none"'
    return f'<{part["kind"]} controls src="{source}"{linked}></{part["kind"]}>'


def _text(text: str, record: Record) -> str:
    """The text without the list of options that ends it, where it has one: `_answer` shows them."""
    return f"<p>{escape(text.removesuffix(_option_lines(record)))}</p>"


def _option_lines(record: Record) -> str:
    options = zip(ascii_uppercase, record["options"], strict=False)
    return "".join(f"\n{letter}. {option}" for letter, option in options)


def _answer(record: Record) -> str:
    if not record["options"]:
        return f'<p class="answer">right answer: <mark>{escape(record["answer"])}</mark></p>'
    items = (
        f'<li class="{"right" if letter == record["answer"] else ""}"><b>{letter}</b> {escape(option)}</li>'
        for letter, option in zip(ascii_uppercase, record["options"], strict=False)
    )
    return f'<ul class="options">{"".join(items)}</ul>'


# ---- the answers -------------------------------------------------------------------------------


def _completions(record: Record) -> str:
    """Best first; what was said, scored and stopped alike is one line with its count."""
    scores = [completion["score"] for completion in record["completions"]]
    low, high = min(0.0, *scores), max(1.0, *scores)
    counts = Counter(json.dumps(completion, sort_keys=True) for completion in record["completions"])
    folded = [(json.loads(text), count) for text, count in counts.items()]
    folded.sort(key=lambda pair: (-pair[0]["score"], -pair[1]))
    return "".join(_completion(completion, count, low, high) for completion, count in folded)


def _completion(completion: Mapping[str, Any], count: int, low: float, high: float) -> str:
    share = (completion["score"] - low) / (high - low)
    grade = "good" if share >= 0.75 else "poor" if share <= 0.25 else "fair"
    notes = [f"{completion['num_tokens']} tokens"]
    if completion["stop"] != "eos":
        notes.append({"length": "cut at the limit", "abort": "aborted"}[completion["stop"]])
    notes += [f"{escape(name)} {number(value)}" for name, value in completion["parts"].items()]
    if "advantage" in completion:
        notes.append(f"advantage {completion['advantage']:+.2f}")
    text = escape(completion["text"]) or "<i>nothing</i>"
    times = f'<span class="times">×{count}</span>' if count > 1 else ""
    return (
        f'<li><output class="{grade}">{number(completion["score"])}</output>{times}'
        f"<div><pre>{text}</pre><small>{' · '.join(notes)}</small></div></li>"
    )
