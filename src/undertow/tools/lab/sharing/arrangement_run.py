"""Run of one arrangement: its jobs train at the same time, lap by lap.

In: groups of workers.  Out: the figures of each lap.
All jobs are told to train at once.  By the pace of its last lap each makes as many steps as let all end at about the
same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from undertow.errors import LabError
from undertow.observe.report.shared_jobs import Arrangement
from undertow.tools.lab.bench.laps import find_ends
from undertow.tools.lab.bench.messages import Lap
from undertow.tools.lab.bench.worker_group import WorkerGroup
from undertow.tools.lab.network import Network
from undertow.tools.lab.sharing.figures import Measured, choose_steps, find_paces, measure_laps

PATIENCE_S = 60.0
PATIENCE = 20.0
REHEARSALS = 2
TRIES = 3


@dataclass
class ArrangementRun:
    """Laps of one job, or of all of them together."""

    arrangement: Arrangement
    title: str
    groups: Sequence[WorkerGroup]
    network: Network
    paces_s: list[float]  # of a step of each, as far as is known
    laps: list[Measured] = field(default_factory=list)

    def rehearse(self, lap_s: float) -> None:
        """Run laps that do not count, to learn the pace; one pays back what a job had while it warmed up alone."""
        for _ in range(REHEARSALS):
            laps, _ = self._run(lap_s)
            self.paces_s = find_paces(laps)

    def run(self, lap_s: float) -> None:
        """Run one lap; again if the jobs did not meet in it, with the pace that it showed."""
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
        """Run a lap, and return it for each job with what each host has sent."""
        steps = choose_steps(self.paces_s, lap_s)
        timeout_s = PATIENCE_S + PATIENCE * sum(n * pace_s for n, pace_s in zip(steps, self.paces_s, strict=True))
        before = self.network.counters()
        for group, count in zip(self.groups, steps, strict=True):
            group.begin_lap(count)
        laps = [group.end_lap(timeout_s=timeout_s) for group in self.groups]
        after = self.network.counters()
        return laps, [now.payload_out - then.payload_out for then, now in zip(before, after, strict=True)]


def warm_up(group: WorkerGroup, expected_s: float) -> float:
    """Train alone until the speed has settled, and return how long a step took in the end."""
    laps = group.run(group.warm_up_steps, timeout_s=PATIENCE_S + PATIENCE * group.warm_up_steps * expected_s)
    ends_s = find_ends(laps)
    half = ends_s[len(ends_s) // 2 :]
    return (half[-1] - half[0]) / max(1, len(half) - 1)
