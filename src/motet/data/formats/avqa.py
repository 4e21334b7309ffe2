"""AVQA: four options about a clip of VGGSound, seen and heard (Yang et al., ACM Multimedia 2022).

`train_qa.json` and `val_qa.json` of https://mn.cs.tsinghua.edu.cn/avqa are lists of

    {"id": 183, "video_name": "-HG3Omg_89c_000030", "video_id": 341, "question_text": "What happened in the video?",
     "multi_choice": ["motorboat", "Yacht consignment", "Sailboat set sail", "Consignment car"], "answer": 1,
     "question_relation": "View", "question_type": "Happening"}

`answer` is an index from 0 (quoted from the README of github.com/xiaomi-research/r1-aqa). `video_name` is a YouTube id
and the second that the clip starts at; github.com/AlyssaYoung/AVQA keeps clips as `data/video/<video_name>.mp4` and
their sound as `data/audio/<video_name>.wav`, while R1-AQA writes the second without zeros: `-HG3Omg_89c_30.wav`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from motet.data.formats import extract
from motet.data.formats.choices import choose
from motet.data.formats.clips import Clips
from motet.data.formats.items import field, kind
from motet.data.rows import RowError

FORMS = ("video", "image+audio", "audio")
"""What a row holds of the clip: the video with its sound, a picture and the sound, or the sound alone."""
SUFFIXES = {
    "video": (".mp4", ".mkv", ".webm"),
    "image": (".jpg", ".jpeg", ".png"),
    "audio": (".wav", ".flac", ".mp3", ".m4a", ".ogg"),
}


def row(item: Mapping[str, Any], clips: Clips, *, form: str = "video") -> dict[str, Any]:
    """The row of an item. Pictures and sounds that are no files yet are taken from the video."""
    options = [str(option) for option in field(item, "multi_choice")]
    answer = field(item, "answer")
    if type(answer) is not int or not 0 <= answer < len(options):
        raise RowError("bad_answer", f"answer {answer!r} is no index into its {len(options)} options")
    name = Path(str(field(item, "video_name"))).name.removesuffix(".mp4")
    content = [_part(media, name, clips) for media in form.split("+")]
    content.append({"type": "text", "text": str(field(item, "question_text"))})
    return {
        "id": str(field(item, "id")),
        "kind": kind(item.get("question_relation"), item.get("question_type")),
        "messages": [{"role": "user", "content": content}],
        "options": options,
        "answer": choose(options, answer),
    }


def _part(media: str, name: str, clips: Clips) -> dict[str, Any]:
    path = clips.find(_files(name, media))
    if path is None:
        video = clips.must_find(_files(name, "video"), name)
        path = clips.made / f"{name}{'.png' if media == 'image' else '.wav'}"
        if not path.exists():
            (extract.picture if media == "image" else extract.sound)(video, path)
    part = {"type": media, media: clips.refer(path)}
    return part | {"use_audio": True} if media == "video" else part


def _files(name: str, media: str) -> list[str]:
    """How the clip may be called: by `video_name`, and with the second written with six digits or as few as it has.

    >>> _files("-HG3Omg_89c_000030", "video")[::3]
    ['-HG3Omg_89c_000030.mp4', '-HG3Omg_89c_30.mp4']
    """
    names = [name]
    if match := re.fullmatch(r"(.+)_(\d+)", name):
        start_seconds = int(match[2])
        names += [f"{match[1]}_{start_seconds:06d}", f"{match[1]}_{start_seconds}"]
    return [stem + suffix for stem in dict.fromkeys(names) for suffix in SUFFIXES[media]]
