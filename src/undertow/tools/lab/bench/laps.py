"""Computes figures from laps; pure.

In: every host's laps under one system.  Out: the duration of a step, how certain it is, and
what a step costs in bytes and CPU time.
A step ends when its last host has ended it, and its duration counts from the end of the
previous step: that is also right for systems whose steps overlap.  So the first step of a
lap has no duration, only an end.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from undertow.observe.report.points import find_notch
from undertow.tools.lab.bench.messages import Lap


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Figures of all laps of one system at one bandwidth."""

    iteration_s: float  # median
    low_s: float  # quartiles
    high_s: float
    steps: int
    disagreement: float  # likely difference between two such benches, as a fraction
    cpu_s: float  # per step, all hosts together
    bytes_out: float  # per step and host, by the kernel's count


@dataclass
class Record:
    """Record of one system's laps, in order."""

    durations_s: list[list[float]] = field(default_factory=list)
    steps: int = 0
    cpu_s: float = 0.0
    bytes_out: float = 0.0

    def add(self, laps: Sequence[Lap], *, bytes_out: Sequence[int]) -> None:
        """Add one lap of all hosts, and the bytes that each sent meanwhile by the kernel's count."""
        self.durations_s.append(find_durations(laps))
        self.steps += len(laps[0].ends_s)
        self.cpu_s += sum(lap.cpu_s for lap in laps)
        self.bytes_out += statistics.fmean(bytes_out)

    def summarise(self) -> Summary:
        low_s, middle_s, high_s = self._quartiles_s
        return Summary(
            iteration_s=middle_s,
            low_s=low_s,
            high_s=high_s,
            steps=len(self._steps_s),
            disagreement=self.disagreement,
            cpu_s=self.cpu_s / self.steps,
            bytes_out=self.bytes_out / self.steps,
        )

    @property
    def disagreement(self) -> float:
        """Likely difference between two such benches, as a fraction; 1 before there are two laps.

        This is the difference between the even and the odd laps.  As few laps may agree by chance, it is at least the
        scatter of the steps.
        """
        halves = [[d for lap in self.durations_s[start::2] for d in lap] for start in (0, 1)]
        if not all(halves):
            return 1.0
        first_s, second_s = map(statistics.median, halves)
        low_s, middle_s, high_s = self._quartiles_s
        scatter_s = 2 * find_notch(low_s, high_s, steps=len(self._steps_s))
        return max(abs(first_s - second_s) / min(first_s, second_s), scatter_s / middle_s)

    @property
    def _steps_s(self) -> list[float]:
        return [duration_s for lap in self.durations_s for duration_s in lap]

    @property
    def _quartiles_s(self) -> list[float]:
        steps_s = self._steps_s
        return statistics.quantiles(steps_s, n=4) if len(steps_s) > 1 else steps_s * 3


def find_ends(laps: Sequence[Lap]) -> list[float]:
    """Return when each step ended on its last host."""
    return [max(ends) for ends in zip(*(lap.ends_s for lap in laps), strict=True)]


def find_durations(laps: Sequence[Lap]) -> list[float]:
    """Return the duration of each step but the first."""
    return [after - before for before, after in itertools.pairwise(find_ends(laps))]
