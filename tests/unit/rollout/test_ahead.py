from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.data.rows import RowError, Rows
from motet.data.source import TaskSource
from motet.rollout.ahead import RenderAhead
from motet.types import Prompt, Skip, Task

NUM_ROWS = 7


def wait_until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends, "never happened"
        time.sleep(0.001)


def render(task: Task) -> Prompt | Skip:
    return Skip(reason=task.source)


def write_rows(folder: Path, *, bad: tuple[int, ...] = ()) -> Path:
    path = folder / "rows.jsonl"
    rows = [{"question": f"q{n}"} | ({} if n in bad else {"answer": "1"}) for n in range(NUM_ROWS)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def bad_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows 2 and 3 have no answer."""
    return write_rows(tmp_path_factory.mktemp("rows"), bad=(2, 3))


def source(path: Path, **settings: Any) -> TaskSource:
    return TaskSource(Rows(path), seed=5, **settings)


def take(tasks: Any, number: int) -> list[str]:
    return [task.source for task in islice(tasks, number)]


# ---- as a source -------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(depth=st.integers(0, 12), before=st.integers(0, 20), after=st.integers(1, 20))
def test_order_and_state_are_those_of_the_source_alone(rows: Path, depth: int, before: int, after: int) -> None:
    alone = source(rows)
    with RenderAhead(source(rows), render, depth=depth, num_threads=2) as ahead:
        assert take(ahead, before) == take(alone, before)
        assert ahead.state_dict() == alone.state_dict()
        state = ahead.state_dict()
        expected = take(alone, after)
        assert take(ahead, after) == expected
        ahead.load_state_dict(state)
        assert ahead.state_dict() == state
        assert take(ahead, after) == expected
    with RenderAhead(source(rows), render, depth=depth, num_threads=2) as resumed:
        resumed.load_state_dict(state)
        assert take(resumed, after) == expected


def test_nothing_is_read_before_it_is_asked_for(rows: Path) -> None:
    inner = source(rows)
    with RenderAhead(inner, render, depth=3, num_threads=1) as ahead:
        tasks = iter(ahead)
        assert inner.index == 0
        next(tasks)
        assert inner.index == 4
        next(tasks)
        assert inner.index == 5


def test_an_error_of_the_source_waits_for_its_turn(bad_rows: Path) -> None:
    alone = source(bad_rows, shuffle=False)
    with RenderAhead(source(bad_rows, shuffle=False), render, depth=5, num_threads=1) as ahead:
        tasks, expected = iter(ahead), iter(alone)
        assert take(tasks, 2) == take(expected, 2) == ["rows.jsonl:1", "rows.jsonl:2"]
        assert ahead.state_dict() == alone.state_dict()
        with pytest.raises(RowError, match=r"rows.jsonl:3"):
            next(tasks)
        # Who asks again, of either, goes on behind the row.
        with pytest.raises(RowError, match=r"rows.jsonl:4"):
            next(iter(ahead))
        assert take(ahead, 4) == [f"rows.jsonl:{n}" for n in (5, 6, 7, 1)]


def test_rows_that_the_source_skips_are_counted_there(bad_rows: Path) -> None:
    inner, alone = (source(bad_rows, shuffle=False, on_bad_row="skip") for _ in range(2))
    with RenderAhead(inner, render, depth=2, num_threads=1) as ahead:
        for _ in range(2 * NUM_ROWS):
            state = ahead.state_dict()
            assert state == alone.state_dict()
            assert take(ahead, 1) == take(alone, 1)
    assert inner.skipped == {"bad_answer": 6}  # three epochs have come to them


# ---- as a render -------------------------------------------------------------------------------


class Gate:
    """Renders once it is opened; what began, in order, and which threads ran it."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.began: list[str] = []
        self.threads: set[int] = set()

    def __call__(self, task: Task) -> Prompt | Skip:
        self.began.append(task.source)
        self.threads.add(threading.get_ident())
        assert self.open.wait(60)
        return render(task)


def test_tasks_are_rendered_before_their_turn(rows: Path) -> None:
    gate = Gate()
    with RenderAhead(source(rows, shuffle=False), gate, depth=2, num_threads=3) as ahead:
        tasks = iter(ahead)
        first = next(tasks)
        gate.open.set()
        assert ahead.render(first) == Skip(reason="rows.jsonl:1")
        prompts = [ahead.render(task) for task in islice(tasks, 4)]
        wait_until(lambda: len(gate.began) == 7)
    assert prompts == [Skip(reason=f"rows.jsonl:{n}") for n in (2, 3, 4, 5)]
    # Five were asked for and two more were begun; this thread rendered none.
    assert sorted(gate.began) == [f"rows.jsonl:{n}" for n in range(1, 8)]
    assert threading.get_ident() not in gate.threads


def test_with_depth_0_a_task_is_rendered_when_it_is_asked_for(rows: Path) -> None:
    gate = Gate()
    gate.open.set()
    with RenderAhead(source(rows, shuffle=False), gate, depth=0, num_threads=1) as ahead:
        tasks = list(islice(ahead, 3))
        assert gate.began == []
        assert ahead.render(tasks[1]) == Skip(reason="rows.jsonl:2")
    assert gate.threads == {threading.get_ident()}


def test_a_prompt_is_given_once_and_not_kept(rows: Path) -> None:
    gate = Gate()
    gate.open.set()
    with RenderAhead(source(rows, shuffle=False), gate, depth=1, num_threads=1) as ahead:
        task = next(iter(ahead))
        assert ahead.render(task) == ahead.render(task) == Skip(reason="rows.jsonl:1")
        assert len(ahead._prompts) == 1  # of the task that comes next
    assert gate.began.count("rows.jsonl:1") == 2


def test_an_error_of_render_is_met_by_its_own_task(rows: Path) -> None:
    def fail(task: Task) -> Prompt | Skip:
        if task.source == "rows.jsonl:2":
            raise ValueError("rows.jsonl:2: no such file")
        return render(task)

    with RenderAhead(source(rows, shuffle=False), fail, depth=4, num_threads=2) as ahead:
        one, two, three = islice(ahead, 3)
        assert ahead.render(three) == Skip(reason="rows.jsonl:3")
        with pytest.raises(ValueError, match=r"rows.jsonl:2: no such file"):
            ahead.render(two)
        assert ahead.render(one) == Skip(reason="rows.jsonl:1")


def test_a_task_that_comes_twice_is_rendered_each_time() -> None:
    class Same:
        task = Task(id="1", messages=(), answer="", source="rows:1")

        def __iter__(self) -> Iterator[Task]:
            while True:
                yield self.task

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    with RenderAhead(Same(), render, depth=3, num_threads=2) as ahead:
        assert [ahead.render(task) for task in islice(ahead, 5)] == [Skip(reason="rows:1")] * 5


def test_closing_ends_the_threads(rows: Path) -> None:
    gate = Gate()
    before = threading.active_count()
    ahead = RenderAhead(source(rows, shuffle=False), gate, depth=6, num_threads=2)
    next(iter(ahead))
    wait_until(lambda: len(gate.began) == 2)
    gate.open.set()
    ahead.close()
    assert threading.active_count() == before


def test_a_state_that_is_loaded_drops_what_was_read_ahead(rows: Path) -> None:
    gate = Gate()
    with RenderAhead(source(rows, shuffle=False), gate, depth=4, num_threads=1) as ahead:
        start = ahead.state_dict()
        next(iter(ahead))
        ahead.load_state_dict(start)
        gate.open.set()
        assert [ahead.render(task) for task in islice(ahead, 2)] == [
            Skip(reason="rows.jsonl:1"),
            Skip(reason="rows.jsonl:2"),
        ]
