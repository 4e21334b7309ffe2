"""What is asked of a disk: that it holds what was written, and has space."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lacks_space(error: BaseException | None) -> bool:
    """Whether a full disk is behind the error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return True
        error = error.__cause__ or error.__context__
    return False


def size_text(num_bytes: int) -> str:
    """
    >>> size_text(1_234_567), size_text(61_000_000_000)
    ('1.2 MB', '61.0 GB')
    """
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
