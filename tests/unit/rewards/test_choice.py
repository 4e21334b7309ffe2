import asyncio

import pytest

from motet.rewards import Choice
from motet.rewards.choice import extract_choice, has_choice_format
from motet.types import Score

COLOURS = ("red", "blue", "green", "white")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        # nothing but the letter
        ("B", "B"),
        (" B\n", "B"),
        ("B.", "B"),
        ("(B)", "B"),
        ("B)", "B"),
        ("**B**", "B"),
        ("b", "B"),
        ("(b).", "B"),
        ("a", "A"),
        ("A", "A"),
        # the letter with words
        ("The answer is B", "B"),
        ("The answer is B.", "B"),
        ("The answer is **B**.", "B"),
        ("The answer is 'B'.", "B"),
        ("The answer is \\boxed{C}.", "C"),
        ("Answer:D", "D"),
        ("B. red", "B"),
        ("B.red", "B"),
        ("B red", "B"),
        ("B: a dog", "B"),
        ("Option C is right", "C"),
        ("答案是B。", "B"),
        ("The sound is longer—B", "B"),
        ("__B__", "B"),
        # the last one counts
        ("A? No, the shape is round, so B", "B"),
        ("B or C", "C"),
        ("Not D.\n\nC", "C"),
        # articles, pronouns and letters that are no answers
        ("A dog", None),
        ("A dog barks. A cat does not.", None),
        ("B. A dog", "B"),
        ("B\nA dog barks", "B"),
        ("I see a red dog", None),
        ("A is correct", "A"),
        ("A because it is red", "A"),
        ("The answer is A because it is red", "A"),
        ("The answer is A red circle", "A"),
        ("Between A and B: A.", "A"),
        ("A, since it is red", "A"),
        ("N/A", None),
        ("B/C", None),
        ("one of A-D", None),
        ("a B-flat", None),
        ("the U.S.A. flag", None),
        ("Washington D.C.", None),
        ("20 °C", None),
        ("grade A+", None),
        ("C++ or C#", None),
        ("R&B", None),
        ("B's colour", None),
        ("B2 and 3C", None),
        ("ABCD", None),
        ("Blue", None),
        ("ÀB", None),
        ("so a dog", None),
        ("the answer is b", None),
        ("", None),
        # beyond the options
        ("E", None),
        ("B, not E", "B"),
        # the tag decides
        ("<answer>B</answer>", "B"),
        ("<answer> b </answer>", "B"),
        ("<answer>(C)</answer> D", "C"),
        ("<answer>B. blue</answer>", "B"),
        ("<answer>A</answer> wait <answer>C</answer>", "C"),
        ("<answer>A <answer>C</answer>", "C"),
        ("A. <answer>red</answer>", None),
        ("A. <answer></answer>", None),
        ("A? <answer>B", "B"),
        ("C</answer>", "C"),
    ],
)
def test_extract_choice(text, letter):
    assert extract_choice(text, 4) == letter


@pytest.mark.parametrize(("num_options", "letter"), [(1, None), (2, "B"), (26, "B")])
def test_only_letters_of_options_count(num_options, letter):
    assert extract_choice("B", num_options) == letter
    assert extract_choice("so (B) it is", num_options) == letter


def test_the_pronoun_is_no_ninth_option():
    assert extract_choice("B, so I think", 9) == "B"
    assert extract_choice("the answer is I", 9) == "I"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("B", True),
        ("D", True),
        ("E", False),
        ("\n B. ", True),
        ("(B)", True),
        ("B)", False),
        ("(B", False),
        ("(B.)", False),
        ("b", False),
        ("B. blue", False),
        ("The answer is B", True),
        ("red (B).", True),
        ("B, I think", False),
        ("AB", False),
        ("", False),
        ("because <answer>B</answer>", True),
        ("<answer> B\n</answer>", True),
        ("<answer>E</answer>", False),
        ("<answer>B.</answer>", False),
        ("<answer>B, C</answer>", False),
        ("<answer>B", False),
    ],
)
def test_has_choice_format(text, expected):
    assert has_choice_format(text, 4) is expected


def test_scores_with_parts(make_task, say):
    completions = say("B", "B, I say", "A", "A, I say")
    scores = asyncio.run(Choice(format_weight=0.25)(make_task("B", COLOURS), completions))
    assert scores == [
        Score(value=1.0, parts={"accuracy": 1.0, "format": 1.0}),
        Score(value=0.75, parts={"accuracy": 1.0, "format": 0.0}),
        Score(value=0.25, parts={"accuracy": 0.0, "format": 1.0}),
        Score(value=0.0, parts={"accuracy": 0.0, "format": 0.0}),
    ]
    scores = asyncio.run(Choice()(make_task("B", COLOURS), completions))
    assert [score.value for score in scores] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("answer", "options"),
    [("blue", COLOURS), ("E", COLOURS), ("b", COLOURS), ("", COLOURS), ("AB", COLOURS), ("B", ())],
)
def test_a_row_without_an_answer_letter_is_named(make_task, say, answer, options):
    with pytest.raises(ValueError, match=r"^train.jsonl:18: the choice reward needs the letter") as caught:
        asyncio.run(Choice()(make_task(answer, options), say("B")))
    assert f"the answer {answer!r} and {len(options)} options" in str(caught.value)
