"""LLaVA's instruction data: a conversation about an image or, in LLaVA-Video-178K, a video.

    {"id": "997bb945", "image": "part-000001/997bb945.jpg",
     "conversations": [{"from": "human", "value": "<image>\\nWhat is shown?"}, {"from": "gpt", "value": "a boat"}]}

(github.com/haotian-liu/LLaVA `docs/Finetune_Custom_Data.md`). `image` may be a list. The video files of
huggingface.co/datasets/lmms-lab/LLaVA-Video-178K have `video` and `data_source`, and write `<image>` for the video too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from motet.data.formats import chat
from motet.data.formats.clips import Clips
from motet.data.formats.items import field
from motet.data.rows import KINDS, RowError


def row(item: Mapping[str, Any], clips: Clips) -> dict[str, Any]:
    """The row of an item: the last turn is the answer, those before it are the prompt."""
    turns = field(item, "conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise RowError("bad_messages", "conversations must be a list of turns, each with from and value")
    if item.get("video") and not item.get("image"):
        turns = [{**turn, "value": str(turn.get("value") or "").replace("<image>", "<video>")} for turn in turns]
    lists = {f"{media}s": item[media] for media in KINDS if item.get(media)}
    return chat.row({**item, **lists, "conversations": turns}, clips)
