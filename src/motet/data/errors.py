"""What is wrong with a medium, in one line."""

from __future__ import annotations


class MediaError(ValueError):
    """One line: the reference, why it cannot be used, and the remedy where there is one."""


def one_line(error: Exception) -> str:
    """What a library's error says, without its error number and line breaks."""
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
