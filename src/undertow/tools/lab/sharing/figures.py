"""Figures from the laps of jobs that share; pure.

In: when the steps of each job ended.  Out: how long a step took, what an arrangement gains over one job after
the other, and what the best one could.
A job's step ends when its last host ends it.  Jobs are compared while all of them train as they always would, so the
first steps and the last one are left out.  At first jobs settle: slices and plans follow a change of the link's load
after some steps, and a job that went on alone at the end of the last lap has had more than its share, and pays it back.
In its last step a job that waits for the network will not compute again, so the others have the device alone.  A step
that lies across a border counts by the fraction inside.
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

# Steps at the begin of a lap, and at the end of one in company, in which jobs are not what they are in the middle.
SETTLE, FINISH = 8, 1
# Steps that a lap has at least, beside those.
LEAST = 3


@dataclass(frozen=True)
class Window:
    """A time in which all jobs trained."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One lap of an arrangement: the average step of each job, and how busy the machine was."""

    steps_s: tuple[float, ...]
    cpu: float  # seconds of processor time per second, all workers together
    sent_bytes: float = 0.0  # per step of all jobs, by the host that sends most


def find_window(jobs: Sequence[Sequence[float]]) -> Window:
    """Return the time in which all trained.  Before its first end a job may still have been waking up."""
    finish = 0 if len(jobs) == 1 else FINISH
    window = Window(
        max(ends_s[min(SETTLE, len(ends_s) - 1)] for ends_s in jobs), min(ends_s[-1 - finish] for ends_s in jobs)
    )
    if window.length_s <= 0:
        raise LabError(
            "the jobs did not train at the same time: one had begun its last step before another had settled. Give a "
            "longer --lap"
        )
    return window


def count_steps(ends_s: Sequence[float], window: Window) -> float:
    """Return how many steps a job made in this window, parts of steps included."""
    return _find_progress(ends_s, window.end_s) - _find_progress(ends_s, window.start_s)


def measure_laps(jobs: Sequence[Sequence[Lap]], sent_bytes: Sequence[int] = (0,)) -> Measured:
    """Measure one lap of all jobs that trained at the same time, or of one that was alone.

    `sent_bytes` is what each host sent in it.
    """
    ends = [find_ends(laps) for laps in jobs]
    window = find_window(ends)
    whole_s = max(ends_s[-1] for ends_s in ends) - min(ends_s[0] for ends_s in ends)
    return Measured(
        steps_s=tuple(window.length_s / count_steps(ends_s, window) for ends_s in ends),
        cpu=sum(lap.cpu_s for laps in jobs for lap in laps) / whole_s,
        sent_bytes=max(sent_bytes) / max(len(ends_s) for ends_s in ends),
    )


def find_paces(jobs: Sequence[Sequence[Lap]]) -> list[float]:
    """Return how long a step of each took while all trained, settled or not; in its own lap if they did not overlap."""
    ends = [find_ends(laps) for laps in jobs]
    common = Window(max(ends_s[0] for ends_s in ends), min(ends_s[-1] for ends_s in ends))
    windows = [common if common.length_s > 0 else Window(ends_s[0], ends_s[-1]) for ends_s in ends]
    return [window.length_s / count_steps(ends_s, window) for ends_s, window in zip(ends, windows, strict=True)]


def find_gain(alone_s: Sequence[float], company_s: Sequence[float]) -> float:
    """Return how much more is done in the same time than one after the other: sum of steps x time alone / elapsed."""
    return sum(alone / company for alone, company in zip(alone_s, company_s, strict=True))


def make_load(*, compute_s: float, alone_s: float, links_s: float = 0.0) -> Load:
    """Return the load of a job's step; noise makes no negative waits."""
    return Load(compute_s, max(0.0, alone_s - compute_s), links_s)


def find_middle(laps: Sequence[Measured]) -> tuple[float, ...]:
    """Return the median step of each job over its laps."""
    return tuple(statistics.median(steps) for steps in zip(*(lap.steps_s for lap in laps), strict=True))


def find_gains(alone: Sequence[Sequence[Measured]], company: Sequence[Measured]) -> list[float]:
    """Return the gain of each round, relative to the same round's laps alone."""
    return [find_gain([laps[number].steps_s[0] for laps in alone], lap.steps_s) for number, lap in enumerate(company)]


def choose_steps(paces_s: Sequence[float], lap_s: float) -> list[int]:
    """Return how many steps of each job make a lap, so that all end at about the same time.

    The first step only sets the mark.
    """
    slowest_s = max(paces_s)
    whole_s = SETTLE * slowest_s + max(lap_s, LEAST * slowest_s)
    finish = 0 if len(paces_s) == 1 else FINISH
    return [1 + round(whole_s / pace_s) + finish for pace_s in paces_s]


def _find_progress(ends_s: Sequence[float], at_s: float) -> float:
    """Return how many steps had ended after the first one, as if work within a step were even."""
    after = min(max(1, bisect.bisect_left(ends_s, at_s)), len(ends_s) - 1)
    begin_s, end_s = ends_s[after - 1], ends_s[after]
    return after - 1 + (at_s - begin_s) / (end_s - begin_s)
