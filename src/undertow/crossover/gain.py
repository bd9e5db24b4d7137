"""Predicted gain of sharing a device: several jobs together, compared with one after the other.

In: for each job alone, how long a step computes and how long it then waits for the network.
Out: a prediction, and an explanation for two jobs that cannot gain.
With computing times c and exposed communication m, all jobs make one step each in
max(sum c, max(c + m), sum m): the device, the longest job or the network is the limit.
The time for which a step's bytes fill a link, if known, replaces m in the network's sum if it is
longer: communication that a job hides behind its own computation still occupies the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from undertow.units import format_ms

# A smaller gain counts as none.
WORTH = 1.02
# Printed below tables of arrangements, measured or simulated.
EXPLAIN_GAIN = (
    "gain: work done in the same time, relative to one job after the other\n"
    "ideal: one step of each in max(sum c, max(c + m), sum n); n is m or, if longer, how long its bytes fill a link"
)


@dataclass(frozen=True)
class Load:
    """Load of one step of a job that is alone."""

    compute_s: float
    exposed_s: float  # communication that no computation of its own covers
    links_s: float = 0.0  # how long its bytes fill a link, covered or not; 0 if unknown

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exposed_s

    @property
    def network_s(self) -> float:
        return max(self.exposed_s, self.links_s)

    def times(self, steps: float) -> Load:
        return Load(steps * self.compute_s, steps * self.exposed_s, steps * self.links_s)


def predict_step_s(loads: Sequence[Load]) -> float:
    """Return how long one step of each job takes when they share."""
    return max(
        sum(load.compute_s for load in loads),
        max(load.step_s for load in loads),
        sum(load.network_s for load in loads),
    )


def predict_gain(loads: Sequence[Load], mix: Sequence[float] = ()) -> float:
    """Return the time that the steps take one job after the other, divided by the time together.

    `mix` has the number of steps of each job; without it, each makes one.
    """
    if mix:
        loads = [load.times(steps) for load, steps in zip(loads, mix, strict=True)]
    together_s = predict_step_s(loads)
    return sum(load.step_s for load in loads) / together_s if together_s > 0 else 1.0


def explain_no_gain(names: Sequence[str], loads: Sequence[Load]) -> str | None:
    """Return in words why these jobs should run one after the other; None if sharing helps."""
    gain = predict_gain(loads)
    if len(loads) < 2 or gain >= WORTH:
        return None
    who = " and ".join(names)
    exposed_s, compute_s = sum(load.exposed_s for load in loads), sum(load.compute_s for load in loads)
    if exposed_s > compute_s:
        why = f"the network is always busy (they wait {format_ms(exposed_s)} for it in one step of each)"
    else:
        why = f"they hardly wait for the network ({format_ms(exposed_s)} in steps of {format_ms(compute_s)})"
    return f"{who} gain nothing from sharing a device: {why}. They would finish as soon one after the other"
