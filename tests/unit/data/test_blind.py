"""What the text gives away, measured where it is known how much that is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from motet.data import toy
from motet.data.blind import BlindAccuracy, Question, estimate

NUM_ROWS = 400
WORDS = ("heron", "drum", "lorry", "river", "bell", "kettle")


def questions(answer: Callable[[np.random.Generator, tuple[str, ...]], int]) -> list[Question]:
    """Four random options of two words each; `answer` says which is right."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(NUM_ROWS):
        options = tuple(f"{a} {b}" for a, b in rng.choice(WORDS, (4, 2)))
        made.append(Question(text="What is heard?", options=options, answer=answer(rng, options)))
    return made


def drawn(rng: np.random.Generator, options: tuple[str, ...]) -> int:
    return int(rng.integers(4))


def test_nothing_to_go_by_stays_at_chance() -> None:
    blind = estimate(questions(drawn))
    assert blind is not None
    assert (blind.num_rows, blind.chance, blind.gives_away) == (NUM_ROWS, 0.25, False)
    assert blind.interval[0] < 0.25 < blind.interval[1]


@pytest.mark.parametrize(
    ("habit", "at_least"),
    [
        (lambda rng, options: 2, 1.0),  # always C
        (lambda rng, options: 2 if rng.random() < 0.6 else int(rng.integers(4)), 0.6),  # C too often
        (lambda rng, options: int(np.argmax([len(option) for option in options])), 0.8),  # the longest
        (lambda rng, options: int(np.argmin([option.split()[1] for option in options])), 0.8),  # a word in it
    ],
)
def test_a_habit_is_found(habit: Callable[[np.random.Generator, tuple[str, ...]], int], at_least: float) -> None:
    blind = estimate(questions(habit))
    assert blind is not None
    assert blind.accuracy >= at_least
    assert blind.gives_away


def test_a_question_that_names_its_answer_is_found() -> None:
    rng = np.random.default_rng(0)
    named = []
    for answer in rng.integers(6, size=NUM_ROWS).tolist():
        options = tuple(rng.permutation(WORDS).tolist())
        named.append(Question(text=f"Is it the {options[answer]}?", options=options, answer=answer))
    blind = estimate(named)
    assert blind is not None
    assert blind.chance == pytest.approx(1 / 6)
    assert blind.accuracy > 0.95


def test_no_question_gives_no_estimate() -> None:
    assert estimate([]) is None


def test_what_a_fold_is_guessed_by_does_not_hold_it() -> None:
    """Each question has words of its own, so nothing that one teaches helps with another."""
    rng = np.random.default_rng(1)
    alone = [
        Question(text=f"what{i}", options=(f"a{i} x{i}", f"b{i} y{i}"), answer=int(rng.integers(2)))
        for i in range(NUM_ROWS)
    ]
    blind = estimate(alone)
    assert blind is not None
    assert 0.4 < blind.accuracy < 0.6


def test_chance_is_the_mean_over_rows_of_one_in_their_options() -> None:
    two, four = ("yes", "no"), ("red", "green", "blue", "yellow")
    mixed = [Question(text="?", options=options, answer=0) for options in (two, two, four)]
    blind = estimate(mixed)
    assert blind is not None
    assert blind.chance == pytest.approx((0.5 + 0.5 + 0.25) / 3)


@pytest.mark.parametrize(("chance", "gives_away"), [(0.373, True), (0.375, False)])
def test_the_interval_begins_three_points_above_chance(chance: float, gives_away: bool) -> None:
    """50 of 100: Wilson's interval is 0.4038 to 0.5962."""
    blind = BlindAccuracy(num_rows=100, num_right=50, chance=chance)
    assert blind.interval == pytest.approx((0.40383, 0.59617), abs=1e-5)
    assert blind.gives_away is gives_away


def test_the_question_of_a_row_is_without_its_list_of_options() -> None:
    row = toy.draw("images_colour", np.random.default_rng(0))
    question = Question.of(toy.task(row, "row 1"))
    assert question == Question(
        text="What colour is the biggest shape?" + "\n" * len(row.options),
        options=row.options,
        answer=row.answer,
        kind="images_colour",
        num_clips=len(row.clips),
    )


def test_the_estimate_is_the_same_in_every_process() -> None:
    """Hashes of text differ from process to process; nothing else may."""
    code = (
        "import numpy as np\nfrom motet.data import toy\nfrom motet.data.blind import Question, estimate\n"
        "rows = [toy.draw('audio_pitch', np.random.default_rng(i)) for i in range(60)]\n"
        "print(estimate([Question.of(toy.task(row, 'row')) for row in rows]).num_right)"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
