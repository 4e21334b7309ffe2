"""The clips that items name: found in folders, and named again as a row of OUT may refer to them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from blake3 import blake3

from motet.data.reference import describe
from motet.data.rows import RowError


class Clips:
    """Looks for clips in `folders`, in their order, for rows of a file in the folder `home`."""

    def __init__(self, folders: Sequence[Path], home: Path) -> None:
        self.folders = folders
        self.home = home
        self.made = home / "media"
        """Where clips go that are no files yet."""
        self._places: set[Path] = set()

    @property
    def roots(self) -> tuple[Path, ...]:
        """What `data.media_roots` has to name, symbolic links followed; () where all clips lie in `home`."""
        home = self.home.resolve()
        inside = {place for place in self._places if place.is_relative_to(home)}
        if inside == self._places:
            return ()
        return (*([home] if inside else []), Path(os.path.commonpath(self._places - inside)))

    def find(self, names: Iterable[str]) -> Path | None:
        """The first of the files `names` that there is, in the first folder that has one."""
        paths = (folder / name for name in names for folder in self.folders)
        return next((path for path in paths if _is_file(path)), None)

    def refer(self, path: Path) -> str:
        """How a row names the file: relative to its own folder where it lies in there, else absolute."""
        self._places.add(path.resolve().parent)
        absolute, home = Path(os.path.abspath(path)), Path(os.path.abspath(self.home))
        return str(absolute.relative_to(home) if absolute.is_relative_to(home) else absolute)

    def reference(self, ref: Any) -> str:
        """What a row calls the clip that an item refers to by `ref`: a path, URI, `{"path"}`, `{"url"}` or
        `{"bytes", "path"}`. Addresses and data URIs stay as they are; bytes become a file named by their hash.

        Raises RowError for a file that is not there, or another kind of reference.
        """
        if isinstance(ref, Mapping) and ref.get("bytes"):
            return self.refer(self._unpack(ref["bytes"], Path(ref.get("path") or "").suffix))
        if isinstance(ref, Mapping):
            ref = ref.get("path") or ref.get("url")
        if not isinstance(ref, str) or not ref:
            raise RowError("bad_media", f"{describe(ref)} is no reference to a clip; give a path")
        if re.match(r"https?://|data:", ref, re.IGNORECASE):
            return ref
        if ref.startswith("file://"):
            ref = unquote(ref.removeprefix("file://").removeprefix("localhost"))
        return self.refer(self.must_find([ref], ref))

    def must_find(self, names: Iterable[str], clip: str) -> Path:
        """As `find`. Raises RowError, naming the clip, if there is none."""
        path = self.find(names)
        if path is None:
            raise RowError("missing_clip", f"no file for {describe(clip)} in {', '.join(map(str, self.folders))}")
        return path

    def _unpack(self, data: bytes, suffix: str) -> Path:
        path = self.made / f"{blake3(data).hexdigest(16)}{suffix}"
        if not path.exists():
            self.made.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f"{path.name}.draft")
            draft.write_bytes(data)
            draft.replace(path)
        return path


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, a null byte: no name of a file
        return False
