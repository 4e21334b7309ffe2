"""Where a completion says what its answer is."""

from __future__ import annotations


def answer_tag(text: str) -> str | None:
    """The content of the last closed `<answer>...</answer>`, stripped; None where there is none.

    >>> answer_tag("<answer>A</answer> no, wait <answer> B </answer>")
    'B'
    """
    before, closing, _ = text.rpartition("</answer>")
    _, opening, content = before.rpartition("<answer>")
    return content.strip() if closing and opening else None
