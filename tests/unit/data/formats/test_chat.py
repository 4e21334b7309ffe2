from __future__ import annotations

from typing import Any

import pytest

from motet.data.formats import chat
from motet.data.formats.clips import Clips
from motet.data.rows import RowError, to_task
from motet.types import MediaPart, Message, Task, TextPart


@pytest.fixture
def read(published: Any, made: Any, clips: Clips) -> Any:
    made.png("x.png")
    made.mp4("x.mp4", num_frames=2)
    made.wav("x.wav")

    def read(number: int) -> tuple[dict[str, Any], Task]:
        row = chat.row(published("chat.jsonl")[number], clips)
        return row, to_task(row, source=f"chat.jsonl:{number + 1}", default_id="row")

    return read


def text(value: str) -> TextPart:
    return TextPart(text=value)


def test_the_last_turn_is_the_answer(read: Any) -> None:
    row, task = read(0)
    assert (row["images"], row["videos"]) == (["clips/x.png"], ["clips/x.mp4"])
    assert task.answer == "An elephant, and a puppy running on the grass."
    assert task.messages == (
        Message(role="system", parts=(text("You are a helpful and harmless assistant."),)),
        Message(
            role="user",
            parts=(
                MediaPart(kind="image", ref="clips/x.png"),
                text("What is in the image, "),
                MediaPart(kind="video", ref="clips/x.mp4"),
                text("What is in the video?"),
            ),
        ),
    )


def test_llama_factory(read: Any) -> None:
    row, task = read(1)
    assert row == {
        "kind": "",
        "messages": [{"role": "user", "content": "<video><audio>What does this girl say?"}],
        "audios": ["clips/x.wav"],
        "videos": ["clips/x.mp4"],
        "answer": "Hello!",
    }
    assert [part.kind for part in task.media] == ["video", "audio"]


def test_a_solution_and_its_answer_tag(read: Any) -> None:
    _, task = read(2)
    assert task.answer == "3"
    assert [message.role for message in task.messages] == ["user", "assistant", "user"]


def test_sharegpt_with_listed_options(read: Any) -> None:
    row, task = read(3)
    assert (row["options"], row["answer"]) == (["flute", "drum"], "B")
    assert [message.role for message in task.messages] == ["system", "user"]
    # Not listed a second time.
    assert task.messages[1].parts[1] == text("Which is heard?\n(A) flute\n(B) drum")


def test_turns_by_role(read: Any) -> None:
    _, task = read(4)
    assert [(m.role, m.parts[0]) for m in task.messages] == [
        ("system", text("Be short.")),
        ("user", text("Hello?")),
        ("assistant", text("Yes?")),
        ("user", text("How many legs has a dog?")),
    ]
    assert task.answer == "4"


LISTED = "Which?\nA. flute\nB. drum"


@pytest.mark.parametrize(
    ("item", "options", "answer"),
    [
        ({"answer": "drum"}, ["flute", "drum"], "B"),
        ({"answer": "B. drum"}, ["flute", "drum"], "B"),
        ({"answer": "both"}, None, "both"),
        ({"answer": "C"}, None, "C"),
        ({"answer": "harp", "options": ["harp", "drum"]}, ["harp", "drum"], "A"),
        ({"answer": "A", "solution": "<answer>B</answer>"}, ["flute", "drum"], "B"),
    ],
)
def test_options(clips: Clips, item: Any, options: Any, answer: str) -> None:
    row = chat.row({"messages": [{"role": "user", "content": LISTED}], **item}, clips)
    assert (row.get("options"), row["answer"]) == (options, answer)


def test_parts_keep_what_they_say_but_the_path(made: Any, clips: Clips) -> None:
    made.mp4("x.mp4", num_frames=2)
    content = [
        {"type": "video", "video": "x.mp4", "use_audio": True},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "audio"},
        {"type": "text", "text": "x.mp4"},
    ]
    item = {"id": 5, "messages": [{"role": "user", "content": content}], "answer": "x", "audios": ["data:audio/wav;,"]}
    row = chat.row(item, clips)
    assert row["messages"][0]["content"] == [
        {"type": "video", "video": "clips/x.mp4", "use_audio": True},
        {"type": "image", "image": "https://example.org/a.png"},
        {"type": "audio"},
        {"type": "text", "text": "x.mp4"},
    ]
    assert (row["id"], row["audios"]) == (5, ["data:audio/wav;,"])
    assert content[0]["video"] == "x.mp4"  # the item is left alone


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"messages": [{"role": "user", "content": "?"}]}, "bad_answer"),
        ({"messages": [{"role": "tool", "content": "?"}], "answer": "x"}, "bad_messages"),
        ({"messages": ["?"], "answer": "x"}, "bad_messages"),
        ({"messages": [], "answer": "x"}, "bad_messages"),
        ({"messages": [{"role": "user", "content": "<image>?"}], "images": ["x.png"] * 2, "answer": "x"}, "bad_media"),
        ({"messages": [{"role": "user", "content": "<image>?"}], "images": ["no.png"], "answer": "x"}, "missing_clip"),
        ({"answer": "x"}, "missing_field"),
    ],
)
def test_what_gives_no_row(made: Any, clips: Clips, item: Any, reason: str) -> None:
    made.png("x.png")
    with pytest.raises(RowError) as caught:
        to_task(chat.row(item, clips), source="chat.jsonl:1", default_id="row")
    assert caught.value.reason == reason
