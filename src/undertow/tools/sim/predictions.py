"""Predictions of measured points, to compare the simulator with the lab.

In: results of `undertow bench`.  Out: for each point, the step time that the simulator predicts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from undertow.bounds import SIMULATED
from undertow.observe.report.columns import describe_link
from undertow.observe.report.points import Point
from undertow.progress import SILENT, Progress
from undertow.tools.sim.engine import Costs
from undertow.tools.sim.schedules import find_schedule, list_schedules
from undertow.tools.sim.subject import Subject, find_subject
from undertow.tools.sim.sweep import Setting, run, weigh
from undertow.tools.sim.topology import Host, Topology
from undertow.tools.zoo import MODELS
from undertow.units import format_percent

# Largest error of a prediction that counts as close.
TOLERANCE = 0.10


@dataclass(frozen=True)
class Pair:
    """Measured point and its prediction."""

    measured: Point
    predicted_s: float

    @property
    def error(self) -> float:
        """Error of the prediction, as a fraction of the measured time."""
        return self.predicted_s / self.measured.iteration_s - 1

    @property
    def is_close(self) -> bool:
        return abs(self.error) <= TOLERANCE


def predict_points(
    points: Sequence[Point], subject: Subject | None = None, progress: Progress = SILENT
) -> Iterator[Pair]:
    """Predict every point whose model and system the simulator knows and whose links were held to a bandwidth.

    `subject` is the measured profile of the points' model, for a model that the zoo does not have.
    """
    known = [point for point in points if can_predict(point, subject)]
    progress.expect(sum(weigh(_find_topology(point), Setting()) for point in known))
    for point in known:
        progress.say(f"{point.model}, {point.hosts} hosts, {describe_link(point.bandwidth_gbit)}: {point.system}")
        trained = find_subject(point.model, point.batch) if point.model in MODELS else subject
        assert trained is not None
        # The device is as fast as it was in that run.
        topology = _find_topology(point, slowdown=point.compute_s / trained.profile.compute_s)
        outcome = run(trained, topology, find_schedule(point.system), Setting(costs=_scale_costs(point)), progress)
        yield Pair(point, outcome.iteration_s)


def _find_topology(point: Point, *, slowdown: float = 1.0) -> Topology:
    assert point.bandwidth_gbit is not None
    what = f"{describe_link(point.bandwidth_gbit)} of a point for a simulation"
    SIMULATED.check_range(what, point.bandwidth_gbit * 1e9)
    return Topology(hosts=(Host(bandwidth_bits_per_s=point.bandwidth_gbit * 1e9, slowdown=slowdown),) * point.hosts)


def can_predict(point: Point, subject: Subject | None = None) -> bool:
    is_known = point.model in MODELS or (subject is not None and subject.name == point.model)
    return point.is_shaped and is_known and point.system in list_schedules()


def _scale_costs(point: Point) -> Costs:
    """Return the costs at the lab's scale: its messages are neither scaled nor slowed down, but have fewer bytes."""
    costs = Costs()
    return Costs(message_s=costs.message_s / point.slowdown, byte_s=costs.byte_s / point.scale / point.slowdown)


def describe(pairs: Sequence[Pair]) -> str:
    """Return how close the predictions are, in words."""
    errors = [abs(pair.error) for pair in pairs]
    far = sum(not pair.is_close for pair in pairs)
    median, largest = format_percent(statistics.median(errors), 1), format_percent(max(errors), 1)
    return f"{len(pairs)} points: median error {median}, largest {largest}, {far} beyond {format_percent(TOLERANCE)}"
