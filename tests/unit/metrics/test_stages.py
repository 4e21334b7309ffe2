from __future__ import annotations

import pytest

from motet.metrics.stages import Stopwatch


def test_stages_sum_over_a_lap_and_start_anew() -> None:
    watch = Stopwatch(clock=iter([0.0, 2.0, 10.0, 13.0, 20.0, 20.5]).__next__)
    with watch.stage("rollout"):
        pass
    with watch.stage("rollout"):
        pass
    assert watch.lap() == {"seconds/rollout": 5.0}
    with watch.stage("step"):
        pass
    assert watch.lap() == {"seconds/step": 0.5}
    assert watch.lap() == {}


def test_stages_may_overlap_and_one_that_fails_counts() -> None:
    watch = Stopwatch(clock=iter([0.0, 1.0, 4.0, 6.0]).__next__)
    with pytest.raises(ZeroDivisionError), watch.stage("outer"), watch.stage("inner"):
        _ = 1 / 0
    assert watch.lap() == {"seconds/inner": 3.0, "seconds/outer": 6.0}


def test_a_running_stage_counts_in_the_lap_in_which_it_ends() -> None:
    watch = Stopwatch(clock=iter([0.0, 4.0]).__next__)
    with watch.stage("save"):
        assert watch.lap() == {}
    assert watch.lap() == {"seconds/save": 4.0}


def test_longest_is_the_stage_that_began_first_of_those_that_run() -> None:
    watch = Stopwatch(clock=iter([1.0, 2.0, 5.0, 6.0, 7.0, 9.0]).__next__)
    assert watch.longest() == ("", 0.0)
    with watch.stage("rollout"):  # from 1
        with watch.stage("render"):  # from 2
            assert watch.longest() == ("rollout", 4.0)  # at 5
        assert watch.longest() == ("rollout", 6.0)  # render ended at 6
    assert watch.longest() == ("", 0.0)
