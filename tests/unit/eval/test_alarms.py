from __future__ import annotations

import pytest

from motet.eval.alarms import Alarms


def test_a_fall_below_the_best_rings_once_until_it_is_over() -> None:
    alarms = Alarms(drop=0.1)
    steps = [{"eval/accuracy": a} for a in (0.5, 0.8, 0.71, 0.69)]
    assert [alarms(step) for step in steps[:3]] == [[], [], []]
    (message,) = alarms(steps[3])
    assert message.startswith("held-out accuracy fell to 0.690 from its best, 0.800")
    assert alarms({"eval/accuracy": 0.6}) == []  # still down
    assert alarms({"entropy": 1.0}) == []  # not measured: still down
    assert alarms({"eval/accuracy": 0.6}) == []
    assert alarms({"eval/accuracy": 0.75}) == []  # up again
    assert len(alarms({"eval/accuracy": 0.6})) == 1


@pytest.mark.parametrize(("entropy", "rings"), [(0.201, False), (0.199, True)])
def test_entropy_below_a_tenth_of_the_first_rings(entropy: float, rings: bool) -> None:
    alarms = Alarms(drop=0.1)
    assert alarms({"entropy": 2.0}) == []
    assert bool(alarms({"entropy": entropy})) is rings


@pytest.mark.parametrize(("share", "rings"), [(0.9, False), (0.91, True)])
def test_hardly_any_group_with_spread_rings(share: float, rings: bool) -> None:
    assert bool(Alarms(drop=0.1)({"group/no_spread": share})) is rings
