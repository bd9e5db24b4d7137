"""The simulator beside the lab: every measured point, predicted.

In: results of `undertow bench`.  Out: for each point what the simulator says of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from undertow.bounds import SIMULATED
from undertow.report.points import Point
from undertow.sim.engine import Costs
from undertow.sim.schedules import find_schedule, list_schedules
from undertow.sim.subject import Subject, find_subject
from undertow.sim.sweep import Setting, run, weigh
from undertow.sim.topology import Host, Topology
from undertow.watch import NOBODY, Watch
from undertow.zoo import MODELS

# What a prediction may miss by.
TOLERANCE = 0.10


@dataclass(frozen=True)
class Pair:
    measured: Point
    predicted_s: float

    @property
    def error(self) -> float:
        """Of the prediction, as a fraction of what was measured."""
        return self.predicted_s / self.measured.iteration_s - 1

    @property
    def is_close(self) -> bool:
        return abs(self.error) <= TOLERANCE


def predict_points(points: Sequence[Point], subject: Subject | None = None, watch: Watch = NOBODY) -> Iterator[Pair]:
    """Points that the simulator knows the model and the system of, on links that were held to a bandwidth.

    A `subject` is what was measured of the model of these points, if it is none of the zoo.
    """
    known = [point for point in points if can_predict(point, subject)]
    watch.expect(sum(weigh(_find_topology(point), Setting()) for point in known))
    for point in known:
        watch.say(f"{point.model}, {point.hosts} hosts, {point.bandwidth_gbit:g} Gbit/s: {point.system}")
        trained = find_subject(point.model, point.batch) if point.model in MODELS else subject
        assert trained is not None
        # As fast as the device was in that run.
        topology = _find_topology(point, slowdown=point.compute_s / trained.profile.compute_s)
        outcome = run(trained, topology, find_schedule(point.system), Setting(costs=_scale_costs(point)), watch)
        yield Pair(point, outcome.iteration_s)


def _find_topology(point: Point, *, slowdown: float = 1.0) -> Topology:
    assert point.bandwidth_gbit is not None
    what = f"{point.bandwidth_gbit:g} Gbit/s of a point for a simulation"
    SIMULATED.check_range(what, point.bandwidth_gbit * 1e9)
    return Topology(hosts=(Host(bandwidth_bits_per_s=point.bandwidth_gbit * 1e9, slowdown=slowdown),) * point.hosts)


def can_predict(point: Point, subject: Subject | None = None) -> bool:
    is_known = point.model in MODELS or (subject is not None and subject.name == point.model)
    return point.is_shaped and is_known and point.system in list_schedules()


def _scale_costs(point: Point) -> Costs:
    """What a message costs is neither scaled nor slowed down in the lab; what a byte costs is, as there are fewer."""
    costs = Costs()
    return Costs(message_s=costs.message_s / point.slowdown, byte_s=costs.byte_s / point.scale / point.slowdown)


def describe(pairs: Sequence[Pair]) -> str:
    """How close the predictions are, in words."""
    errors = [abs(pair.error) for pair in pairs]
    far = sum(not pair.is_close for pair in pairs)
    return (
        f"{len(pairs)} points: median error {statistics.median(errors):.1%}, largest {max(errors):.1%}, "
        f"{far} beyond {TOLERANCE:.0%}"
    )
