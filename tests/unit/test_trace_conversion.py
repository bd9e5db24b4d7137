"""Times on rank 0's clock while the estimate of that clock changes: never backwards, and exact after a while."""

from __future__ import annotations

import random

import pytest

from undertow.trace.clocks import Clocks
from undertow.trace.conversion import Conversion


def make(offset_s: float) -> tuple[Clocks, Conversion]:
    clocks = Clocks()
    clocks.compare(0.0, offset_s, 0.1)
    conversion = Conversion(clocks)
    conversion.refresh()
    return clocks, conversion


def improve(clocks: Clocks, conversion: Conversion, offset_s: float) -> None:
    clocks.compare(0.0, offset_s, 0.0001)
    conversion.refresh()


def test_the_first_estimate_holds_for_every_time() -> None:
    _, conversion = make(100.0)
    assert conversion.convert(-5.0) == pytest.approx(95e6)
    assert conversion.convert(5.0) == pytest.approx(105e6)


def test_a_better_estimate_holds_from_there_on() -> None:
    clocks, conversion = make(100.0)
    before = conversion.convert(1.0)
    improve(clocks, conversion, 100.001)
    assert conversion.convert(1.0) == before
    assert conversion.convert(0.5) == pytest.approx(100.5e6)
    assert conversion.convert(1.1) == pytest.approx(101.101e6)


def test_behind_the_old_estimate_the_clock_runs_at_half_speed_until_both_agree() -> None:
    clocks, conversion = make(100.001)
    conversion.convert(1.0)
    improve(clocks, conversion, 100.0)
    assert conversion.convert(1.001) == pytest.approx(101.0015e6)
    assert conversion.convert(1.002) == pytest.approx(101.002e6)
    assert conversion.convert(1.003) == pytest.approx(101.003e6)


@pytest.mark.parametrize("seed", range(20))
def test_a_later_time_is_later_and_a_time_stays_what_it_was(seed: int) -> None:
    draw = random.Random(seed)
    clocks, conversion = make(100.0)
    told: dict[float, float] = {}
    for second in range(100):
        clocks.compare(float(second), 100.0 + draw.uniform(-0.01, 0.01), draw.uniform(0.0001, 0.02))
        conversion.refresh()
        for time_s in (draw.uniform(second - 3, second), draw.uniform(second, second + 1)):
            told[time_s] = conversion.convert(time_s)
    assert [conversion.convert(time_s) for time_s in told] == list(told.values())
    in_order = [told[time_s] for time_s in sorted(told)]
    assert in_order == sorted(in_order)
