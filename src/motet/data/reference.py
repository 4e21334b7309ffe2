"""What a row may refer to media by, and the rule of what it may reach: local files under the allowed roots, no more."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np


class MediaError(ValueError):
    """One line: the reference, why it cannot be used, and the remedy where there is one."""


def resolve(ref: Any, *, roots: Sequence[Path], base: Path) -> Any:
    """A Path to open, the bytes of a file, or `ref` itself where it is an object already decoded.

    `ref` is a path (relative ones start from `base`), a `file://` or base64 data URI, bytes, or `{"bytes", "path"}`
    as Hugging Face datasets store media. Symbolic links are followed before the path is held against `roots`.
    """
    if isinstance(ref, Mapping) and ("bytes" in ref or "path" in ref):
        ref = ref["bytes"] if ref.get("bytes") is not None else ref.get("path")
    if isinstance(ref, bytes | bytearray | memoryview):
        return bytes(ref)
    if not isinstance(ref, str | PathLike):
        return ref
    text = fspath(ref)
    return _data_uri(text) if text[:5].lower() == "data:" else _local_file(text, roots, base)


def describe(ref: Any) -> str:
    """A short one-line name of a reference, for messages."""
    if isinstance(ref, Mapping):
        named = ref.get("path") if ref.get("path") is not None else ref.get("bytes")
        return f"<object with {', '.join(map(str, ref))}>" if named is None else describe(named)
    if isinstance(ref, bytes | bytearray | memoryview):
        return f"<bytes, {len(ref)}>"
    if isinstance(ref, str | PathLike):
        text = str(ref) if str(ref).isprintable() else ascii(str(ref))
        return text if len(text) <= 120 else f"{text[:60]}... ({len(text)} characters)"
    if isinstance(ref, np.ndarray):
        return f"<{ref.dtype} array {list(ref.shape)}>"
    return f"<{type(ref).__name__}>"


def one_line(error: Exception) -> str:
    """What a library's error says, without its error number and line breaks."""
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())


def _data_uri(uri: str) -> bytes:
    header, _, payload = uri.partition(",")
    if not header.endswith(";base64"):
        raise MediaError("only base64 data URIs are read; write data:<type>;base64,<data>")
    try:
        return base64.b64decode(payload, validate=True)
    except binascii.Error as error:
        raise MediaError(f"not valid base64: {error}") from error


def _local_file(text: str, roots: Sequence[Path], base: Path) -> Path:
    scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", text)
    if scheme and scheme[1].lower() != "file":
        raise MediaError(f"{scheme[1]}:// is not supported in this version; download the file and give its path")
    if scheme:
        text = unquote(text[len("file://") :]).removeprefix("localhost")
        if not text.startswith("/"):
            raise MediaError("a file:// URI takes an absolute path, as in file:///data/a.png")
    try:
        path = (base / text).resolve()
        is_allowed = any(path.is_relative_to(root.resolve()) for root in roots)
        is_file = is_allowed and path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, a loop of links, a null byte
        raise MediaError(f"not a usable path: {one_line(error)}") from error
    if not is_allowed:
        allowed = ", ".join(map(str, roots))
        raise MediaError(f"lies outside data.media_roots ({allowed}); add its folder to data.media_roots")
    if not is_file:
        raise MediaError(f"no such file: {path}")
    return path
