from __future__ import annotations

from typing import Any

import pytest

from motet.data.formats import llava
from motet.data.formats.clips import Clips
from motet.data.rows import RowError, to_task
from motet.types import MediaPart, Task, TextPart


def parse(row: Any) -> Task:
    return to_task(row, source="llava.json[0]", default_id="row")


def test_images(published: Any, made: Any, clips: Clips) -> None:
    made.png("part-000001/997bb945.png")
    made.png("b.png")
    one, two, text = (parse(llava.row(item, clips)) for item in published("llava.json"))
    first, second = (MediaPart(kind="image", ref=f"clips/{name}") for name in ("part-000001/997bb945.png", "b.png"))
    assert one.id == "997bb945-628d-4724-b370-b84de974a19f"
    assert one.messages[0].parts == (first, TextPart(text="\nWrite a prompt to generate this image."))
    assert one.answer == "a beautiful painting of chernobyl"
    assert (two.media, two.answer) == ((first, second), "It is white.")
    assert [message.role for message in two.messages] == ["user", "assistant", "user"]
    assert (text.media, text.answer) == ((), "4")


def test_videos_are_written_image(published: Any, made: Any, clips: Clips) -> None:
    made.mp4("academic_source/x.mp4", num_frames=2)
    task = parse(llava.row(published("llava_video.json")[0], clips))
    assert task.messages[0].parts[0] == MediaPart(kind="video", ref="clips/academic_source/x.mp4")
    assert (task.options, task.answer, task.kind) == (("sing", "swim", "run", "cook"), "D", "0_30_s_academic_v0_1")


def test_an_image_beside_a_video_stays_one(made: Any, clips: Clips) -> None:
    made.png("b.png")
    made.mp4("x.mp4", num_frames=2)
    turns = [{"from": "human", "value": "<image><video>Same?"}, {"from": "gpt", "value": "yes"}]
    task = parse(llava.row({"image": "b.png", "video": ["x.mp4"], "conversations": turns}, clips))
    assert [part.kind for part in task.media] == ["image", "video"]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"image": "no.png"}, "missing_clip"),
        ({"image": ["b.png", "b.png"]}, "bad_media"),
        ({"conversations": None}, "missing_field"),
        ({"conversations": "hello"}, "bad_messages"),
        ({"conversations": [{"from": "human", "value": "<image>"}]}, "bad_answer"),
    ],
)
def test_what_gives_no_row(published: Any, made: Any, clips: Clips, item: Any, reason: str) -> None:
    made.png("b.png")
    made.png("part-000001/997bb945.png")
    with pytest.raises(RowError) as caught:
        parse(llava.row(published("llava.json")[0] | item, clips))
    assert caught.value.reason == reason
