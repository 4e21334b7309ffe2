"""Multiple choice: the letter that a completion ends on, against the letter of the row.

value = (1 - format_weight) * accuracy + format_weight * format
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from motet.rewards.answer import answer_tag
from motet.types import Completion, Score, Task

# A letter stands alone when it is no part of a Latin word or number (other scripts put no spaces around it), nor of a
# contraction (B's), an initialism (U.S.A), a range (A-D), a pair (N/A, R&B), a grade or language (A+, C#), a unit (°C).
_LETTER = re.compile(
    r"(?<![A-Za-z0-9À-ɏ/&°])(?<![A-Za-z0-9À-ɏ][-–'’])(?<![A-Z]\.)"
    r"[A-Z]"
    r"(?![A-Za-z0-9À-ɏ/&+#])(?![-–'’][A-Za-z0-9])(?!\.[A-Z](?![a-z]))"
)
_SENTENCE_STARTS_AFTER = '.!?:\n"“(*'
_LOWERCASE_WORD = re.compile(r"\s+([a-z]+)")
_AFTER_SUBJECT = re.compile(r"is|was|and|or|but|because|since|as|for|has|does|would|should|could")
"""Words that may follow a letter which is the subject of a sentence, but never an article."""


def extract_choice(text: str, num_options: int) -> str | None:
    """The letter that `text` answers with, among the first `num_options` of the alphabet, or None.

    The last `<answer>` tag decides where there is one. Otherwise it is the last letter that stands alone: "B", "(B)",
    "B. red", "**B**", "The answer is B". Lower case counts only where nothing else is said: "b", "(b)". The article
    of "A dog barks" and the pronoun of "I think" are no answers.

    >>> extract_choice("Not A: the shape is round, so (B).", 4)
    'B'
    """
    tagged = answer_tag(text)
    answer = text.strip() if tagged is None else tagged
    letters = ascii_uppercase[:num_options]
    bare = answer.strip(" ().*").upper()
    if len(bare) == 1 and bare in letters:
        return bare
    for match in reversed(list(_LETTER.finditer(answer))):
        if match[0] in letters and not _is_word(answer, match):
            return match[0]
    return None


def _is_word(text: str, match: re.Match[str]) -> bool:
    """Whether the letter is the article "A", which begins a sentence before a lower-case word, or the pronoun "I"."""
    following = _LOWERCASE_WORD.match(text, match.end())
    if following is None or _AFTER_SUBJECT.fullmatch(following[1]):
        return False
    before = text[: match.start()].rstrip(" ")
    starts_sentence = not before or before[-1] in _SENTENCE_STARTS_AFTER
    return match[0] == "I" or (match[0] == "A" and starts_sentence)


def has_choice_format(text: str, num_options: int) -> bool:
    """Whether the answer ends on its letter, as "B", "(B)", "red B." do, or its `<answer>` tag holds that alone."""
    letter = f"[{ascii_uppercase[:num_options]}]"
    tagged = answer_tag(text)
    if tagged is not None:
        return re.fullmatch(letter, tagged) is not None
    return re.search(rf"(?<!\S)({letter}\.?|\({letter}\)\.?)$", text.strip()) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Parts `accuracy` and `format`, each 0 or 1. Raises ValueError, naming the row, when its answer is not the letter
    of one of its options."""

    format_weight: float = 0.0

    async def __call__(self, task: Task, completions: Sequence[Completion]) -> list[Score]:
        letters = ascii_uppercase[: len(task.options)]
        if len(task.answer) != 1 or task.answer not in letters:
            raise ValueError(
                f"{task.source}: the choice reward needs the letter of an option as answer; this row has the answer "
                f"{task.answer!r} and {len(task.options)} options"
            )
        return [self._score(task, completion.text) for completion in completions]

    def _score(self, task: Task, text: str) -> Score:
        accuracy = float(extract_choice(text, len(task.options)) == task.answer)
        form = float(has_choice_format(text, len(task.options)))
        value = (1 - self.format_weight) * accuracy + self.format_weight * form
        return Score(value=value, parts={"accuracy": accuracy, "format": form})
