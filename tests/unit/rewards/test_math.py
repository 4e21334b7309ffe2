import asyncio
import time

import pytest

from motet.rewards import Math
from motet.rewards.math import extract_math, last_boxed, same_answer
from motet.types import Score


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} then \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{7} and \boxed{8", "7"),
        (r"} \boxed{7} {", "7"),
        (r"\boxed{5} <answer>6</answer> 7", "5"),
        (r"<answer>\boxed{5}</answer>", "5"),
        ("<answer> 6 </answer> and 7", "6"),
        ("<answer>6</answer><answer>x + 1</answer>", "x + 1"),
        ("first 3, then 4.", "4"),
        ("it is 1,234.50 dollars", "1,234.50"),
        ("it is $1,000", "$1,000"),
        ("x = -3", "-3"),
        ("x = \N{MINUS SIGN}3", "-3"),
        ("10-3", "3"),
        ("pages 3-5", "5"),
        ("about 1/2 of it", "1/2"),
        ("about .5", ".5"),
        ("50% or so", "50%"),
        (r"it is 50\%", r"50\%"),
        ("1.5e-3 m", "1.5e-3"),
        ("答案是5", "5"),
        ("5cm of H2O", "5"),
        ("x_1 is 4", "4"),
        ("no number, H2O", None),
        ("", None),
    ],
)
def test_extract_math(text, answer):
    assert extract_math(text) == answer


@pytest.mark.parametrize(
    ("given", "expected", "same"),
    [
        ("42", "42", True),
        ("42", "43", False),
        ("1,000", "1000", True),
        ("1,000", "1", False),
        ("1/2", "0.50", True),
        ("2/4", ".5", True),
        ("50%", "0.5", True),
        (r"50\%", "1/2", True),
        ("50%", "50", False),
        (r"\frac{1}{2}", "0.5", True),
        (r"-\dfrac{3}{2}", "-1.5", True),
        (r"1\frac{1}{2}", "5.5", False),  # a mixed number is no 11/2
        ("0.333", "1/3", False),
        ("0.1", "1/10", True),
        ("0.30000000000000004", "0.3", False),
        ("1e3", "1000", True),
        ("+7", "7.0", True),
        ("-7", "7", False),
        ("-0", "0", True),
        ("\N{MINUS SIGN}2", "-2", True),
        ("$5", "5", True),
        ("-$5", "-5", True),
        ("5.", "5", True),
        ("1,2", "12", False),  # a pair, no number
        ("(1, 2)", "(1,2)", True),
        (r"\left( 1,\, 2 \right)", "(1,2)", True),
        (r"\text{Blue}", "blue", True),
        (r"\dfrac{x}{2}", r"\frac{x}{2}", True),
        ("x + 1", "x+1", True),
        ("1 + x", "x+1", False),  # no algebra
        ("2+2", "4", False),  # nothing is evaluated
        ("1/0", "1/0", True),
        ("1/0", "0", False),
        ("", "0", False),
        ("1e99999999", "0", False),
        ("9" * 5000, "9" * 5000, True),
        ("9" * 5000, "9", False),
    ],
)
def test_same_answer(given, expected, same):
    assert same_answer(given, expected) is same
    assert same_answer(expected, given) is same


@pytest.mark.parametrize(
    "text", [r"\boxed{" * 20_000, "9" * 100_000, "1," * 50_000, "<answer>" * 20_000, "-" * 100_000]
)
def test_degenerate_completions_are_read_in_linear_time(text):
    started = time.perf_counter()
    extract_math(text)
    assert time.perf_counter() - started < 5


def test_last_boxed_of_nothing():
    assert last_boxed("boxed{3}") is None
    assert last_boxed(r"\boxed 3") is None


def test_scores_with_parts(make_task, say):
    completions = say(r"\boxed{0.5}", "<answer>50%</answer>", "so 1/2", r"\boxed{2}", "2", "none")
    scores = asyncio.run(Math()(make_task("1/2"), completions))
    assert scores == [
        Score(value=1.0, parts={"accuracy": 1.0, "format": 1.0}),
        Score(value=1.0, parts={"accuracy": 1.0, "format": 1.0}),
        Score(value=1.0, parts={"accuracy": 1.0, "format": 0.0}),
        Score(value=0.0, parts={"accuracy": 0.0, "format": 1.0}),
        Score(value=0.0, parts={"accuracy": 0.0, "format": 0.0}),
        Score(value=0.0, parts={"accuracy": 0.0, "format": 0.0}),
    ]


def test_a_row_without_answer_is_named(make_task, say):
    with pytest.raises(ValueError, match=r"^train.jsonl:18: the answer is empty"):
        asyncio.run(Math()(make_task(" "), say("2")))
