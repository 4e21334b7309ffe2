from __future__ import annotations

import pytest

from motet.data.formats.choices import choose, chosen, listed
from motet.data.rows import RowError, to_task


@pytest.mark.parametrize(
    "options",
    [["flute", "drum"], ["B", "A"], ["A", "A. B", "B"], ["1", "0"], ["x", "x"], list("ZYXWVUTSRQPONMLKJIHGFEDCBA")],
)
def test_a_row_with_the_chosen_answer_means_that_option(options: list[str]) -> None:
    for index in range(len(options)):
        row = {"question": "Which?", "options": options, "answer": choose(options, index)}
        assert to_task(row, source="f:1", default_id="f").answer == chr(ord("A") + index)


def test_there_are_26_letters() -> None:
    with pytest.raises(RowError, match="27 options; there are only 26 letters") as caught:
        choose(["x"] * 27, 26)
    assert caught.value.reason == "bad_options"


@pytest.mark.parametrize(
    ("answer", "index"),
    [
        ("drum", 1),
        (" drum ", 1),
        ("B", 1),
        ("B.", 1),
        ("B)", 1),
        ("(B)", 1),
        ("B: drum", 1),
        ("(A) flute", 0),
        ("A. drum", None),
        ("C", None),
        ("b", None),
        ("Bass", None),
        ("(B", None),
        ("", None),
    ],
)
def test_which_option_an_answer_means(answer: str, index: int | None) -> None:
    assert chosen(answer, ["flute", "drum"]) == index


def test_text_goes_before_letter_and_twins_are_nobody() -> None:
    assert chosen("A", ["C", "A"]) == 1
    assert chosen("drum", ["drum", "drum"]) is None
    assert chosen("B", ["drum", "drum"]) == 1


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("Which?\nA. flute\nB. drum", ["flute", "drum"]),
        ("Which?\n A) flute \n B) a drum.\nAnswer.", ["flute", "a drum."]),
        ("(A) flute\n(B)drum", ["flute", "drum"]),
        ("A. flute", []),
        ("B. flute\nC. drum", []),
        ("A. flute\nC. drum", []),
        ("A. flute\nB. drum\nA. harp\nB. horn", []),
        ("A dog.\nB cat.", []),
        ("Is it A. or B.?", []),
    ],
)
def test_options_listed_in_a_question(text: str, options: list[str]) -> None:
    assert listed(text) == options
