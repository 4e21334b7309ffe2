from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from motet.data.formats.items import field, items, kind
from motet.data.rows import RowError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}\n\n{"a": 2}\n', [("f:1", {"a": 1}), ("f:3", {"a": 2})]),
        ('\ufeff \n [{"a": 1},\n 2]', [("f[0]", {"a": 1}), ("f[1]", 2)]),
        ("[]", []),
        ("", []),
    ],
)
def test_text(tmp_path: Path, text: str, found: object) -> None:
    (tmp_path / "f").write_text(text, encoding="utf-8")
    assert list(items(tmp_path / "f")) == found


def test_parquet(tmp_path: Path) -> None:
    table = pyarrow.table({"id": list(range(130)), "audio": [{"bytes": b"x", "path": "a.wav"}] * 130})
    pyarrow.parquet.write_table(table, tmp_path / "f.parquet")
    found = list(items(tmp_path / "f.parquet"))
    assert len(found) == 130
    assert found[129] == ("f.parquet[129]", {"id": 129, "audio": {"bytes": b"x", "path": "a.wav"}})


def test_lines_are_read_one_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text('{"a": 1}\n{"a": \n')
    found = items(tmp_path / "f.jsonl")
    assert next(found) == ("f.jsonl:1", {"a": 1})
    with pytest.raises(ValueError, match=r"f\.jsonl:2: not valid JSON: Expecting value at line \d column \d"):
        next(found)


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("f.json", b'[{"a": 1}', "f.json: not valid JSON: Expecting ',' delimiter at line 1 column 10; give one list,"),
        ("f.json", b'{\n"a": 1\n}', "f.json:1: not valid JSON: Expecting property name"),
        ("f.jsonl", b"\xff\xfe", "f.jsonl: not UTF-8 text: invalid start byte at byte 1"),
        ("f.parquet", b"[]", "f.parquet: not a readable parquet file: "),
        ("f.jsonl", None, "f.jsonl: no such file; give the annotations as"),
    ],
)
def test_no_such_file(tmp_path: Path, name: str, data: bytes | None, line: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError) as caught:
        list(items(tmp_path / name))
    assert str(caught.value).startswith(f"{tmp_path}/{line}")
    assert "\n" not in str(caught.value)


def test_a_field_by_its_first_name() -> None:
    assert field({"a": None, "b": 0, "c": 1}, "a", "b", "c") == 0
    with pytest.raises(RowError, match=r"^has no a or d$"):
        field({"a": None}, "a", "d")


def test_kinds() -> None:
    assert [kind(None), kind("View", None), kind("Both", "Before/Next"), kind(3)] == [
        "",
        "view",
        "both_before_next",
        "3",
    ]
