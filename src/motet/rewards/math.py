"""Mathematics: the final number or expression of a completion, against the answer of the row.

Numbers are compared exactly, as fractions: 1,000 = 1000, 1/2 = 0.50 = 50%, and 0.333 is not 1/3. Anything else is
compared as a string, after spelling differences of LaTeX are removed. Completions are untrusted: nothing is evaluated,
the work grows with the length of the text, and a number of absurd length is a string.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from motet.rewards.answer import answer_tag
from motet.types import Completion, Score, Task

MAX_NUMBER_CHARACTERS = 100

_UNSIGNED = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,2}(?!\d))?|\.\d+"
_NUMBER = re.compile(rf"(?P<sign>[-+]?)(?P<top>{_UNSIGNED})(?:/(?P<bottom>{_UNSIGNED}))?(?P<percent>%?)")
# A sign belongs to the number unless something is subtracted or a range is meant: "10-3", "(a)-3". A digit inside a
# word is no number: "H2O", "x_1".
_SIGN = r"(?:(?<![A-Za-z0-9_)\]}])[-+])?"
_NUMBER_IN_TEXT = re.compile(rf"{_SIGN}(?<![A-Za-z0-9_.])\$?(?:{_UNSIGNED})(?:/(?:{_UNSIGNED}))?\\?%?")
_BRACES = re.compile(r"\\boxed\{|[{}]")
_FRACTION = re.compile(r"(?<!\d)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_SPACING = re.compile(r"\\(?:left|right)(?![a-zA-Z])|\\[,;!: ()\[\]]|[\s$]")


def extract_math(text: str) -> str | None:
    """The last `\\boxed{}`, else the last `<answer>` tag, else the last number of the text, else None.

    >>> extract_math("Half of 3 is \\\\boxed{\\\\frac{3}{2}}, as 3 is odd.")
    '\\\\frac{3}{2}'
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    tagged = answer_tag(text)
    if tagged is not None:
        return tagged
    numbers = _NUMBER_IN_TEXT.findall(_plain_minus(text))
    return numbers[-1] if numbers else None


def last_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` whose braces close, nested ones included."""
    last: tuple[int, int] | None = None
    opened: list[re.Match[str]] = []
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            opened.append(brace)
        elif opened:
            opening = opened.pop()
            if opening[0] != "{" and (last is None or opening.end() > last[0]):
                last = opening.end(), brace.start()
    return None if last is None else text[last[0] : last[1]].strip()


def same_answer(given: str, expected: str) -> bool:
    """Whether both are the same number, or, where one is not a number, the same normalised string."""
    given, expected = _normalised(given), _normalised(expected)
    numbers = _number(given), _number(expected)
    return given == expected if None in numbers else numbers[0] == numbers[1]


def _normalised(text: str) -> str:
    text = _WRAPPED.sub(r"\1", _plain_minus(text))
    text = _SPACING.sub("", text).replace("\\%", "%")
    return _FRACTION.sub(r"\1/\2", text).replace("dfrac", "frac").replace("tfrac", "frac").rstrip(".").casefold()


def _number(text: str) -> Fraction | None:
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > MAX_NUMBER_CHARACTERS:
        return None
    value = Fraction(match["top"].replace(",", ""))
    if match["bottom"]:
        divisor = Fraction(match["bottom"].replace(",", ""))
        if divisor == 0:
            return None
        value /= divisor
    if match["percent"]:
        value /= 100
    return -value if match["sign"] == "-" else value


def _plain_minus(text: str) -> str:
    return text.replace("\N{MINUS SIGN}", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Math:
    """The value is `accuracy`; the part `format` tells whether the answer was marked by `\\boxed{}` or `<answer>`.
    Raises ValueError, naming the row, when it has no answer."""

    async def __call__(self, task: Task, completions: Sequence[Completion]) -> list[Score]:
        if not task.answer.strip():
            raise ValueError(f"{task.source}: the answer is empty; the math reward needs a number or an expression")
        return [self._score(task.answer, completion.text) for completion in completions]

    def _score(self, expected: str, text: str) -> Score:
        given = extract_math(text)
        accuracy = float(given is not None and same_answer(given, expected))
        form = float(last_boxed(text) is not None or answer_tag(text) is not None)
        return Score(value=accuracy, parts={"accuracy": accuracy, "format": form})
