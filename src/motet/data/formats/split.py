"""Which rows are held out, so that no clip is on both sides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from blake3 import blake3


class Split:
    """Rows in groups that share no clip with one another; a group is held out whole or not at all.

    Rows 0 and 2 share a clip with row 1, though none with each other, so they go with it:

    >>> split = Split(seed=0)
    >>> for row, clips in enumerate((["a"], ["a", "b"], ["b"], ["c"])):
    ...     split.add(str(row), clips)
    >>> sorted(split.heldout(3)), sorted(split.heldout(1))
    ([0, 1, 2], [3])
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._draws: list[bytes] = []
        self._parents: list[int] = []
        self._first_rows: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, name: str, clips: Iterable[str]) -> None:
        """The next row, by its id and the clips it refers to."""
        row = len(self._parents)
        self._parents.append(row)
        self._draws.append(blake3(f"{self._seed} {name}".encode()).digest())
        for clip in clips:
            first = self._first_rows.setdefault(blake3(clip.encode()).digest(), row)
            self._parents[self._root(first)] = self._root(row)

    def heldout(self, num_rows: int) -> set[int]:
        """Numbers of the rows held out, at most `num_rows`; fewer where no group is small enough for the rest.

        The order in which groups are drawn depends on the seed and the ids of their rows alone, so that a file to
        which rows are added, or another form of the same rows, is divided in much the same way.
        """
        groups = defaultdict(list)
        for row in range(len(self._parents)):
            groups[self._root(row)].append(row)
        heldout: set[int] = set()
        for rows in sorted(groups.values(), key=lambda rows: (min(self._draws[row] for row in rows), rows)):
            if len(heldout) + len(rows) <= num_rows:
                heldout.update(rows)
        return heldout

    def _root(self, row: int) -> int:
        while self._parents[row] != row:
            self._parents[row] = self._parents[self._parents[row]]  # halves the way for whoever comes next
            row = self._parents[row]
        return row
