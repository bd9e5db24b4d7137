"""One simulated training run: so many steps of one model under one schedule on one cluster.

In: a profile, a topology, a schedule.  Out: how long a step takes, and what it sends.
"""

from __future__ import annotations

import functools
import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec

from undertow.plan.cluster import Cluster
from undertow.plan.plan import Plan
from undertow.plan.planner import make_plan
from undertow.plan.predict import find_extra_s
from undertow.plan.profile import LayerProfile, Profile
from undertow.runtime.shape import Shape
from undertow.sim.clock import Clock
from undertow.sim.delivery import Delivery, Mixed
from undertow.sim.engine import Costs, Engine
from undertow.sim.layout import Layout
from undertow.sim.recorded import Diary, RecordedEngine, RecordedWorker, note_sum
from undertow.sim.ring import Ring
from undertow.sim.schedules import Schedule, find_schedule
from undertow.sim.subject import Device
from undertow.sim.topology import Fabric, Lane, Topology
from undertow.sim.worker import Layer, Worker

Pace = Callable[[int, int], float]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    steps_s: list[float]  # of all workers together, each from end to end
    bytes_out: list[float]  # of each host in one step
    slices: int  # and buckets
    plan: Plan

    @property
    def iteration_s(self) -> float:
        return statistics.median(self.steps_s)

    def without_first(self) -> Outcome:
        """The first step had nothing before it."""
        return replace(self, steps_s=self.steps_s[1:])


def simulate(
    profile: Profile,
    topology: Topology,
    schedule: Schedule,
    device: Device,
    *,
    steps: int = 2,
    costs: Costs | None = None,
    pace: Pace = lambda rank, step: 1.0,
    diaries: Sequence[Diary] | None = None,
) -> Outcome:
    """So many steps; the first starts with all workers at once, and nothing on its way.

    What happens can be written down, in one diary for each worker.
    """
    costs = costs or Costs()
    cluster = find_cluster(profile, topology, device, costs)
    return _run_alone(Job(profile, schedule, cluster, costs, make_stage(topology), diaries=diaries), steps, pace)


def find_cluster(profile: Profile, topology: Topology, device: Device, costs: Costs) -> Cluster:
    """As the planner sees it: with rates that are measured while gradients travel, where they are not plain to see."""
    known = Cluster(
        workers=len(topology.places),
        bytes_per_s=topology.slowest_bits_per_s / 8 * topology.goodput,
        latency_s=topology.latency_s,
        flops_per_s=device.flops_per_s,
        shard_flops_per_s=device.shard_flops_per_s,
        add_bytes_per_s=device.add_bytes_per_s,
    )
    if topology.has_equal_links:
        return known  # a ring carries no more than a link does
    layer = LayerProfile(name="all", tensors=tuple(profile.tensors), forward_s=0.0, backward_s=0.0)
    ours, torchs = (
        _measure(layer, topology, known, find_schedule(name), costs) for name in ("undertow-no-hybrid", "ddp")
    )
    return msgspec.structs.replace(known, bytes_per_s=ours, allreduce_bytes_per_s=torchs)


def _measure(layer: LayerProfile, topology: Topology, cluster: Cluster, schedule: Schedule, costs: Costs) -> float:
    """Bytes per second that a worker sends while all gradients travel whole, and nobody computes."""
    job = Job(Profile(layers=(layer,)), schedule, cluster, costs, make_stage(topology))
    outcome = _run_alone(job, 1, lambda rank, step: 1.0)
    size_bytes = sum(tensor.size_bytes for tensor in layer.tensors)
    return 2 * size_bytes * (cluster.workers - 1) / cluster.workers / outcome.iteration_s


@dataclass(frozen=True)
class Stage:
    """Where jobs run."""

    clock: Clock
    topology: Topology
    fabric: Fabric


def make_stage(topology: Topology) -> Stage:
    clock = Clock()
    return Stage(clock, topology, Fabric(clock, topology))


class Job:
    """A model under a schedule, all but its workers.  Used once; `number` tells the jobs of a stage apart."""

    def __init__(
        self,
        profile: Profile,
        schedule: Schedule,
        cluster: Cluster,
        costs: Costs,
        stage: Stage,
        number: int = 0,
        diaries: Sequence[Diary] | None = None,
    ) -> None:
        self.stage = stage
        self._clock = stage.clock
        self._diaries = diaries
        self._fabric = Lane(stage.fabric, number)
        self._costs = costs if schedule.message_s is None else replace(costs, message_s=schedule.message_s)
        self.plan = make_plan(profile, cluster, policy=schedule.policy, has_gates=schedule.has_gates)
        self._layout = Layout(profile, self.plan, schedule, cluster)
        self.layers = [
            _make_layer(layer, tensors, self.plan, cluster)
            for layer, tensors in zip(profile.layers, self._layout.layers, strict=True)
        ]
        for diary in diaries or ():
            diary.begin(stage.clock, profile, self.plan, cluster, self._layout.slices)

    def find_pace(self, rank: int, pace: Pace) -> Callable[[int], float]:
        """Of the worker of this rank, on its host."""
        topology = self.stage.topology
        slowdown = topology.hosts[topology.places[rank]].slowdown
        return lambda step: slowdown * pace(rank, step)

    def join(self, workers: Sequence[Worker]) -> int:
        """From now on these workers' gradients travel, in so many slices and buckets."""
        return self._join_ring(workers) if self._layout.schedule.is_ring else self._join_engines(workers)

    def _join_engines(self, workers: Sequence[Worker]) -> int:
        layout, names = self._layout, [f"rank{rank}" for rank in range(len(workers))]
        engines = [self._make_engine(_make_shape(rank, names, layout.schedule), rank) for rank in range(len(workers))]
        ring = self._make_ring(len(workers), layout.reduced_bytes)
        for engine, worker in zip(engines, workers, strict=True):
            engine.peers = engines
            engine.learn(layout.slices, layout.credited_bytes)
            delivery = Delivery(self._clock, engine, layout.route, worker.go_on)
            gates = layout.layers if layout.schedule.has_gates else []
            worker.delivery = Mixed(delivery, ring.join(gates, worker.go_on)) if ring.buckets else delivery
        return len(layout.slices) + len(ring.buckets)

    def _make_engine(self, shape: Shape, rank: int) -> Engine:
        if self._diaries is None:
            return Engine(self._clock, self._fabric, shape, self._costs)
        return RecordedEngine(self._clock, self._fabric, shape, self._costs, self._diaries[rank].recorder)

    def make_worker(self, steps: int, rank: int, pace: Pace) -> Worker:
        """Of a job that has its devices for itself."""
        own_pace = self.find_pace(rank, pace)
        if self._diaries is None:
            return Worker(self._clock, self.layers, steps, own_pace)
        return RecordedWorker(self._clock, self.layers, steps, own_pace, self._diaries[rank])

    def _join_ring(self, workers: Sequence[Worker]) -> int:
        ring = self._make_ring(len(workers), self._layout.sizes_bytes)
        for worker in workers:
            worker.delivery = ring.join([], worker.go_on)
        return len(ring.buckets)

    def _make_ring(self, workers: int, sizes_bytes: dict[int, int]) -> Ring:
        ring = Ring(self._clock, self._fabric, workers, sizes_bytes, self.stage.topology.latency_s)
        if self._diaries is not None:
            ring.on_sum = functools.partial(note_sum, self._diaries, ring.buckets, sizes_bytes)
        return ring


def _run_alone(job: Job, steps: int, pace: Pace) -> Outcome:
    stage = job.stage
    workers = [job.make_worker(steps, rank, pace) for rank in range(len(stage.topology.places))]
    slices = job.join(workers)
    for worker in workers:
        stage.clock.at(0.0, worker.start)
    with no_collection():
        stage.clock.run()
    return Outcome(
        steps_s=_find_steps([worker.ends_s for worker in workers]),
        bytes_out=[sent / steps for sent in stage.fabric.bytes_out],
        slices=slices,
        plan=job.plan,
    )


@contextmanager
def no_collection() -> Iterator[None]:
    """Nothing here goes round in circles while it runs, and to look for that takes as long as the run itself."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _find_steps(ends_s: Sequence[Sequence[float]]) -> list[float]:
    last = [max(ends) for ends in zip(*ends_s, strict=True)]
    return [after - before for before, after in zip([0.0, *last], last, strict=False)]


def _make_shape(rank: int, names: list[str], schedule: Schedule) -> Shape:
    return Shape(
        rank=rank,
        hosts=names,
        job=0,
        sizes=schedule.sizes,
        credit_bytes=schedule.credit_bytes,
        silence_timeout_s=1.0,
        stall_timeout_s=1.0,
        priority=schedule.priority,
    )


def _make_layer(layer: LayerProfile, tensors: Sequence[int], plan: Plan, cluster: Cluster) -> Layer:
    """What the schemes save is saved in backward, and what they cost is paid before forward, as in `predict`."""
    extra_s = sum(find_extra_s(tensor, plan.schemes[tensor.name], cluster) for tensor in layer.tensors)
    backward_s = max(0.0, layer.backward_s + min(0.0, extra_s))
    return Layer(layer.forward_s + max(0.0, extra_s), backward_s, tensors)
