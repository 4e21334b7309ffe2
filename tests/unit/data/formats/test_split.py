from __future__ import annotations

from motet.data.formats.split import Split


def split(rows: list[list[str]], seed: int = 0, prefix: str = "row") -> Split:
    made = Split(seed)
    for number, clips in enumerate(rows):
        made.add(f"{prefix}-{number}", clips)
    return made


ROWS = [[f"clip-{number % 40}", f"track-{number // 3}"] for number in range(80)] + [[]] * 20
"""Rows 0 to 79 hang together by their clips and tracks; those after share nothing."""


def test_rows_that_share_clips_by_way_of_others_stay_together() -> None:
    for seed in range(20):
        assert split(ROWS, seed).heldout(79) <= set(range(80, 100))
    assert split(ROWS).heldout(100) == set(range(100))


def test_no_clip_on_both_sides() -> None:
    rows = [[f"clip-{number % 37}"] for number in range(100)]
    heldout = split(rows).heldout(20)
    assert 18 <= len(heldout) <= 20  # groups have two or three rows
    inside = {clip for number in heldout for clip in rows[number]}
    assert inside.isdisjoint(clip for number in set(range(100)) - heldout for clip in rows[number])


def test_the_seed_decides() -> None:
    rows = [[f"clip-{number}"] for number in range(100)]
    assert split(rows).heldout(10) == split(rows).heldout(10)
    assert split(rows).heldout(10) != split(rows, seed=1).heldout(10)
    assert len(split(rows).heldout(10)) == 10


def test_a_larger_file_holds_out_the_same_rows_first() -> None:
    rows = [[f"clip-{number}"] for number in range(100)]
    assert split(rows[:50]).heldout(50) == set(range(50))
    assert split(rows).heldout(30) & set(range(50)) <= split(rows[:50]).heldout(30)


def test_other_paths_of_the_same_rows_are_divided_alike() -> None:
    videos, pictures = ([[f"{folder}/{number}"] for number in range(30)] for folder in ("video", "picture"))
    assert split(videos).heldout(7) == split(pictures).heldout(7)


def test_none() -> None:
    assert split(ROWS).heldout(0) == set()
    assert len(split(ROWS)) == 100
