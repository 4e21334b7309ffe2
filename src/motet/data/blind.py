"""What the text of multiple-choice rows gives away: how often a guesser is right that neither sees nor hears.

A policy learns such habits before it learns to look, and a held-out accuracy that they lift says little about the
media. The guesser is naive Bayes over simple clues, so it finds habits of a word, a place or a length; what only
knowledge of the world gives away, a large blind model finds (`motet eval --blind`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase

import numpy as np

from motet.types import Task, TextPart

NUM_FOLDS = 5
MARGIN = 0.03
"""How far above chance, at the least, an accuracy that is a warning lies."""
OPTION_LINE = re.compile(r"^\s*\(?[A-Z][.)] .*$", re.MULTILINE)
WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A multiple-choice row without its media.

    >>> Question(text="Which sound is longer?", options=("second", "first"), answer=0, num_clips=2)
    """

    text: str
    options: tuple[str, ...]
    answer: int
    """Index of the right option."""
    kind: str = ""
    """Habits are learned for each kind of row on its own."""
    num_clips: int = 0

    @classmethod
    def of(cls, task: Task) -> Question:
        """The question of a row with options, without the lines that list them."""
        text = "\n".join(part.text for m in task.messages for part in m.parts if isinstance(part, TextPart))
        return cls(
            text=OPTION_LINE.sub("", text),
            options=task.options,
            answer=ascii_uppercase.index(task.answer),
            kind=task.kind,
            num_clips=len(task.media),
        )

    @cached_property
    def clues(self) -> tuple[frozenset[int], ...]:
        """For each option, hashes of all that speaks for or against it."""
        return tuple(frozenset(hash((self.kind, *clue)) for clue in self._clues(i)) for i in range(len(self.options)))

    def _clues(self, place: int) -> Iterator[tuple[Hashable, ...]]:
        """Where an option stands, what it says, beside which others, under which words, and with how many clips."""
        option, words, asked = self.options[place], _words(self.options[place]), _words(self.text)
        yield "place", place, len(self.options)
        yield "clips", place, self.num_clips
        yield "option", option
        yield "option at", option, place
        yield "rank by alphabet", sorted(self.options).index(option)
        yield "rank by length", sum(len(other) > len(option) for other in self.options)
        yield "shared words", min(len(words & asked), 3)
        for i, other in enumerate(self.options):
            if i != place:
                yield "beside", option, other
                yield "other at", option, i, other
        for word in asked:
            yield "asked", option, word
        if len(words) > 1:
            for word in words:
                yield "word", word


def _words(text: str) -> set[str]:
    return set(WORD.findall(text.casefold()))


class NaiveBayes:
    """Takes the option whose clues speak most for a right one, each clue independently of the others."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self._counts: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
        self._num = {True: len(questions), False: sum(len(question.options) - 1 for question in questions)}
        for question in questions:
            for i, clues in enumerate(question.clues):
                self._counts[i == question.answer].update(clues)

    def guess(self, question: Question) -> int:
        """Index of an option."""
        # Exact sums: clues come in the order of their hashes, another one in every process.
        return int(np.argmax([math.fsum(map(self._weight, clues)) for clues in question.clues]))

    def _weight(self, clue: int) -> float:
        """log P(clue | right) / P(clue | wrong), one observation of either kind added (Laplace)."""
        right, wrong = ((self._counts[truth][clue] + 1) / (self._num[truth] + 2) for truth in (True, False))
        return math.log(right / wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindAccuracy:
    num_rows: int
    num_right: int
    chance: float
    """The expected accuracy of drawing an option: the mean of 1 / number of options."""

    @property
    def accuracy(self) -> float:
        return self.num_right / self.num_rows

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the accuracy (Wilson 1927)."""
        n, p, z = self.num_rows, self.accuracy, 1.96
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return centre - half, centre + half

    @property
    def gives_away(self) -> bool:
        """Whether the interval begins more than `MARGIN` above chance."""
        return self.interval[0] > self.chance + MARGIN


def estimate(questions: Sequence[Question]) -> BlindAccuracy | None:
    """Cross-validated: each question is guessed by what the other folds teach. None without questions."""
    if not questions:
        return None
    fold_of = np.random.default_rng(0).permutation(len(questions)) % NUM_FOLDS
    num_right = 0
    for fold in range(NUM_FOLDS):
        guesser = NaiveBayes([q for q, f in zip(questions, fold_of, strict=True) if f != fold])
        asked = [q for q, f in zip(questions, fold_of, strict=True) if f == fold]
        num_right += sum(guesser.guess(question) == question.answer for question in asked)
    chance = sum(1 / len(question.options) for question in questions) / len(questions)
    return BlindAccuracy(num_rows=len(questions), num_right=num_right, chance=chance)
