"""What the papers measured: how far the simulator is with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.bench_fakes import Watcher
from undertow.sim import papers
from undertow.sim.papers import make_sections
from undertow.sim.sweep import Setting, weigh
from undertow.sim.topology import Topology
from undertow.watch import Watch


class Quick:
    iteration_s = 1.0


def test_laps_are_those_of_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With runs that take no time."""

    def run(subject: Any, topology: Topology, schedule: Any, setting: Setting, watch: Watch) -> type[Quick]:
        watch.lap(weigh(topology, setting))
        return Quick

    watch = Watcher()
    monkeypatch.setattr(papers, "run", run)
    sections = make_sections(watch)
    next(sections)
    assert 0 < watch.laps < 0.4 * watch.expected  # from the beginning it is known how many there are
    rest = list(sections)
    assert len(rest) == 4
    assert watch.laps == pytest.approx(watch.expected)
