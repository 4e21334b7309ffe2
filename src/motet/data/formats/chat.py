"""Chat lines with lists of media, as ms-swift and LLaMA-Factory read them.

    {"messages": [{"role": "user", "content": "<video><audio>What is described?"},
                  {"role": "assistant", "content": "A girl who draws a guitar."}],
     "videos": ["mllm_demo_data/4.mp4"], "audios": ["mllm_demo_data/4.mp3"]}

(github.com/hiyouga/LLaMA-Factory `data/mllm_video_audio_demo.json` and `data/README.md`; github.com/modelscope/ms-swift
`docs/source_en/Customization/Custom-dataset.md`). Also theirs: turns of ShareGPT in `conversations` (`from`, `value`)
or `conversation` (`human`, `assistant`), a `system` prompt beside the turns, the answer of GRPO rows in `solution`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from motet.data.formats.choices import choose, chosen, listed
from motet.data.formats.clips import Clips
from motet.data.formats.items import field, kind
from motet.data.rows import KINDS, RowError

ROLES = {"human": "user", "gpt": "assistant"}


def row(item: Mapping[str, Any], clips: Clips) -> dict[str, Any]:
    """The row of an item. The answer is `solution` or `answer` or else the last turn, where that is the assistant's;
    such a turn is no part of the prompt. Of an `<answer>` tag, it is the content."""
    turns = [{**turn, "content": _content(turn["content"], clips)} for turn in _turns(item)]
    last = _text(turns.pop()["content"]) if turns and turns[-1]["role"] == "assistant" else None
    answer = next((item[name] for name in ("solution", "answer") if item.get(name) is not None), last)
    if isinstance(answer, str):
        answer = (re.findall(r"<answer>(.*?)</answer>", answer, re.DOTALL) or [answer])[-1].strip()
    options = item.get("options") or (listed(_text(turns[-1]["content"])) if turns else [])
    index = chosen(str(answer), options) if isinstance(options, list) else None
    converted = {
        "kind": kind(next((item[k] for k in ("kind", "question_type", "data_source") if item.get(k)), None)),
        "messages": turns,
        **{f"{media}s": refs for media in KINDS if (refs := _references(item, media, clips))},
        "answer": answer,
    }
    if index is not None:
        converted |= {"options": options, "answer": choose(options, index)}
    elif item.get("options"):
        converted["options"] = options
    named = {name: item[name] for name in ("id", "use_audio_in_video") if item.get(name) is not None}
    return named | converted


def _turns(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    turns = field(item, "messages", "conversations", "conversation")
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise RowError("bad_messages", "messages must be a list of turns, each with its role and content")
    if item.get("system"):
        yield {"role": "system", "content": item["system"]}
    for turn in turns:
        if role := turn.get("role") or turn.get("from"):
            content = turn["content"] if turn.get("content") is not None else turn.get("value")
            yield {"role": ROLES.get(str(role), role), "content": content}
        else:
            yield from ({"role": ROLES.get(str(role), role), "content": content} for role, content in turn.items())


def _content(content: Any, clips: Clips) -> Any:
    """With the references of parts as OUT writes them; text is left alone."""
    return [_part(part, clips) for part in content] if isinstance(content, list) else content


def _part(part: Any, clips: Clips) -> Any:
    media = str(part.get("type")).removesuffix("_url") if isinstance(part, Mapping) else None
    if media not in KINDS or part.get(part["type"]) is None:  # text, or a placeholder for the next of a list
        return part
    kept = {"use_audio": part["use_audio"]} if part.get("use_audio") is not None else {}
    return {"type": media, media: clips.reference(part[part["type"]]), **kept}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return str(content or "")


def _references(item: Mapping[str, Any], media: str, clips: Clips) -> list[str]:
    refs = item.get(f"{media}s") or []
    return [clips.reference(ref) for ref in (refs if isinstance(refs, list) else [refs])]
