"""AudioMCQ and its like: multiple choice about one or more sounds.

`data.jsonl` of huggingface.co/datasets/Harland/AudioMCQ-StrongAC-GeminiCoT (arXiv 2509.21060) has lines

    {"source_dataset": "AudioCaps", "id": "7", "question_type": "sound", "audio_path": "AudioCaps/sample_7.wav",
     "question": "What is heard?", "answer": "Water splashing continuously",
     "choices": ["Water is pouring steadily", "Water splashing continuously", ...]}

(as read by github.com/NVIDIA-NeMo/RL, `response_datasets/audiomcq.py`). The same function reads what differs in names
alone: R1-AQA's lines (`question_text`, `multi_choice`, `answer` an index from 0), MMAU's (`audio_id`, `task`), parquet
tables with an `audio` column of `{"bytes", "path"}`, options as `{"A": ..., "B": ...}`, the answer as a letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from motet.data.formats.choices import choose, chosen
from motet.data.formats.clips import Clips
from motet.data.formats.items import field, kind
from motet.data.rows import RowError


def row(item: Mapping[str, Any], clips: Clips) -> dict[str, Any]:
    """The row of an item; its sounds come before its question."""
    options = _options(field(item, "choices", "options", "multi_choice"))
    sounds = field(item, "audio_path", "audio_paths", "audios", "audio", "audio_id")
    content = [
        {"type": "audio", "audio": clips.reference(sound)}
        for sound in (sounds if isinstance(sounds, list) else [sounds])
    ]
    content.append({"type": "text", "text": str(field(item, "question", "question_text"))})
    labels = (item[name] for name in ("question_type", "task", "category") if item.get(name))
    converted = {
        "kind": kind(next(labels, None)),
        "messages": [{"role": "user", "content": content}],
        "options": options,
        "answer": _answer(field(item, "answer"), options),
    }
    return converted if item.get("id") is None else {"id": str(item["id"]), **converted}


def _options(options: Any) -> list[str]:
    """In the order of their letters, where they have some."""
    if isinstance(options, Mapping):
        # A parquet table has a column for every letter that any of its rows uses.
        options = {letter: text for letter, text in sorted(options.items()) if text is not None}
        if "".join(options) != ascii_uppercase[: len(options)]:
            raise RowError("bad_options", f"options are called {', '.join(options)}; call them A, B, C, ...")
        options = list(options.values())
    if not isinstance(options, list):
        raise RowError("bad_options", "options must be a list of texts, or texts by letter")
    return [str(option) for option in options]


def _answer(answer: Any, options: list[str]) -> Any:
    """The option meant, by index, text or letter. What means none stays, and is refused with the row."""
    index = answer if type(answer) is int else chosen(str(answer), options)
    return choose(options, index) if index is not None and 0 <= index < len(options) else answer
