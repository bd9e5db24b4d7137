"""A heat: the jobs of one arrangement that train at the same time, lap by lap.

In: fleets.  Out: what each lap measured.
All are told to train at once, and each so many steps that all are done at about the same time: by the pace of
their last lap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from undertow.errors import LabError
from undertow.lab.bench.fleet import Fleet
from undertow.lab.bench.messages import Lap
from undertow.lab.network import Network
from undertow.lab.sharing.figures import Measured, choose_steps, find_ends, find_paces, measure_laps
from undertow.lab.sharing.plan import Arrangement

PATIENCE_S = 60.0
PATIENCE = 20.0
REHEARSALS = 2
TRIES = 3


@dataclass
class Heat:
    """One job, or all of them."""

    arrangement: Arrangement
    title: str
    fleets: Sequence[Fleet]
    network: Network
    paces_s: list[float]  # of a step of each, as far as is known
    laps: list[Measured] = field(default_factory=list)

    def rehearse(self, lap_s: float) -> None:
        """Laps that do not count, to learn the pace.  One pays back what somebody had while it warmed up alone."""
        for _ in range(REHEARSALS):
            laps, _ = self._run(lap_s)
            self.paces_s = find_paces(laps)

    def run(self, lap_s: float) -> None:
        """One lap; again if the jobs did not meet in it, with the pace that it showed."""
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
        """The laps of all jobs, and what each host has sent in them."""
        steps = choose_steps(self.paces_s, lap_s)
        timeout_s = PATIENCE_S + PATIENCE * sum(n * pace_s for n, pace_s in zip(steps, self.paces_s, strict=True))
        before = self.network.counters()
        for fleet, count in zip(self.fleets, steps, strict=True):
            fleet.begin_lap(count)
        laps = [fleet.end_lap(timeout_s=timeout_s) for fleet in self.fleets]
        after = self.network.counters()
        return laps, [now.payload_out - then.payload_out for then, now in zip(before, after, strict=True)]


def warm_up(fleet: Fleet, expected_s: float) -> float:
    """Train alone until the system is what it will be; returns how long a step took in the end."""
    laps = fleet.run(fleet.warm_up_steps, timeout_s=PATIENCE_S + PATIENCE * fleet.warm_up_steps * expected_s)
    ends_s = find_ends(laps)
    half = ends_s[len(ends_s) // 2 :]
    return (half[-1] - half[0]) / max(1, len(half) - 1)
