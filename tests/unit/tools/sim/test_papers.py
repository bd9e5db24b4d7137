"""What the papers measured: how far the simulator is with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.bench_fakes import FakeProgress
from undertow.progress import Progress
from undertow.tools.sim import papers
from undertow.tools.sim.papers import make_sections
from undertow.tools.sim.sweep import Setting, weigh
from undertow.tools.sim.topology import Topology


class Quick:
    iteration_s = 1.0


def test_laps_are_those_of_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With runs that take no time."""

    def run(subject: Any, topology: Topology, schedule: Any, setting: Setting, progress: Progress) -> type[Quick]:
        progress.advance(weigh(topology, setting))
        return Quick

    progress = FakeProgress()
    monkeypatch.setattr(papers, "run", run)
    sections = make_sections(progress)
    next(sections)
    assert 0 < progress.done < 0.4 * progress.expected  # from the beginning it is known how many there are
    rest = list(sections)
    assert len(rest) == 4
    assert progress.done == pytest.approx(progress.expected)
