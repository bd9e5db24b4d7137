"""Simulated training run: some steps of one model under one schedule on one cluster.

In: a profile, a topology, a schedule.  Out: how long a step takes, and how many bytes it sends.
"""

from __future__ import annotations

import functools
import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import msgspec

from undertow.engine.core.shape import Shape
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Plan
from undertow.plan.planner import make_plan
from undertow.plan.predict import find_extra_s
from undertow.plan.profile import LayerProfile, Profile
from undertow.plan.scheme import count_dense_traffic
from undertow.plan.slice_plan import find_bucket_sizes
from undertow.tools.sim.delivery import DDP_BUCKETS_BYTES, EngineDelivery, MixedDelivery, Ring
from undertow.tools.sim.engine import Costs, Engine
from undertow.tools.sim.layout import Layout
from undertow.tools.sim.schedules import Schedule, find_schedule
from undertow.tools.sim.subject import Device
from undertow.tools.sim.topology import Fabric, Topology
from undertow.tools.sim.virtual_trace import RecordedEngine, RecordedWorker, VirtualTrace, note_sum
from undertow.tools.sim.worker import Layer, Worker
from undertow.tools.virtual.world import Clock

Pace = Callable[[int, int], float]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Times, bytes and plan of a run."""

    steps_s: list[float]  # from one end of a step at all workers to the next
    bytes_out: list[float]  # of each host in one step
    slices: int  # including buckets
    plan: Plan

    @property
    def iteration_s(self) -> float:
        return statistics.median(self.steps_s)


def simulate(
    profile: Profile,
    topology: Topology,
    schedule: Schedule,
    device: Device,
    *,
    steps: int = 2,
    costs: Costs | None = None,
    pace: Pace = lambda rank, step: 1.0,
    traces: Sequence[VirtualTrace] | None = None,
) -> Outcome:
    """Simulate this many steps; all workers start the first one together, on an idle network.

    `traces`, one for each worker, record the run.
    """
    costs = costs or Costs()
    cluster = find_cluster(profile, topology, device, costs)
    return _run_alone(Job(profile, schedule, cluster, costs, Site(topology), traces=traces), steps, pace)


def find_cluster(profile: Profile, topology: Topology, device: Device, costs: Costs) -> Cluster:
    """Return the cluster as the planner sees it; if its links differ, with the rates of a simulated exchange."""
    known = Cluster(
        workers=len(topology.places),
        bytes_per_s=topology.slowest_bits_per_s / 8 * topology.goodput,
        latency_s=topology.latency_s,
        **asdict(device),
    )
    if topology.has_equal_links:
        return known  # a ring is as fast as a link
    layer = LayerProfile(name="all", tensors=tuple(profile.tensors), forward_s=0.0, backward_s=0.0)
    ours, torchs = (
        _measure(layer, topology, known, find_schedule(name), costs) for name in ("undertow-no-hybrid", "ddp")
    )
    return msgspec.structs.replace(known, bytes_per_s=ours, allreduce_bytes_per_s=torchs)


def _measure(layer: LayerProfile, topology: Topology, cluster: Cluster, schedule: Schedule, costs: Costs) -> float:
    """Return the bytes per second that a worker sends while all gradients are dense and no worker computes."""
    job = Job(Profile(layers=(layer,)), schedule, cluster, costs, Site(topology))
    outcome = _run_alone(job, 1, lambda rank, step: 1.0)
    size_bytes = sum(tensor.size_bytes for tensor in layer.tensors)
    return count_dense_traffic(size_bytes, cluster.workers) / outcome.iteration_s


class Site:
    """Clock and network that jobs run on."""

    def __init__(self, topology: Topology, clock: Clock | None = None) -> None:
        self.topology = topology
        self.clock = clock or Clock()
        self.fabric = Fabric(self.clock, topology)


class Job:
    """Model under a schedule, without its workers.  Used once; `number` distinguishes the jobs of a site."""

    def __init__(
        self,
        profile: Profile,
        schedule: Schedule,
        cluster: Cluster,
        costs: Costs,
        site: Site,
        number: int = 0,
        traces: Sequence[VirtualTrace] | None = None,
    ) -> None:
        self.site = site
        self._clock = site.clock
        self._traces = traces
        self._fabric = site.fabric.for_job(number)
        self._costs = costs if schedule.message_s is None else replace(costs, message_s=schedule.message_s)
        self.plan = make_plan(profile, cluster, policy=schedule.policy, has_gates=schedule.has_gates)
        self._shapes = _make_shapes(len(site.topology.places), schedule)
        self._layout = Layout(profile, self.plan, schedule, cluster, self._shapes[0].owners)
        self.layers = [
            _make_layer(layer, tensors, self.plan, cluster)
            for layer, tensors in zip(profile.layers, self._layout.layers, strict=True)
        ]
        for trace in traces or ():
            trace.begin(site.clock, profile, self.plan, cluster, self._layout.slices)

    def find_pace(self, rank: int, pace: Pace) -> Callable[[int], float]:
        """Return the pace of this rank's worker on its host."""
        topology = self.site.topology
        slowdown = topology.hosts[topology.places[rank]].slowdown
        return lambda step: slowdown * pace(rank, step)

    def join(self, workers: Sequence[Worker]) -> int:
        """Connect these workers, and return the number of slices and buckets of their gradients."""
        return self._join_ring(workers) if self._layout.schedule.is_ring else self._join_engines(workers)

    def _join_engines(self, workers: Sequence[Worker]) -> int:
        layout, engines = self._layout, [self._make_engine(shape) for shape in self._shapes]
        ring = self._make_ring(layout.reduced_bytes, find_bucket_sizes(layout.schedule.sizes))
        for engine, worker in zip(engines, workers, strict=True):
            engine.peers = engines
            engine.learn(layout.slices)
            engine.resize(layout.credited_bytes)
            delivery = EngineDelivery(self._clock, engine, layout.route, worker.go_on)
            gates = layout.layers if layout.schedule.has_gates else []
            worker.delivery = MixedDelivery(delivery, ring.join(gates, worker.go_on)) if ring.buckets else delivery
        return len(layout.slices) + len(ring.buckets)

    def _make_engine(self, shape: Shape) -> Engine:
        if self._traces is None:
            return Engine(self._clock, self._fabric, shape, self._costs)
        return RecordedEngine(self._clock, self._fabric, shape, self._costs, self._traces[shape.rank].recorder)

    def make_worker(self, steps: int, rank: int, pace: Pace) -> Worker:
        """Make a worker of a job that is alone on its devices."""
        own_pace = self.find_pace(rank, pace)
        if self._traces is None:
            return Worker(self._clock, self.layers, steps, own_pace)
        return RecordedWorker(self._clock, self.layers, steps, own_pace, self._traces[rank])

    def _join_ring(self, workers: Sequence[Worker]) -> int:
        ring = self._make_ring(self._layout.sizes_bytes, DDP_BUCKETS_BYTES)
        for worker in workers:
            worker.delivery = ring.join([], worker.go_on)
        return len(ring.buckets)

    def _make_ring(self, sizes_bytes: dict[int, int], bucket_sizes: tuple[int, int]) -> Ring:
        topology = self.site.topology
        ring = Ring(
            self._clock,
            self._fabric,
            len(topology.places),
            sizes_bytes,
            latency_s=topology.latency_s,
            bucket_sizes=bucket_sizes,
        )
        if self._traces is not None:
            ring.on_sum = functools.partial(note_sum, self._traces, ring.buckets, sizes_bytes)
        return ring


def _run_alone(job: Job, steps: int, pace: Pace) -> Outcome:
    site = job.site
    workers = [job.make_worker(steps, rank, pace) for rank in range(len(site.topology.places))]
    slices = job.join(workers)
    for worker in workers:
        site.clock.at(0.0, worker.start)
    with no_collection():
        site.clock.run()
    return Outcome(
        steps_s=_find_steps([worker.ends_s for worker in workers]),
        bytes_out=[sent / steps for sent in site.fabric.bytes_out],
        slices=slices,
        plan=job.plan,
    )


@contextmanager
def no_collection() -> Iterator[None]:
    """Turn garbage collection off: a run makes no cycles, and searching for them takes as long as the run itself."""
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


def _make_shapes(workers: int, schedule: Schedule) -> list[Shape]:
    first = Shape(
        rank=0,
        hosts=[f"rank{rank}" for rank in range(workers)],
        job=0,
        sizes=schedule.sizes,
        credit_bytes=schedule.credit_bytes,
        silence_timeout_s=1.0,
        stall_timeout_s=1.0,
        priority=schedule.priority,
    )
    return [replace(first, rank=rank) for rank in range(workers)]


def _make_layer(layer: LayerProfile, tensors: Sequence[int], plan: Plan, cluster: Cluster) -> Layer:
    """Make a layer.  As in `plan.predict`, a scheme saves time in backward and costs time before forward."""
    extra_s = sum(find_extra_s(tensor, plan.schemes[tensor.name], cluster) for tensor in layer.tensors)
    backward_s = max(0.0, layer.backward_s + min(0.0, extra_s))
    return Layer(layer.forward_s + max(0.0, extra_s), backward_s, tensors)
