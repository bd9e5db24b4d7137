"""From the laps of jobs that share to figures; pure.

In: when the steps of each job ended.  Out: how long a step took, what an arrangement gains over one job after
the other, and what the best one could.
A job's step ends when its last host ends it.  Jobs in company are compared while all of them trained as they always
would.  First they settle: whoever went on alone at the end of the last lap has had more than its share, and pays it
back.  And in its last step a job that waits for the network will not compute again: the others have the device for
themselves.  Both are left out.  A step that lies across a border counts by the part inside.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from undertow.crossover.gain import Load, predict_gain
from undertow.errors import LabError
from undertow.lab.bench.messages import Lap

# Steps at the begin of a lap in company, and at its end, in which jobs are not what they are in the middle.
SETTLE, FINISH = 3, 1


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
    """One lap of an arrangement: of each job how long a step took on average, and of the machine how busy it was."""

    steps_s: tuple[float, ...]
    window_s: float
    cpu: float  # seconds of processor time per second, all workers together


def find_ends(laps: Sequence[Lap]) -> list[float]:
    """When each step of a job ended on its last host."""
    return [max(ends) for ends in zip(*(lap.ends_s for lap in laps), strict=True)]


def find_window(jobs: Sequence[Sequence[float]]) -> Window:
    """In which all trained.  Before its first end a job may still have been waking up."""
    settle, finish = (0, 0) if len(jobs) == 1 else (SETTLE, FINISH)
    window = Window(
        max(ends_s[min(settle, len(ends_s) - 1)] for ends_s in jobs), min(ends_s[-1 - finish] for ends_s in jobs)
    )
    if window.length_s <= 0:
        raise LabError(
            "the jobs did not train at the same time: one had begun its last step before another had settled. Give a "
            "longer --lap"
        )
    return window


def count_steps(ends_s: Sequence[float], window: Window) -> float:
    """How many steps a job made in it, parts of steps included."""
    return _find_progress(ends_s, window.end_s) - _find_progress(ends_s, window.start_s)


def measure_laps(jobs: Sequence[Sequence[Lap]]) -> Measured:
    """One lap of all jobs that trained at the same time, or of one that was alone."""
    ends = [find_ends(laps) for laps in jobs]
    window = find_window(ends)
    whole_s = max(ends_s[-1] for ends_s in ends) - min(ends_s[0] for ends_s in ends)
    return Measured(
        steps_s=tuple(window.length_s / count_steps(ends_s, window) for ends_s in ends),
        window_s=window.length_s,
        cpu=sum(lap.cpu_s for laps in jobs for lap in laps) / whole_s,
    )


def find_gain(alone_s: Sequence[float], company_s: Sequence[float]) -> float:
    """How much more is done than one after the other, in the same time: sum of steps x their time alone / elapsed."""
    return sum(alone / company for alone, company in zip(alone_s, company_s, strict=True))


def find_ideal(compute_s: Sequence[float], alone_s: Sequence[float], *, mix: Sequence[float] | None = None) -> float:
    """The most that can be gained with one step of each job, or with so many steps of each."""
    counts = mix or [1.0] * len(compute_s)
    loads = [
        Load(count * compute, count * max(0.0, alone - compute))
        for count, compute, alone in zip(counts, compute_s, alone_s, strict=True)
    ]
    return predict_gain(loads)


def find_middle(laps: Sequence[Measured]) -> tuple[float, ...]:
    """Of each job the median of its laps."""
    return tuple(statistics.median(steps) for steps in zip(*(lap.steps_s for lap in laps), strict=True))


def find_spread(alone: Sequence[Sequence[Measured]], company: Sequence[Measured]) -> tuple[float, float]:
    """The least and the most gained in any round: against what the same round's laps alone took."""
    gains = [find_gain([laps[number].steps_s[0] for laps in alone], lap.steps_s) for number, lap in enumerate(company)]
    return min(gains), max(gains)


def choose_steps(step_s: float, lap_s: float, *, in_company: bool) -> int:
    """How many make a lap; the first one only sets the mark."""
    return 1 + max(3, round(lap_s / step_s)) + (SETTLE + FINISH if in_company else 0)


def _find_progress(ends_s: Sequence[float], at_s: float) -> float:
    """How many steps had ended after the first one, as if work within a step were even."""
    after = min(max(1, bisect.bisect_left(ends_s, at_s)), len(ends_s) - 1)
    begin_s, end_s = ends_s[after - 1], ends_s[after]
    return after - 1 + (at_s - begin_s) / (end_s - begin_s)
