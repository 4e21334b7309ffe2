"""The order in which tasks are drawn: endless, shuffled anew every epoch, and resumable at any task."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

import numpy as np

from motet.data.rows import RowError, Rows
from motet.types import Task

logger = logging.getLogger(__name__)


class TaskSource:
    """A `Source` over the rows of a file. An epoch's order depends on (seed, epoch) alone: the cursor is two numbers.

    A bad row ends the run (`on_bad_row = "fail"`, RowError) or is passed over (`"skip"`): named once in a warning and
    counted, each time, in `skipped` by its reason.
    """

    def __init__(
        self, rows: Rows, *, seed: int, shuffle: bool = True, on_bad_row: Literal["fail", "skip"] = "fail"
    ) -> None:
        if not len(rows):
            raise ValueError(f"{rows.path}: holds no rows")
        self.rows = rows
        self.seed = seed
        self.shuffle = shuffle
        self.on_bad_row = on_bad_row
        self.skipped: Counter[str] = Counter()
        self._named: set[int] = set()
        self._seek(epoch=0, index=0)

    def __iter__(self) -> Iterator[Task]:
        while True:
            is_whole = self.index == 0
            num_tasks = 0
            for task in self.rest_of_epoch():
                num_tasks += 1
                yield task
            if is_whole and not num_tasks:
                raise ValueError(f"{self.rows.path}: every row is bad: {dict(self.skipped)}")
            self._seek(epoch=self.epoch + 1, index=0)

    def rest_of_epoch(self) -> Iterator[Task]:
        """The tasks that this epoch has left. The cursor moves before a task is handed out: a state saved after task
        k resumes with the task after it."""
        while self.index < len(self._order):
            row = int(self._order[self.index])
            self.index += 1
            try:
                task = self.rows[row]
            except RowError as error:
                if self.on_bad_row == "fail":
                    raise
                self._skip(row, error)
                continue
            yield task

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "index": self.index,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "num_rows": len(self.rows),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError where the order would not be the one that the state was saved in."""
        current = self.state_dict()
        for name, setting in (("num_rows", "data.train"), ("seed", "seed"), ("shuffle", "data.shuffle")):
            if state[name] != current[name]:
                raise ValueError(
                    f"{self.rows.path}: {name} is {current[name]} but was {state[name]} when the run was saved; "
                    f"resume with the same {setting}"
                )
        self._seek(epoch=state["epoch"], index=state["index"])

    def _seek(self, *, epoch: int, index: int) -> None:
        self.epoch, self.index = epoch, index
        order = np.arange(len(self.rows))
        self._order = np.random.default_rng([self.seed, epoch]).permutation(order) if self.shuffle else order

    def _skip(self, row: int, error: RowError) -> None:
        self.skipped[error.reason] += 1
        if row not in self._named:
            self._named.add(row)
            logger.warning("row skipped: %s", error)


def heldout(rows: Rows, *, max_rows: int | None = None, on_bad_row: Literal["fail", "skip"] = "fail") -> list[Task]:
    """The first `max_rows` good rows in file order, or all of them."""
    return list(islice(TaskSource(rows, seed=0, shuffle=False, on_bad_row=on_bad_row).rest_of_epoch(), max_rows))
