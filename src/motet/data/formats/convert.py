"""A published file becomes a row file: convert, check, write; name what is left out and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from motet.data.formats import FORMATS, avqa
from motet.data.formats.clips import Clips
from motet.data.formats.items import items
from motet.data.formats.split import Split
from motet.data.reference import MediaError
from motet.data.rows import RowError, to_task
from motet.types import Task

Convert = Callable[[Mapping[str, Any], Clips], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What a conversion wrote; as text, the lines that the command prints."""

    out: Path
    num_rows: int
    """In `out`, held-out ones not counted."""
    num_heldout: int
    skipped: Mapping[str, int]
    """Items left out, by reason; `out` with `.skipped` behind its name has a line for each."""
    media_roots: tuple[Path, ...]
    """Where clips lie, if not all in the folder of `out`."""

    def __str__(self) -> str:
        lines = [f"rows written: {self.num_rows}, to {self.out}"]
        if self.num_heldout:
            lines.append(f"rows held out: {self.num_heldout}, sharing no clip with the others")
        if self.skipped:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.skipped.items()))
            lines.append(f"items skipped: {sum(self.skipped.values())} ({reasons}), named in {_skipped(self.out)}")
        if self.media_roots:
            roots = json.dumps([str(root) for root in self.media_roots], ensure_ascii=False)
            lines.append(f"clips lie outside {self.out.parent}: set data.media_roots={roots}")
        return "\n".join(lines)


def convert(
    name: str,
    source: Path,
    out: Path,
    *,
    media: Sequence[Path] = (),
    form: str | None = None,
    strict: bool = False,
    heldout: float | None = None,
    heldout_out: Path | None = None,
    seed: int = 0,
) -> Converted:
    """Write the items of `source`, in the format `name`, as rows to `out`.

    Clips are looked for in the folders `media`, or beside `source`. An item that gives no row is skipped and named,
    or, if `strict`, an error. `heldout` rows (below 1: that share of them), drawn by `seed`, go to `heldout_out`
    instead. Files appear whole or not at all. Raises ValueError, of one line.
    """
    make = _format(name, form)
    _check_files(source, out, heldout, heldout_out)
    clips = Clips(media or (source.parent,), out.parent)
    split, skipped = Split(seed), list[RowError]()
    draft = _draft(out)
    try:
        with draft.open("w", encoding="utf-8") as file:
            for where, item in items(source):
                try:
                    line, task = _row(item, where, make, clips)
                except RowError as error:
                    if strict:
                        raise
                    skipped.append(error)
                    continue
                file.write(line + "\n")
                split.add(task.id, [part.ref for part in task.media])
        num_rows = len(split)
        if not num_rows:
            raise ValueError(f"{source}: gives no row: {skipped[0] if skipped else 'it holds no items'}")
        chosen = set[int]()
        if heldout is not None and heldout_out is not None:
            chosen = _hold_out(split, heldout, source)
            _divide(draft, chosen, heldout_out)
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
    _name_skipped(out, skipped)
    return Converted(
        out=out,
        num_rows=num_rows - len(chosen),
        num_heldout=len(chosen),
        skipped=Counter(error.reason for error in skipped),
        media_roots=clips.roots,
    )


def _format(name: str, form: str | None) -> Convert:
    if name not in FORMATS:
        raise ValueError(f"unknown format {name!r}; use {', '.join(FORMATS)}")
    if form is None:
        return FORMATS[name]
    if name != "avqa" or form not in avqa.FORMS:
        raise ValueError(f"--form {form}: no form of {name}; avqa has {', '.join(avqa.FORMS)}, the others have one")
    return partial(FORMATS[name], form=form)


def _check_files(source: Path, out: Path, heldout: float | None, heldout_out: Path | None) -> None:
    if (heldout is None) != (heldout_out is None):
        raise ValueError("--heldout and --heldout-out go together: how many rows, and the file for them")
    if heldout is not None and (heldout <= 0 or (heldout > 1 and heldout % 1)):
        raise ValueError(f"--heldout {heldout:g}: give a share below 1, or a whole number of rows")
    if heldout_out is not None and heldout_out.resolve().parent != out.resolve().parent:
        raise ValueError(f"--heldout-out {heldout_out}: must lie beside {out}: both name clips from their folder")
    files = [path.resolve() for path in (source, out, heldout_out) if path is not None]
    if len(set(files)) < len(files):
        raise ValueError(f"{out}: would overwrite another file of this conversion; give each its own name")
    if not out.parent.is_dir():
        raise ValueError(f"{out}: there is no folder {out.parent}; make it first")


def _row(item: Any, where: str, make: Convert, clips: Clips) -> tuple[str, Task]:
    """The line to write and what training will read in it. Raises RowError, which begins with `where`."""
    try:
        if not isinstance(item, Mapping):
            raise RowError("bad_json", "is no object")
        row = make(item, clips)
    except RowError as error:
        raise RowError(error.reason, f"{where}: {error}") from None
    except MediaError as error:
        raise RowError("bad_media", f"{where}: {error}") from error
    line = json.dumps(row, ensure_ascii=False)
    return line, to_task(json.loads(line), source=where, default_id=where)


def _hold_out(split: Split, heldout: float, source: Path) -> set[int]:
    num_wanted = round(heldout * len(split)) if heldout < 1 else int(heldout)
    chosen = split.heldout(num_wanted)
    if not chosen or len(chosen) == len(split):
        raise ValueError(
            f"{source}: of {len(split)} rows, {num_wanted} cannot be held out: rows that share clips stay together, "
            "and some must be left to train on; give another --heldout"
        )
    return chosen


def _divide(draft: Path, chosen: set[int], heldout_out: Path) -> None:
    """Move the chosen lines of `draft` to `heldout_out`."""
    kept, moved = _draft(draft), _draft(heldout_out)
    with (
        draft.open(encoding="utf-8") as rows,
        kept.open("w", encoding="utf-8") as rest,
        moved.open("w", encoding="utf-8") as heldout,
    ):
        for number, line in enumerate(rows):
            (heldout if number in chosen else rest).write(line)
    moved.replace(heldout_out)
    kept.replace(draft)


def _name_skipped(out: Path, skipped: Sequence[RowError]) -> None:
    path = _skipped(out)
    path.unlink(missing_ok=True)
    if skipped:
        path.write_text("".join(f"{error}\n" for error in skipped), encoding="utf-8")


def _skipped(out: Path) -> Path:
    return out.with_name(f"{out.name}.skipped")


def _draft(path: Path) -> Path:
    return path.with_name(f"{path.name}.draft")
