"""Files of media by their first bytes, as names lie and caches name files by hash."""

from __future__ import annotations

HEAD_BYTES = 16
"""What `suffix` looks at."""
SIGNATURES = (
    (0, b"\x89PNG", ".png"),
    (0, b"\xff\xd8\xff", ".jpg"),
    (0, b"GIF8", ".gif"),
    (8, b"WEBP", ".webp"),
    (0, b"II*\0", ".tiff"),
    (0, b"MM\0*", ".tiff"),
    (8, b"WAVE", ".wav"),
    (0, b"fLaC", ".flac"),
    (0, b"OggS", ".ogg"),
    (0, b"ID3", ".mp3"),
    (0, b"\xff\xfb", ".mp3"),
    (0, b"\xff\xf3", ".mp3"),
    (4, b"ftyp", ".mp4"),
    (0, b"\x1aE\xdf\xa3", ".webm"),
    (8, b"AVI ", ".avi"),
    (0, b"BM", ".bmp"),
)
"""Offset, bytes found there, and the suffix of the file."""


def suffix(head: bytes) -> str:
    """`.png` and the like; empty where the bytes say nothing."""
    return next((suffix for at, mark, suffix in SIGNATURES if head[at : at + len(mark)] == mark), "")
