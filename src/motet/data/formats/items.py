"""The items of a published file, one at a time: JSON lines, a JSON list, or parquet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from motet.data.reference import one_line
from motet.data.rows import RowError

PARQUET_BATCH_ROWS = 64
"""Read at once: rows may hold whole clips."""


def items(path: Path) -> Iterator[tuple[str, Any]]:
    """(where, item) of every item; `where` is `file:line` or, of a list or table, `file[index]`, from 0.

    Lines and tables are streamed; a file that begins with `[` is one list, whatever its name, and read whole. Raises
    ValueError, naming file and line, for what is no such file.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; give the annotations as .json, .jsonl or .parquet")
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    try:
        with path.open(encoding="utf-8-sig") as file:
            is_list = next((char for line in file for char in line.strip()[:1]), "") == "["
            file.seek(0)
            yield from _list(path, file) if is_list else _lines(path, file)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start + 1}") from error


def _lines(path: Path, file: TextIO) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(file, 1):
        if not line.isspace():
            yield f"{path.name}:{number}", _parsed(line, f"{path}:{number}")


def _list(path: Path, file: TextIO) -> Iterator[tuple[str, Any]]:
    for index, item in enumerate(_parsed(file.read(), f"{path}")):
        yield f"{path.name}[{index}]", item


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise ValueError(
            f"{where}: not valid JSON: {error.msg} at {place}; give one list, or one object a line"
        ) from error


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{path}: reading parquet needs pyarrow; pip install 'motet[data]'") from error
    index = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(PARQUET_BATCH_ROWS):
            for item in batch.to_pylist():
                yield f"{path.name}[{index}]", item
                index += 1
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path}: not a readable parquet file: {one_line(error)}") from error


# ---- one item ----------------------------------------------------------------------------------


def field(item: Mapping[str, Any], *names: str) -> Any:
    """The value under the first of `names` that the item has. Raises RowError if it has none."""
    for name in names:
        if item.get(name) is not None:
            return item[name]
    raise RowError("missing_field", f"has no {' or '.join(names)}")


def kind(*labels: Any) -> str:
    """One label to count by, of those that the item gives.

    >>> kind("Both", "Come From"), kind(None)
    ('both_come_from', '')
    """
    words = re.findall(r"\w+", " ".join(str(label) for label in labels if label is not None))
    return "_".join(words).lower()
