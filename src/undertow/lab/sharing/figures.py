"""From the laps of jobs that share to figures; pure.

In: when the steps of each job ended.  Out: how long a step took, what an arrangement gains over one job after
the other, and what the best one could.
A job's step ends when its last host ends it.  Jobs are compared while all of them trained as they always would.
First they settle: slices and plans follow a link that others have left, or have come to, after some steps, and whoever
went on alone at the end of the last lap has had more than its share, and pays it back.  And in its last step a job that
waits for the network will not compute again: the others have the device for themselves.  Both are left out.  A step
that lies across a border counts by the part inside.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from undertow.crossover.gain import Load, predict_gain
from undertow.errors import LabError
from undertow.lab.bench.messages import Lap

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
    """One lap of an arrangement: of each job how long a step took on average, and of the machine how busy it was."""

    steps_s: tuple[float, ...]
    window_s: float
    cpu: float  # seconds of processor time per second, all workers together
    sent_bytes: float = 0.0  # per step of all jobs, by the host that sends most


def find_ends(laps: Sequence[Lap]) -> list[float]:
    """When each step of a job ended on its last host."""
    return [max(ends) for ends in zip(*(lap.ends_s for lap in laps), strict=True)]


def find_window(jobs: Sequence[Sequence[float]]) -> Window:
    """In which all trained.  Before its first end a job may still have been waking up."""
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
    """How many steps a job made in it, parts of steps included."""
    return _find_progress(ends_s, window.end_s) - _find_progress(ends_s, window.start_s)


def measure_laps(jobs: Sequence[Sequence[Lap]], sent_bytes: Sequence[int] = (0,)) -> Measured:
    """One lap of all jobs that trained at the same time, or of one that was alone; each host sent so much in it."""
    ends = [find_ends(laps) for laps in jobs]
    window = find_window(ends)
    whole_s = max(ends_s[-1] for ends_s in ends) - min(ends_s[0] for ends_s in ends)
    return Measured(
        steps_s=tuple(window.length_s / count_steps(ends_s, window) for ends_s in ends),
        window_s=window.length_s,
        cpu=sum(lap.cpu_s for laps in jobs for lap in laps) / whole_s,
        sent_bytes=max(sent_bytes) / max(len(ends_s) for ends_s in ends),
    )


def find_paces(jobs: Sequence[Sequence[Lap]]) -> list[float]:
    """How long a step of each took while all trained, settled or not; of its own lap if they did not meet at all."""
    ends = [find_ends(laps) for laps in jobs]
    common = Window(max(ends_s[0] for ends_s in ends), min(ends_s[-1] for ends_s in ends))
    windows = [common if common.length_s > 0 else Window(ends_s[0], ends_s[-1]) for ends_s in ends]
    return [window.length_s / count_steps(ends_s, window) for ends_s, window in zip(ends, windows, strict=True)]


def find_gain(alone_s: Sequence[float], company_s: Sequence[float]) -> float:
    """How much more is done than one after the other, in the same time: sum of steps x their time alone / elapsed."""
    return sum(alone / company for alone, company in zip(alone_s, company_s, strict=True))


def make_load(*, compute_s: float, alone_s: float, links_s: float = 0.0) -> Load:
    """What a job's step takes of device and links; noise makes no negative waits."""
    return Load(compute_s, max(0.0, alone_s - compute_s), links_s)


def find_ideal(loads: Sequence[Load], *, mix: Sequence[float] | None = None) -> float:
    """The most that can be gained with one step of each job, or with so many steps of each."""
    return predict_gain([load.times(count) for load, count in zip(loads, mix or [1.0] * len(loads), strict=True)])


def find_middle(laps: Sequence[Measured]) -> tuple[float, ...]:
    """Of each job the median of its laps."""
    return tuple(statistics.median(steps) for steps in zip(*(lap.steps_s for lap in laps), strict=True))


def find_gains(alone: Sequence[Sequence[Measured]], company: Sequence[Measured]) -> list[float]:
    """What was gained in each round: against what the same round's laps alone took."""
    return [find_gain([laps[number].steps_s[0] for laps in alone], lap.steps_s) for number, lap in enumerate(company)]


def choose_steps(paces_s: Sequence[float], lap_s: float) -> list[int]:
    """How many of each job make a lap, so that all end at about the same time; the first one only sets the mark."""
    slowest_s = max(paces_s)
    whole_s = SETTLE * slowest_s + max(lap_s, LEAST * slowest_s)
    finish = 0 if len(paces_s) == 1 else FINISH
    return [1 + round(whole_s / pace_s) + finish for pace_s in paces_s]


def _find_progress(ends_s: Sequence[float], at_s: float) -> float:
    """How many steps had ended after the first one, as if work within a step were even."""
    after = min(max(1, bisect.bisect_left(ends_s, at_s)), len(ends_s) - 1)
    begin_s, end_s = ends_s[after - 1], ends_s[after]
    return after - 1 + (at_s - begin_s) / (end_s - begin_s)
