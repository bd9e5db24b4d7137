"""The rate of a link is measured while more bytes wait to be sent."""

from __future__ import annotations

import pytest

from undertow.engine.core.rate import KEPT, SPAN_S, Rate


def run(rate: Rate, *, seconds: float, bytes_per_s: float, start_s: float = 0.0, is_waiting: bool = True) -> float:
    """Every 5 ms of a steady stream; returns when it ended."""
    ticks = round(seconds / 0.005)
    for tick in range(ticks + 1):
        now_s = start_s + tick * 0.005
        rate.note(now_s, round(1000 + (now_s - start_s) * bytes_per_s), is_waiting=is_waiting)
    return start_s + seconds


def test_it_is_unknown_until_something_has_waited_long_enough() -> None:
    rate = Rate()
    run(rate, seconds=1, bytes_per_s=1e6, is_waiting=False)
    assert rate.bytes_per_s is None
    run(rate, seconds=SPAN_S * 0.7, bytes_per_s=1e6)
    assert rate.bytes_per_s is None


def test_the_number_of_samples_shows_whether_there_are_new_ones() -> None:
    rate = Rate()
    now_s = run(rate, seconds=1, bytes_per_s=1e6)
    seen = rate.seen
    assert seen > 0
    now_s = run(rate, seconds=1, bytes_per_s=1e6, start_s=now_s, is_waiting=False)
    assert rate.seen == seen
    run(rate, seconds=1, bytes_per_s=1e6, start_s=now_s)
    assert rate.seen > seen


def test_a_steady_stream_has_its_rate() -> None:
    rate = Rate()
    run(rate, seconds=1, bytes_per_s=1e6)
    assert rate.bytes_per_s == pytest.approx(1e6, rel=0.01)


def test_time_in_which_nothing_waits_does_not_count() -> None:
    rate = Rate()
    now_s = 0.0
    for _ in range(10):
        now_s = run(rate, seconds=0.05, bytes_per_s=2e6, start_s=now_s)
        rate.note(now_s, 10**9, is_waiting=False)
        now_s += 10
    assert rate.bytes_per_s == pytest.approx(2e6, rel=0.01)


def test_bursts_that_end_before_a_span_are_not_believed() -> None:
    rate = Rate()
    for burst in range(100):
        run(rate, seconds=SPAN_S / 2, bytes_per_s=1e9, start_s=float(burst))
        rate.note(burst + 0.5, 0, is_waiting=False)
    assert rate.bytes_per_s is None


def test_a_moments_disturbance_is_outvoted_and_a_lasting_change_is_followed() -> None:
    rate = Rate()
    now_s = run(rate, seconds=1, bytes_per_s=1e6)
    now_s = run(rate, seconds=3 * SPAN_S, bytes_per_s=1e3, start_s=now_s)
    assert rate.bytes_per_s == pytest.approx(1e6, rel=0.01)
    run(rate, seconds=(KEPT + 1) * SPAN_S * 2, bytes_per_s=5e6, start_s=now_s)
    assert rate.bytes_per_s == pytest.approx(5e6, rel=0.01)
