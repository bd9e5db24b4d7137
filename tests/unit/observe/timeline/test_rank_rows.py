"""Times and bytes of one rank's links."""

from __future__ import annotations

import pytest

from undertow.observe.timeline.rank_rows import intersect, sample_rates, unite
from undertow.observe.timeline.run_trace import Step, Wire


def test_busy_time_is_counted_once() -> None:
    assert unite([(0, 5), (3, 8), (8, 9), (20, 30)]) == [(0, 9), (20, 30)]
    assert intersect([(0, 9), (20, 30)], [(5, 25), (28, 40)]) == [(5, 9), (20, 25), (28, 30)]
    assert intersect([(0, 10), (10, 20)], [(5, 15)]) == [(5, 10), (10, 15)]


def test_sampled_rates_have_all_bytes_of_a_link() -> None:
    wires = [
        Wire("push", 1, 1, 1, 100, 1, (), begin_ns=0, end_ns=250),
        Wire("push", 1, 1, 1, 60, 1, (), begin_ns=990, end_ns=1010),  # half of it
        Wire("push", 1, 1, 1, 7, 1, (), begin_ns=500, end_ns=500),
        Wire("push", 1, 1, 1, 7, 1, (), begin_ns=2000, end_ns=2500),
    ]
    rates = sample_rates(wires, Step(1, 0, 1000), 10)
    sizes = [rate * 100 / 1e9 for rate in rates]
    assert sizes == pytest.approx([40, 40, 20, 0, 0, 7, 0, 0, 0, 30])
