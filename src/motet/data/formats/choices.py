"""Options and the right one among them, so that a row says it in one way only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

from motet.data.rows import RowError

_LISTED = re.compile(r"^\s*(?:\(([A-Z])\)\s*|([A-Z])[.)] +)(\S.*?)\s*$", re.MULTILINE)
"""A line with an option, in the forms that rows take for a list of options."""


def choose(options: Sequence[str], index: int) -> str:
    """How a row names the right option: its letter, or letter and text where options are letters themselves.

    >>> choose(["flute", "drum"], 1), choose(["C", "A"], 0)
    ('B', 'A. C')
    """
    if index >= len(ascii_uppercase):
        raise RowError("bad_options", f"{len(options)} options; there are only {len(ascii_uppercase)} letters")
    letter = ascii_uppercase[index]
    return f"{letter}. {options[index]}" if letter in options else letter


def chosen(answer: str, options: Sequence[str]) -> int | None:
    """Which option an answer means, by its text or else by its letter; None if it means none, or several.

    >>> chosen("drum", ["flute", "drum"]), chosen("(B) drum", ["flute", "drum"]), chosen("C.", ["flute", "drum"])
    (1, 1, None)
    """
    text = answer.strip()
    if text in options:
        return options.index(text) if options.count(text) == 1 else None
    match = re.fullmatch(r"(?:\(([A-Z])\)|([A-Z])[.):]?)(?:\s+(.*))?", text)
    index = ascii_uppercase.index(match[1] or match[2]) if match else len(options)
    return index if match and index < len(options) and match[3] in (None, options[index]) else None


def listed(text: str) -> list[str]:
    """The options that a question lists, a line each: "A. flute", "A) flute" or "(A) flute"; [] if it lists none.

    >>> listed("Which is heard?\\nA. flute\\nB. drum\\nAnswer with a letter.")
    ['flute', 'drum']
    """
    found = [(match[1] or match[2], match[3]) for match in _LISTED.finditer(text)]
    letters = "".join(letter for letter, _ in found)
    return [option for _, option in found] if len(found) > 1 and ascii_uppercase.startswith(letters) else []
