"""Runs one arrangement: its jobs train at the same time, lap by lap.

In: groups of workers.  Out: the figures of each lap.
All jobs start a lap together.  The number of steps of each is chosen from the pace of its last lap, so that all end at
about the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from undertow.errors import LabError
from undertow.observe.report.shared_jobs import Arrangement
from undertow.tools.lab.bench.laps import find_ends
from undertow.tools.lab.bench.messages import Lap
from undertow.tools.lab.bench.worker_group import WorkerGroup, find_timeout_s
from undertow.tools.lab.network import Network, count_sent
from undertow.tools.lab.sharing.figures import MeasuredLap, choose_steps, find_paces, measure_laps

REHEARSALS = 2
TRIES = 3


@dataclass
class ArrangementRun:
    """Laps of one job alone, or of all jobs together."""

    arrangement: Arrangement
    title: str
    groups: Sequence[WorkerGroup]
    network: Network
    paces_s: list[float]  # the step time of each job in its last lap
    laps: list[MeasuredLap] = field(default_factory=list)

    def rehearse(self, lap_s: float) -> None:
        """Run laps that do not count, to learn the pace.

        In one of them the jobs balance what each has had of the device while it warmed up alone.
        """
        for _ in range(REHEARSALS):
            laps, _ = self._run(lap_s)
            self.paces_s = find_paces(laps)

    def run(self, lap_s: float) -> None:
        """Run one lap; repeat it with the measured pace if the jobs did not overlap."""
        for number in range(TRIES):
            laps, sent_bytes = self._run(lap_s)
            try:
                self.laps.append(measure_laps(laps, sent_bytes))
            except LabError:
                if number == TRIES - 1:
                    raise
                self.paces_s = find_paces(laps)
            else:
                self.paces_s = list(self.laps[-1].steps_s)
                return

    def _run(self, lap_s: float) -> tuple[list[list[Lap]], list[int]]:
        """Run a lap, and return it for each job, with the bytes that each host sent."""
        steps = choose_steps(self.paces_s, lap_s)
        timeout_s = find_timeout_s(sum(n * pace_s for n, pace_s in zip(steps, self.paces_s, strict=True)))
        before = self.network.counters()
        for group, count in zip(self.groups, steps, strict=True):
            group.begin_lap(count)
        laps = [group.end_lap(timeout_s=timeout_s) for group in self.groups]
        return laps, count_sent(before, self.network.counters())


def warm_up(group: WorkerGroup, expected_s: float) -> float:
    """Train alone until the step time has settled, and return it."""
    laps = group.run(group.warm_up_steps, timeout_s=find_timeout_s(group.warm_up_steps * expected_s))
    ends_s = find_ends(laps)
    half = ends_s[len(ends_s) // 2 :]
    return (half[-1] - half[0]) / max(1, len(half) - 1)
