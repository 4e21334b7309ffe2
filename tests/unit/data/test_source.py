from __future__ import annotations

import json
import logging
from itertools import islice
from pathlib import Path

import pytest

from motet.data.rows import RowError, Rows
from motet.data.source import TaskSource, heldout


def write_rows(path: Path, number: int, bad: tuple[int, ...] = ()) -> Rows:
    """Row i answers i; a bad row has no answer."""
    rows = [{"question": "q", "answer": None if i in bad else i} for i in range(number)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Rows(path)


def draw(source: TaskSource, number: int) -> list[int]:
    return [int(task.answer) for task in islice(source, number)]


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return write_rows(tmp_path / "train.jsonl", 10)


def test_every_epoch_holds_every_row_once_in_a_new_order(rows: Rows) -> None:
    drawn = draw(TaskSource(rows, seed=3), 30)
    epochs = [drawn[0:10], drawn[10:20], drawn[20:30]]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert draw(TaskSource(rows, seed=3), 30) == drawn
    assert draw(TaskSource(rows, seed=4), 10) != drawn[:10]


def test_without_shuffling_file_order_repeats(rows: Rows) -> None:
    assert draw(TaskSource(rows, seed=3, shuffle=False), 25) == [*range(10), *range(10), *range(5)]


@pytest.mark.parametrize("num_drawn", [0, 1, 7, 9, 10, 11, 20, 25])
def test_a_state_resumes_with_the_next_task(rows: Rows, num_drawn: int) -> None:
    expected = draw(TaskSource(rows, seed=3), 45)
    first = TaskSource(rows, seed=3)
    assert draw(first, num_drawn) == expected[:num_drawn]
    second = TaskSource(rows, seed=3)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert draw(second, 45 - num_drawn) == expected[num_drawn:]


def test_the_cursor_is_past_the_task_that_was_handed_out(rows: Rows) -> None:
    source = TaskSource(rows, seed=3)
    tasks = iter(source)
    assert source.state_dict() == {"epoch": 0, "index": 0, "seed": 3, "shuffle": True, "num_rows": 10}
    next(tasks)
    assert source.state_dict()["index"] == 1
    for _ in range(10):
        next(tasks)
    assert (source.state_dict()["epoch"], source.state_dict()["index"]) == (1, 1)


def test_going_on_with_a_second_iterator_repeats_nothing(rows: Rows) -> None:
    source = TaskSource(rows, seed=3)
    assert sorted(draw(source, 4) + draw(source, 6)) == list(range(10))


def test_a_live_iterator_follows_a_loaded_state(rows: Rows) -> None:
    source = TaskSource(rows, seed=3)
    tasks = iter(source)
    expected = [next(tasks).answer for _ in range(25)]
    source.load_state_dict({"epoch": 1, "index": 2, "seed": 3, "shuffle": True, "num_rows": 10})
    assert [next(tasks).answer for _ in range(13)] == expected[12:]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_rows": 11}, r"num_rows is 10 but was 11 when the run was saved; resume with the same data\.train"),
        ({"seed": 4}, r"seed is 3 but was 4 when the run was saved; resume with the same seed"),
        (
            {"shuffle": False},
            r"shuffle is True but was False when the run was saved; resume with the same data\.shuffle",
        ),
    ],
)
def test_a_state_of_another_order_is_refused(rows: Rows, changed: dict[str, object], message: str) -> None:
    source = TaskSource(rows, seed=3)
    with pytest.raises(ValueError, match=message):
        source.load_state_dict({**source.state_dict(), "index": 5, **changed})
    assert source.state_dict()["index"] == 0


def test_a_bad_row_ends_the_run(tmp_path: Path) -> None:
    source = TaskSource(write_rows(tmp_path / "a.jsonl", 4, bad=(2,)), seed=0, shuffle=False)
    with pytest.raises(RowError, match=r"^a\.jsonl:3: has no answer$"):
        draw(source, 4)


def test_or_is_skipped_counted_and_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = write_rows(tmp_path / "a.jsonl", 4, bad=(0, 2))
    source = TaskSource(rows, seed=0, shuffle=False, on_bad_row="skip")
    with caplog.at_level(logging.WARNING):
        assert draw(source, 5) == [1, 3, 1, 3, 1]
    assert source.skipped == {"bad_answer": 5}  # two, two, and the first of the third epoch
    assert [record.message for record in caplog.records] == [
        "row skipped: a.jsonl:1: has no answer",
        "row skipped: a.jsonl:3: has no answer",
    ]


def test_a_skipping_source_resumes_too(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "a.jsonl", 10, bad=(0, 9))
    expected = draw(TaskSource(rows, seed=1, on_bad_row="skip"), 30)
    for num_drawn in (3, 8, 11):
        first, second = (TaskSource(rows, seed=1, on_bad_row="skip") for _ in range(2))
        draw(first, num_drawn)
        second.load_state_dict(first.state_dict())
        assert draw(second, 30 - num_drawn) == expected[num_drawn:]


def test_rows_that_are_all_bad_do_not_loop_for_ever(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "a.jsonl", 2, bad=(0, 1))
    with pytest.raises(ValueError, match=r"a\.jsonl: every row is bad: \{'bad_answer': 2\}"):
        draw(TaskSource(rows, seed=0, on_bad_row="skip"), 1)
    with pytest.raises(ValueError, match=r"b\.jsonl: holds no rows"):
        TaskSource(write_rows(tmp_path / "b.jsonl", 0), seed=0)


def test_heldout_rows_come_once_in_file_order(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "a.jsonl", 5, bad=(1,))
    assert [task.answer for task in heldout(rows, on_bad_row="skip")] == ["0", "2", "3", "4"]
    assert [task.answer for task in heldout(rows, max_rows=2, on_bad_row="skip")] == ["0", "2"]
    assert [task.answer for task in heldout(rows, max_rows=1)] == ["0"]
    with pytest.raises(RowError, match=r"a\.jsonl:2"):
        heldout(rows, max_rows=2)
