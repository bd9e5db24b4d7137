"""Computes figures from the laps of jobs that share hosts; pure.

In: when the steps of each job ended.  Out: step times, and the gain of an arrangement over one job after another.
A job's step ends when its last host has ended it.  Jobs are compared only while all train in their usual state, so the
first steps and the last one of a lap are left out.  In the first steps jobs settle: slices and plans adapt to the new
load of the link, and a job that trained alone at the end of the last lap has had more than its share and gives it back.
In the last step a job that waits for the network has nothing more to compute, so the others have the device to
themselves.  A step that is only partly inside the compared time counts by that fraction.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from undertow.crossover.gain import Load
from undertow.errors import LabError
from undertow.tools.lab.bench.laps import find_ends
from undertow.tools.lab.bench.messages import Lap

# Steps left out at the start of every lap, and at the end of a lap of several jobs.
SETTLE, FINISH = 8, 1
# The least number of steps between them.
LEAST = 3


@dataclass(frozen=True)
class Window:
    """Interval in which all jobs trained."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True)
class MeasuredLap:
    """Figures of one lap of an arrangement: the average step of each job, and how busy the machine was."""

    steps_s: tuple[float, ...]
    cpu: float  # seconds of processor time per second, all workers together
    sent_bytes: float = 0.0  # per step of all jobs, by the host that sends most


def find_window(jobs: Sequence[Sequence[float]]) -> Window:
    """Return the interval in which all jobs trained in their usual state."""
    finish = 0 if len(jobs) == 1 else FINISH
    window = Window(
        max(ends_s[min(SETTLE, len(ends_s) - 1)] for ends_s in jobs), min(ends_s[-1 - finish] for ends_s in jobs)
    )
    if window.length_s <= 0:
        raise LabError(
            "the jobs did not train at the same time: one began its last step before another had settled. Give a "
            "longer --lap"
        )
    return window


def count_steps(ends_s: Sequence[float], window: Window) -> float:
    """Return the number of steps that a job made in this window, including fractions."""
    return _find_progress(ends_s, window.end_s) - _find_progress(ends_s, window.start_s)


def measure_laps(jobs: Sequence[Sequence[Lap]], sent_bytes: Sequence[int] = (0,)) -> MeasuredLap:
    """Return the figures of one lap of jobs that trained at the same time, or of one job alone.

    `sent_bytes` has the bytes that each host sent.
    """
    ends = [find_ends(laps) for laps in jobs]
    window = find_window(ends)
    whole_s = max(ends_s[-1] for ends_s in ends) - min(ends_s[0] for ends_s in ends)
    return MeasuredLap(
        steps_s=tuple(window.length_s / count_steps(ends_s, window) for ends_s in ends),
        cpu=sum(lap.cpu_s for laps in jobs for lap in laps) / whole_s,
        sent_bytes=max(sent_bytes) / max(len(ends_s) for ends_s in ends),
    )


def find_paces(jobs: Sequence[Sequence[Lap]]) -> list[float]:
    """Return the step time of each job while all trained, settled or not; of its whole lap if they did not overlap."""
    ends = [find_ends(laps) for laps in jobs]
    common = Window(max(ends_s[0] for ends_s in ends), min(ends_s[-1] for ends_s in ends))
    windows = [common if common.length_s > 0 else Window(ends_s[0], ends_s[-1]) for ends_s in ends]
    return [window.length_s / count_steps(ends_s, window) for ends_s, window in zip(ends, windows, strict=True)]


def find_gain(alone_s: Sequence[float], company_s: Sequence[float]) -> float:
    """Return how many times the work is done that one job after another would do in the same time.

    That is the sum over the jobs of step time alone / step time in company.
    """
    return sum(alone / company for alone, company in zip(alone_s, company_s, strict=True))


def make_load(*, compute_s: float, alone_s: float, links_s: float = 0.0) -> Load:
    """Return the load of a job's step; a negative wait, which can only be noise, becomes 0."""
    return Load(compute_s, max(0.0, alone_s - compute_s), links_s)


def find_middle(laps: Sequence[MeasuredLap]) -> tuple[float, ...]:
    """Return the median step of each job over its laps."""
    return tuple(statistics.median(steps) for steps in zip(*(lap.steps_s for lap in laps), strict=True))


def find_gains(alone: Sequence[Sequence[MeasuredLap]], company: Sequence[MeasuredLap]) -> list[float]:
    """Return the gain of each round, relative to the same round's laps alone."""
    return [find_gain([laps[number].steps_s[0] for laps in alone], lap.steps_s) for number, lap in enumerate(company)]


def choose_steps(paces_s: Sequence[float], lap_s: float) -> list[int]:
    """Return the number of steps of each job in a lap, so that all end at about the same time.

    The first step is an extra one: it has no duration, only an end.
    """
    slowest_s = max(paces_s)
    whole_s = SETTLE * slowest_s + max(lap_s, LEAST * slowest_s)
    finish = 0 if len(paces_s) == 1 else FINISH
    return [1 + round(whole_s / pace_s) + finish for pace_s in paces_s]


def _find_progress(ends_s: Sequence[float], at_s: float) -> float:
    """Return how many steps had ended after the first one, interpolated within a step."""
    after = min(max(1, bisect.bisect_left(ends_s, at_s)), len(ends_s) - 1)
    begin_s, end_s = ends_s[after - 1], ends_s[after]
    return after - 1 + (at_s - begin_s) / (end_s - begin_s)
