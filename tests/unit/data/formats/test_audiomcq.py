from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from motet.data.formats import audiomcq
from motet.data.formats.clips import Clips
from motet.data.rows import RowError, to_task

ITEM = {"audio": "a.wav", "question": "Which?", "choices": ["flute", "drum"], "answer": "drum"}


def answer(row: Any) -> str:
    return to_task(row, source="data.jsonl:1", default_id="data-0").answer


def test_audiomcq(published: Any, made: Any, clips: Clips) -> None:
    made.wav("AudioCaps/sample_7.wav")
    row = audiomcq.row(published("audiomcq.jsonl")[0], clips)
    assert row == {
        "id": "7",
        "kind": "sound",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "audio", "audio": "clips/AudioCaps/sample_7.wav"},
                    {"type": "text", "text": "What is heard?"},
                ],
            }
        ],
        "options": [
            "Water is pouring steadily",
            "Water splashing continuously",
            "Water is boiling rapidly",
            "Water is dripping slowly",
        ],
        "answer": "B",
    }
    assert answer(row) == "B"


def test_an_answer_that_could_be_a_letter_is_the_text(published: Any, made: Any, clips: Clips) -> None:
    made.wav("MusicCaps/sample_8.wav")
    row = audiomcq.row(published("audiomcq.jsonl")[1], clips)
    assert (row["answer"], answer(row)) == ("B", "B")  # A is the key, not the first option


def test_r1_aqa(published: Any, made: Any, clips: Clips) -> None:
    made.wav("-HG3Omg_89c_30.wav")
    row = audiomcq.row(published("r1_aqa.json")[0], clips)
    assert (row["id"], row["kind"], answer(row)) == ("183", "happening", "B")
    assert row["messages"][0]["content"][0] == {"type": "audio", "audio": "clips/-HG3Omg_89c_30.wav"}


@pytest.mark.parametrize(
    ("change", "letter"),
    [
        ({}, "B"),
        ({"answer": "B"}, "B"),
        ({"answer": "(B) drum"}, "B"),
        ({"answer": 0}, "A"),
        ({"choices": ["2", "1"], "answer": 0}, "A"),
        ({"choices": {"B": "drum", "A": "flute"}, "answer": "A"}, "A"),
        ({"choices": {"B": "drum", "A": "flute", "C": None}, "answer": "drum"}, "B"),
        ({"choices": ["A. flute", "B. drum"]}, "B"),
        ({"choices": None, "options": ["drum", "flute"]}, "A"),
    ],
)
def test_ways_to_say_the_answer(made: Any, clips: Clips, change: Any, letter: str) -> None:
    made.wav("a.wav")
    assert answer(audiomcq.row(ITEM | change, clips)) == letter


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answer": "harp"}, "bad_answer"),
        ({"answer": "C"}, "bad_answer"),
        ({"answer": 2}, "bad_answer"),
        ({"answer": -1}, "bad_answer"),
        ({"choices": {"A": "flute", "C": "drum"}}, "bad_options"),
        ({"choices": "flute, drum"}, "bad_options"),
        ({"choices": [str(k) for k in range(27)], "answer": 26}, "bad_options"),
        ({"choices": None}, "missing_field"),
        ({"question": None}, "missing_field"),
        ({"audio": None}, "missing_field"),
        ({"audio": "b.wav"}, "missing_clip"),
        ({"audio": ["a.wav", "b.wav"]}, "missing_clip"),
        ({"audio": [3]}, "bad_media"),
    ],
)
def test_what_gives_no_row(made: Any, clips: Clips, change: Any, reason: str) -> None:
    made.wav("a.wav")
    with pytest.raises(RowError) as caught:
        answer(audiomcq.row(ITEM | change, clips))
    assert caught.value.reason == reason


def test_several_sounds_and_no_id(made: Any, clips: Clips) -> None:
    made.wav("a.wav")
    made.wav("b.wav")
    row = audiomcq.row(ITEM | {"audio": ["b.wav", "a.wav"]}, clips)
    assert "id" not in row
    assert [part.get("audio") for part in row["messages"][0]["content"]] == ["clips/b.wav", "clips/a.wav", None]


def test_bytes_of_a_table_become_a_file(made: Any, clips: Clips, tmp_path: Path) -> None:
    data = made.wav("a.wav").read_bytes()
    rows = [audiomcq.row(ITEM | {"audio": {"bytes": data, "path": "x/y.wav"}}, clips) for _ in range(2)]
    (path,) = (tmp_path / "media").iterdir()
    assert path.suffix == ".wav" and path.read_bytes() == data
    assert [row["messages"][0]["content"][0]["audio"] for row in rows] == [f"media/{path.name}"] * 2
