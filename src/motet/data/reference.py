"""What a row may refer to media by, and what it may reach: files under the allowed roots, hosts on the list."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from motet.config.schema import DataConfig
from motet.data.errors import MediaError, one_line
from motet.data.fetch import fetch
from motet.data.signatures import suffix

__all__ = ["MediaError", "Reach", "describe", "one_line", "resolve", "unwrap"]

MIN_BASE64_CHARACTERS = 48
"""Of base64 without `data:` before it. The smallest GIF has as many; with a file's signature in front, no path does."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What a row's media may reach.

    >>> Reach(roots=(Path("/data/media"),), base=Path("/data/rows"), url_hosts=("media.example.org",))
    """

    roots: tuple[Path, ...]
    """Every file lies, symbolic links followed, under one of these."""
    base: Path
    """Where relative paths start."""
    url_hosts: tuple[str, ...] = ()
    """Hosts that may be asked over http(s); `*` is every public one."""
    max_file_bytes: int = 1 << 30
    """Of a local file, a download or bytes."""

    @classmethod
    def of(cls, data: DataConfig, base: Path) -> Reach:
        """As the settings say; without `data.media_roots`, files lie under `base`."""
        roots = tuple(map(Path, data.media_roots)) or (base,)
        return cls(roots=roots, base=base, url_hosts=data.url_hosts, max_file_bytes=data.max_file_bytes)


def resolve(ref: Any, reach: Reach) -> Any:
    """A Path to open, the bytes of a file, or `ref` itself where it is an object already decoded.

    `ref` is a path, a `file://` or `http(s)://` address, a base64 data URI, bare base64 that begins as a media file
    does, bytes, or `{"bytes", "path"}` as Hugging Face datasets store media.

    Raises MediaError where it is none of these, may not be reached, or is larger than `reach.max_file_bytes`.
    """
    ref = unwrap(ref)
    if isinstance(ref, bytes | bytearray | memoryview):
        _check_bytes(memoryview(ref).nbytes, reach)
        return bytes(ref)
    if not isinstance(ref, str | PathLike):
        return ref
    text = fspath(ref)
    scheme = text[:8].lower()
    if scheme.startswith("data:"):
        return _data_uri(text, reach)
    if scheme.startswith(("http://", "https://")):
        return fetch(text, hosts=reach.url_hosts, max_bytes=reach.max_file_bytes)
    if isinstance(ref, str) and _is_bare_base64(text):
        return _base64(text, reach)
    return _local_file(text, reach)


def unwrap(ref: Any) -> Any:
    """What is in `{"bytes", "path"}`; any other reference as it is."""
    if isinstance(ref, Mapping) and not {"array", "frames"} & ref.keys() and {"bytes", "path"} & ref.keys():
        return ref["bytes"] if ref.get("bytes") is not None else ref.get("path")
    return ref


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


def _check_bytes(num_bytes: int, reach: Reach) -> None:
    if num_bytes > reach.max_file_bytes:
        raise MediaError(
            f"holds {num_bytes} bytes; at most data.max_file_bytes = {reach.max_file_bytes} are read: raise it"
        )


def _data_uri(uri: str, reach: Reach) -> bytes:
    header, _, payload = uri.partition(",")
    if not header.endswith(";base64"):
        raise MediaError("only base64 data URIs are read; write data:<type>;base64,<data>")
    return _base64(payload, reach)


def _is_bare_base64(text: str) -> bool:
    if len(text) < MIN_BASE64_CHARACTERS or not re.fullmatch(r"[A-Za-z0-9+/]{24}", text[:24]):
        return False
    return suffix(base64.b64decode(text[:24])) != "" and re.fullmatch(r"[A-Za-z0-9+/\s]+={0,2}\s*", text) is not None


def _base64(text: str, reach: Reach) -> bytes:
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(f"not valid base64: {one_line(error)}") from error
    _check_bytes(len(data), reach)
    return data


def _local_file(text: str, reach: Reach) -> Path:
    scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", text)
    if scheme and scheme[1].lower() != "file":
        raise MediaError(f"{scheme[1]}:// is not read; give a path or a file://, http:// or https:// address")
    if scheme:
        text = unquote(text[len("file://") :]).removeprefix("localhost")
        if not text.startswith("/"):
            raise MediaError("a file:// URI takes an absolute path, as in file:///data/a.png")
    try:
        # Links are followed before the path is held against the roots.
        path = (reach.base / text).resolve()
        is_allowed = any(path.is_relative_to(root.resolve()) for root in reach.roots)
        is_file = is_allowed and path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, a loop of links, a null byte
        raise MediaError(f"not a usable path: {one_line(error)}") from error
    if not is_allowed:
        allowed = ", ".join(map(str, reach.roots))
        raise MediaError(f"lies outside data.media_roots ({allowed}); add its folder to data.media_roots")
    if not is_file:
        raise MediaError(f"no such file: {path}")
    _check_bytes(path.stat().st_size, reach)
    return path
