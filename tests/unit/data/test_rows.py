from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import PIL.Image
import pyarrow
import pyarrow.parquet
import pytest

from motet.config.schema import VideoConfig
from motet.data.media import Image, load
from motet.data.reference import Reach
from motet.data.rows import RowError, Rows, to_task
from motet.types import MediaPart, Message, Task, TextPart


def parse(row: Any) -> Task:
    return to_task(row, source="train.jsonl:12", default_id="train-11")


def ask(**row: Any) -> tuple[Any, ...]:
    """The parts of the only message."""
    (message,) = parse({"answer": "x", **row}).messages
    assert message.role == "user"
    return message.parts


def text(value: str) -> TextPart:
    return TextPart(text=value)


def image(ref: Any) -> MediaPart:
    return MediaPart(kind="image", ref=ref)


def video(ref: Any, use_audio: bool = False) -> MediaPart:
    return MediaPart(kind="video", ref=ref, use_audio=use_audio)


def write_lines(path: Path, *lines: str | bytes) -> Path:
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


# ---- the two forms -----------------------------------------------------------------------------


def test_messages_with_parts() -> None:
    row = {
        "id": 7,
        "messages": [
            {"role": "system", "content": "Be short."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look: <image>"},
                    {"type": "image", "image": "a.png"},
                    {"type": "audio", "audio": b"RIFF"},
                    {"type": "video", "video": "c.mp4", "use_audio": True},
                    {"type": "video", "video": "d.mp4"},
                ],
            },
            {"role": "assistant", "content": "Well?"},
            {"role": "user", "content": "Which?"},
        ],
        "answer": 3,
        "kind": "image_colour",
    }
    assert parse(row) == Task(
        id="7",
        messages=(
            Message(role="system", parts=(text("Be short."),)),
            Message(
                role="user",
                parts=(
                    text("Look: <image>"),
                    image("a.png"),
                    MediaPart(kind="audio", ref=b"RIFF"),
                    video("c.mp4", use_audio=True),
                    video("d.mp4"),
                ),
            ),
            Message(role="assistant", parts=(text("Well?"),)),
            Message(role="user", parts=(text("Which?"),)),
        ),
        answer="3",
        source="train.jsonl:12",
        kind="image_colour",
    )
    assert parse({"question": "q", "answer": "x"}).id == "train-11"


def test_openai_spellings() -> None:
    content = [
        {"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}},
        {"type": "audio_url", "audio_url": "b.wav"},
        {"type": "video_url", "video_url": {"url": "c.mp4"}, "use_audio": True},
    ]
    parts = ask(messages=[{"role": "user", "content": content}])
    assert parts == (image("a.png"), MediaPart(kind="audio", ref="b.wav"), video("c.mp4", use_audio=True))


def test_placeholders_are_filled_in_reading_order_over_all_messages() -> None:
    task = parse(
        {
            "messages": [
                {"role": "user", "content": "<image>one<audio>\ntwo <image>"},
                {"role": "assistant", "content": "and?"},
                {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "<image>"}]},
            ],
            "images": ["1.png", {"bytes": b"2", "path": None}, "3.png"],
            "audios": ["a.wav"],
            "videos": None,
            "answer": "x",
        }
    )
    assert [message.parts for message in task.messages] == [
        (
            image("1.png"),
            text("one"),
            MediaPart(kind="audio", ref="a.wav"),
            text("\ntwo "),
            image({"bytes": b"2", "path": None}),
        ),
        (text("and?"),),
        (image("3.png"), text("<image>")),  # in a list of parts, text is text
    ]


@pytest.mark.parametrize("images", [{}, {"images": None}, {"images": []}])
def test_without_a_list_a_placeholder_is_text(images: dict[str, Any]) -> None:
    assert ask(prompt="What does <image> mean?", **images) == (text("What does <image> mean?"),)
    assert ask(question="<image> <audio>", audios=["a.wav"], **images) == (
        text("<image> "),
        MediaPart(kind="audio", ref="a.wav"),
    )


def test_messages_come_before_prompt_before_question() -> None:
    assert ask(prompt="p", question="q") == (text("p"),)
    assert ask(prompt=None, question="q") == (text("q"),)
    assert ask(messages=[{"role": "user", "content": "m"}], prompt="p") == (text("m"),)


@pytest.mark.parametrize(
    ("flag", "heard"),
    [(None, [False, False]), (True, [True, True]), (False, [False, False]), ([False, True], [False, True])],
)
def test_use_audio_in_video_is_a_property_of_each_video(flag: Any, heard: list[bool]) -> None:
    parts = ask(question="<video><video>", videos=["a.mp4", "b.mp4"], use_audio_in_video=flag)
    assert [part.use_audio for part in parts] == heard


def test_a_part_decides_about_its_own_sound() -> None:
    content = [{"type": "video", "video": "a.mp4", "use_audio": False}, {"type": "video", "video": "b.mp4"}]
    parts = ask(messages=[{"role": "user", "content": content}], use_audio_in_video=True)
    assert parts == (video("a.mp4"), video("b.mp4", use_audio=True))


# ---- options and answers -----------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["B", "(B)", "B.", "B)", "blue", "B. blue", "B) blue", "(B) blue", 1])
def test_an_answer_becomes_its_letter(answer: Any) -> None:
    task = parse({"question": "Colour?", "options": ["red", "blue"], "answer": answer})
    assert (task.answer, task.options) == ("B", ("red", "blue"))


@pytest.mark.parametrize("answer", ["C", "b", "green", 2, -1, 0.5, "1"])
def test_an_answer_outside_the_options_is_an_error(answer: Any) -> None:
    with pytest.raises(
        RowError, match=r"^train\.jsonl:12: answer .* is not among the options \['red', 'blue'\]$"
    ) as error:
        parse({"question": "Colour?", "options": ["red", "blue"], "answer": answer})
    assert error.value.reason == "bad_answer"
    assert repr(answer) in str(error.value)


def test_an_answer_with_two_meanings_is_an_error() -> None:
    with pytest.raises(
        RowError, match=r"answer 'A' could be A or B; give the letter, text or index \(from 0\) that only"
    ):
        parse({"question": "Letter?", "options": ["B", "A"], "answer": "A"})
    with pytest.raises(RowError, match="answer 2 could be B or C"):
        parse({"question": "How many?", "options": ["1", "2", "3"], "answer": 2})
    assert parse({"question": "How many?", "options": ["1", "2", "30"], "answer": 30}).answer == "C"
    assert parse({"question": "How many?", "options": ["0", "1"], "answer": 1}).answer == "B"
    assert parse({"question": "Letter?", "options": ["B", "A"], "answer": 1}).answer == "B"
    assert parse({"question": "Letter?", "options": ["A", "B"], "answer": "A"}).answer == "A"


def test_options_are_listed_under_the_last_message() -> None:
    row: dict[str, Any] = {"options": ["red", "blue"], "answer": "A"}
    assert parse({"question": "Colour?", **row}).messages[0].parts == (text("Colour?\nA. red\nB. blue"),)
    assert parse({"question": "Colour?\n", **row}).messages[0].parts == (text("Colour?\nA. red\nB. blue"),)
    after_image = parse({"question": "Colour? <image>", "images": ["a.png"], **row}).messages[0].parts
    assert after_image == (text("Colour? "), image("a.png"), text("\nA. red\nB. blue"))
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "?"},
    ]
    first, _, last = parse({"messages": turns, **row}).messages
    assert (first.parts, last.parts) == ((text("Hi"),), (text("?\nA. red\nB. blue"),))


@pytest.mark.parametrize("listed", ["A. red\nB. blue", "A) red\nB) blue", "  (A) red (B) blue"])
def test_options_that_the_text_lists_are_not_repeated(listed: str) -> None:
    question = f"Colour?\n{listed}"
    assert ask(question=question, options=["red", "blue"], answer="A") == (text(question),)
    # Only a line that begins so is a list.
    assert ask(question=f"Is {listed.strip()}?", options=["red"], answer="A")[0].text.endswith("\nA. red")


def test_letters_before_the_options_are_dropped() -> None:
    task = parse({"question": "Colour?", "options": ["A. red", "B. blue"], "answer": "B. blue"})
    assert (task.options, task.answer) == (("red", "blue"), "B")
    assert task.messages[0].parts == (text("Colour?\nA. red\nB. blue"),)
    kept = parse({"question": "Who?", "options": ["A. Smith", "Jones"], "answer": "Jones"})
    assert kept.options == ("A. Smith", "Jones")


@pytest.mark.parametrize("options", [None, []])
def test_an_open_question_keeps_its_answer(options: Any) -> None:
    task = parse({"question": "2 + 2?", "options": options, "answer": 4})
    assert (task.answer, task.options, task.messages[0].parts) == ("4", (), (text("2 + 2?"),))


def test_there_are_26_letters() -> None:
    assert parse({"question": "?", "options": [f"o{i}" for i in range(26)], "answer": 25}).answer == "Z"
    with pytest.raises(RowError, match="27 options; there are only 26 letters"):
        parse({"question": "?", "options": [f"o{i}" for i in range(27)], "answer": 0})


# ---- what is wrong with a row ------------------------------------------------------------------


def says(content: Any, role: Any = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}]}


@pytest.mark.parametrize(
    ("row", "reason", "message"),
    [
        (
            {"question": "<image>?", "images": ["a.png", "b.png"]},
            "bad_media",
            "2 images but 1 <image> placeholder; give one placeholder per image, in reading order",
        ),
        (
            {"question": "<audio><audio>", "audios": ["a.wav"]},
            "bad_media",
            "1 audio but 2 <audio> placeholders; give one placeholder per audio, in reading order",
        ),
        ({"question": "?", "videos": ["a.mp4"]}, "bad_media", "1 video but 0 <video> placeholders; give"),
        (says([{"type": "image"}]), "bad_media", "0 images but 1 <image> placeholder; give"),
        ({"question": "<image>", "images": "a.png"}, "bad_media", "images must be a list of references, not 'a.png'"),
        ({"question": "<image>", "images": [None]}, "bad_media", "images must be a list of references, not [None]"),
        (
            {"question": "<video>", "videos": ["a"], "use_audio_in_video": [True, False]},
            "bad_media",
            "2 use_audio_in_video flags but 1 video",
        ),
        (
            {"question": "<video>", "videos": ["a"], "use_audio_in_video": "yes"},
            "bad_media",
            "use_audio_in_video must be true, false or a list of them, not 'yes'",
        ),
        (
            says([{"type": "video", "video": "a.mp4", "use_audio": "false"}]),
            "bad_media",
            "use_audio must be true or false, not 'false'",
        ),
        ({}, "bad_messages", "needs messages, or prompt or question as text"),
        ({"prompt": ["?"]}, "bad_messages", "needs messages, or prompt or question as text"),
        ({"messages": []}, "bad_messages", "messages must be a list with at least one message"),
        ({"messages": "Hi"}, "bad_messages", "messages must be a list with at least one message"),
        (says("Hi", role="tool"), "bad_messages", "unknown role 'tool'; use system, user, assistant"),
        ({"messages": ["Hi"]}, "bad_messages", "unknown role 'Hi'; use system, user, assistant"),
        (says("Hi", role="assistant"), "bad_messages", "the last message is the assistant's; it must be the user's"),
        (says(""), "bad_messages", "the user's message is empty; leave it out"),
        (says([]), "bad_messages", "the user's message is empty; leave it out"),
        (says(None), "bad_messages", "the user's content must be text or a list of parts"),
        (says([{"type": "file", "file": "a"}]), "bad_messages", "unknown content {'file': 'a', 'type': 'file'}; use"),
        (says(["Hi"]), "bad_messages", "unknown content 'Hi'; use parts of type text, image, audio or video"),
        (says([{"type": "text"}]), "bad_messages", "unknown content {'type': 'text'}; use"),
        ({"question": "?", "options": "AB"}, "bad_options", "options must be a list of texts, not 'AB'"),
        ({"question": "?", "options": ["a", 1]}, "bad_options", "options must be a list of texts, not ['a', 1]"),
        ({"question": "?", "answer": None}, "bad_answer", "has no answer"),
        ({"question": "?", "answer": ""}, "bad_answer", "has no answer"),
        ({"question": "?", "answer": ["A"]}, "bad_answer", "answer ['A'] is neither text nor a number"),
        ({"question": "?", "answer": True}, "bad_answer", "answer True is neither text nor a number"),
    ],
)
def test_a_bad_row_is_one_line_that_begins_with_its_place(row: dict[str, Any], reason: str, message: str) -> None:
    with pytest.raises(RowError) as error:
        parse({"answer": "x", **row})
    assert str(error.value).startswith(f"train.jsonl:12: {message}")
    assert "\n" not in str(error.value)
    assert error.value.reason == reason
    assert isinstance(error.value, ValueError)


def test_a_missing_answer_key_is_an_error() -> None:
    with pytest.raises(RowError, match=r"^train\.jsonl:12: has no answer$"):
        parse({"question": "?"})


# ---- files -------------------------------------------------------------------------------------


def test_jsonl_is_read_by_number_and_named_by_line(tmp_path: Path) -> None:
    lines = [json.dumps({"question": f"q{i} Ä", "answer": i}, ensure_ascii=False) for i in range(3)]
    path = write_lines(tmp_path / "train.jsonl", lines[0], "", "  ", lines[1], lines[2])
    rows = Rows(path)
    assert len(rows) == 3
    assert [(rows[i].id, rows[i].source, rows[i].answer) for i in (2, 0, 1)] == [
        ("train-2", "train.jsonl:5", "2"),
        ("train-0", "train.jsonl:1", "0"),
        ("train-1", "train.jsonl:4", "1"),
    ]
    assert [task.messages[0].parts[0] for task in rows] == [text("q0 Ä"), text("q1 Ä"), text("q2 Ä")]
    assert rows.base == tmp_path
    for index in (3, -1):
        with pytest.raises(IndexError):
            rows[index]


def test_a_bad_line_is_named_and_the_others_stay_readable(tmp_path: Path) -> None:
    good = json.dumps({"question": "q", "answer": "x"})
    path = write_lines(tmp_path / "a.jsonl", good, '{"question": "q" "answer"}', b'{"question": "\xff"}', "[1]", good)
    rows = Rows(path)
    messages = {
        1: r"^a\.jsonl:2: not valid JSON: Expecting ',' delimiter at column 18$",
        2: r"^a\.jsonl:3: not UTF-8 text: invalid start byte at byte 15$",
        3: r"^a\.jsonl:4: a row must be an object, not \[1\]$",
    }
    for index, message in messages.items():
        with pytest.raises(RowError, match=message) as error:
            rows[index]
        assert error.value.reason == "bad_json"
    assert (rows[0].source, rows[4].source) == ("a.jsonl:1", "a.jsonl:5")


def png(colour: str) -> bytes:
    file = BytesIO()
    PIL.Image.new("RGB", (3, 2), colour).save(file, "PNG")
    return file.getvalue()


def stored_rows() -> list[dict[str, Any]]:
    return [
        {
            "question": "<image>Colour?",
            "images": [{"bytes": png(colour), "path": None}],
            "options": ["red", "blue"],
            "answer": colour,
        }
        for colour in ("red", "blue")
    ]


def check_stored(rows: Rows, name: str) -> None:
    assert len(rows) == 2
    task = rows[1]
    assert (task.id, task.source, task.answer) == (f"{name.split('.')[0]}-1", f"{name}:2", "B")
    loaded = load(task.media[0], reach=Reach((rows.base,), rows.base), video=VideoConfig())
    assert isinstance(loaded, Image)
    assert loaded.pixels.tolist() == [[[0, 0, 255]] * 3] * 2


def test_parquet(tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist(stored_rows())
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet", row_group_size=1)
    rows = Rows(tmp_path / "train.parquet")
    check_stored(rows, "train.parquet")
    assert rows.base == tmp_path


def test_a_datasets_folder_is_read_undecoded(tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "question": datasets.Value("string"),
            "images": datasets.List(datasets.Image()),
            "options": datasets.List(datasets.Value("string")),
            "answer": datasets.Value("string"),
        }
    )
    dataset = datasets.Dataset.from_list(stored_rows(), features=features)
    dataset.save_to_disk(tmp_path / "train")
    rows = Rows(tmp_path / "train")
    check_stored(rows, "train")
    assert rows.base == tmp_path / "train"
    datasets.DatasetDict({"train": dataset, "test": dataset}).save_to_disk(tmp_path / "both")
    with pytest.raises(ValueError, match=r"both: holds the splits train, test; give the folder of one, .*both/train$"):
        Rows(tmp_path / "both")
    assert len(Rows(tmp_path / "both" / "test")) == 2


def test_nulls_that_arrow_fills_in_are_as_good_as_absent(tmp_path: Path) -> None:
    content = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "?"}, {"type": "video", "video": "b.mp4"}]
    row = {"messages": [{"role": "user", "content": content}], "images": [], "answer": "x"}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row, {**row, "images": None}]), tmp_path / "a.parquet")
    for task in Rows(tmp_path / "a.parquet"):
        assert task.messages[0].parts == (image("a.png"), text("?"), video("b.mp4"))


def test_files_that_hold_no_rows_are_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b")
    (tmp_path / "bad.parquet").write_text("no")
    (tmp_path / "folder").mkdir()
    messages = {
        "gone.jsonl": r"gone\.jsonl: no such file or folder; data\.train and data\.heldout name the rows$",
        "rows.csv": r"rows\.csv: unknown kind of row file; give \.jsonl, \.parquet or a folder",
        "bad.parquet": r"bad\.parquet: not a readable parquet file: ",
        "folder": r"folder: not a folder written by datasets\.save_to_disk: ",
    }
    for name, message in messages.items():
        with pytest.raises(ValueError, match=message) as error:
            Rows(tmp_path / name)
        assert "\n" not in str(error.value)
