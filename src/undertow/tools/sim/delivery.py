"""Stages 2 to 9 of one virtual worker: from a gradient that is ready to a gate that opens.

In: gradients of a worker.  Out: contributions to its engine, in the order of the schedule; or torch DDP's buckets, with
a ring all-reduce for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from undertow.engine.core.flow import Contribution
from undertow.plan.slice_plan import fill_buckets, prioritise
from undertow.settings import Priority
from undertow.tools.sim.engine import Engine
from undertow.tools.sim.layout import Route
from undertow.tools.sim.topology import Fabric
from undertow.tools.virtual.world import Clock

# Sizes of the first bucket and of the others in torch's DistributedDataParallel.
DDP_BUCKETS_BYTES = (1 << 20, 25 << 20)
# All-reduces that run at the same time: Gloo's threads.
AT_ONCE = 2
# Costs of Gloo besides the bytes, estimated from DDP's steps in the lab on fast links: for each step of a ring, besides
# the network's latency; and for each bucket, to fill, submit and read it.
STEP_S = 0.00025
BUCKET_S = 0.0015


class Ring:
    """All-reduces of all workers, over tensors of these sizes in buckets.

    A ring of P workers takes 2 (P - 1) steps, in each of which every worker sends one P-th of the bucket to the next
    worker.  The steps of a bucket follow each other without a break, so one stream with the bytes of all steps stands
    for them; the other costs of the steps are added at the end.
    """

    def __init__(
        self,
        clock: Clock,
        fabric: Fabric,
        workers: int,
        sizes_bytes: Mapping[int, int],
        *,
        latency_s: float,
        bucket_sizes: tuple[int, int] = DDP_BUCKETS_BYTES,
    ) -> None:
        self.buckets = fill_buckets(((tensor, size, None) for tensor, size in sizes_bytes.items()), bucket_sizes)
        self._clock = clock
        self._fabric = fabric
        self._workers = workers
        sizes = [sum(sizes_bytes[tensor] for tensor in bucket) for bucket in self.buckets]
        steps = 2 * (workers - 1)
        self._stream_bytes = [max(1, round(size * steps / workers)) for size in sizes]
        self._overhead_s = BUCKET_S + steps * STEP_S + max(0, steps - 1) * latency_s  # one latency is the stream's own
        self.on_sum: Callable[[int, float], None] = lambda bucket, since_s: None  # called for every bucket summed
        self._began_s = [0.0] * len(self.buckets)
        self._members: list[RingDelivery] = []
        self._launched = [0] * len(self.buckets)  # by how many workers
        self._streams = [0] * len(self.buckets)  # those still under way, by bucket

    def join(self, gates: Sequence[Sequence[int]], go_on: Callable[[], None]) -> RingDelivery:
        """Add a worker whose layers each wait for their tensors in `gates`, or for all if there are no gates."""
        self._members.append(RingDelivery(self, gates, go_on))
        return self._members[-1]

    def launch(self, bucket: int) -> None:
        """Note that another worker has started this bucket's all-reduce; run it when all have."""
        self._launched[bucket] += 1
        if self._launched[bucket] < self._workers:
            return
        self._launched[bucket] = 0
        self._began_s[bucket] = self._clock.now_s
        if self._workers == 1:
            self._end(bucket)
            return
        self._streams[bucket] = self._workers
        for rank in range(self._workers):
            following = (rank + 1) % self._workers
            self._fabric.send(rank, following, self._stream_bytes[bucket], self._arrive, bucket, bucket % AT_ONCE)

    def _arrive(self, time_s: float, bucket: int) -> None:
        self._clock.at(time_s, self._arrived, bucket)

    def _arrived(self, bucket: int) -> None:
        self._streams[bucket] -= 1
        if not self._streams[bucket]:
            self._clock.at(self._clock.now_s + self._overhead_s, self._end, bucket)

    def _end(self, bucket: int) -> None:
        self.on_sum(bucket, self._began_s[bucket])
        for member in self._members:
            member.note_done()


class RingDelivery:
    """Delivery of one worker's gradients by the ring."""

    def __init__(self, ring: Ring, gates: Sequence[Sequence[int]], go_on: Callable[[], None]) -> None:
        self._ring = ring
        self._go_on = go_on
        self.of_tensor = {tensor: bucket for bucket, members in enumerate(ring.buckets) for tensor in members}
        # How many buckets each layer waits for; without gates, all.
        self._needed = [max((self.of_tensor.get(tensor, -1) for tensor in gate), default=-1) + 1 for gate in gates]
        self._unready: list[int] = []
        self._ready = 0  # how many of the first buckets are ready; torch starts them in order
        self._launched = 0
        self._done = 0

    def begin(self, step: int) -> None:
        self._unready = [len(bucket) for bucket in self._ring.buckets]
        self._ready = self._launched = self._done = 0

    def ready(self, tensor: int) -> None:
        self._unready[self.of_tensor[tensor]] -= 1
        while self._ready < len(self._unready) and not self._unready[self._ready]:
            self._ready += 1
        self._launch()

    def end(self) -> None: ...

    def is_here(self, layer: int) -> bool:
        return self._done >= (self._needed[layer] if self._needed else len(self._unready))

    def note_done(self) -> None:
        """Note that an all-reduce has ended."""
        self._done += 1
        self._launch()
        self._go_on()

    def _launch(self) -> None:
        while self._launched < self._ready and self._launched - self._done < AT_ONCE:
            self._launched += 1
            self._ring.launch(self._launched - 1)


class EngineDelivery:
    """Delivery of one worker's gradients by its engine."""

    def __init__(self, clock: Clock, engine: Engine, route: Route, go_on: Callable[[], None]) -> None:
        self.rank = engine.rank
        self._clock = clock
        self._engine = engine
        self._route = route
        self._go_on = go_on
        self._step = 0
        self._unready: list[int] = []  # for each syncer, the number of members that are not ready
        self._pending: list[int] = []  # for each syncer, the number of answers to come
        self._left = 0  # number of syncers that still wait for an answer
        self._held: list[int] = []  # syncers that wait for the end of backward
        self._multiplies_until_s = 0.0

    def begin(self, step: int) -> None:
        self._step = step + 1
        self._unready = [len(syncer.members) for syncer in self._route.syncers]
        self._pending = [syncer.answers for syncer in self._route.syncers]
        self._left = len(self._pending)

    def ready(self, tensor: int) -> None:
        index = self._route.of_tensor[tensor]
        if index is None:
            return
        self._unready[index] -= 1
        if self._unready[index]:
            return
        if self._route.schedule.is_wait_free:
            self._send(index)
        else:
            self._held.append(index)

    def end(self) -> None:
        held, self._held = self._held, []
        for index in held:
            self._send(index)

    def is_here(self, layer: int) -> bool:
        if not self._route.schedule.has_gates:
            return not self._left
        return not any(self._pending[index] for index in self._route.of_layer[layer])

    def contribute(self, contributions: Sequence[Contribution]) -> None:
        self._engine.contribute(contributions)

    def multiply(self, seconds: float, then: Callable[[], None]) -> None:
        """Multiply at the worker's shard for this long: beside the training, and one product after another."""
        self._multiplies_until_s = max(self._multiplies_until_s, self._clock.now_s) + seconds
        self._clock.at(self._multiplies_until_s, then)

    def _send(self, index: int) -> None:
        is_ordered = self._route.schedule.priority is not Priority.OFF
        priority = prioritise(self._step, self._route.places[index]) if is_ordered else 0

        def answered(contribution: Contribution) -> None:
            self._pending[index] -= 1
            if not self._pending[index]:
                self._left -= 1
                self._go_on()

        self._route.syncers[index].send(self, priority, answered)


class MixedDelivery:
    """Delivery of a worker whose plan gives some of the gradients to torch's process group."""

    def __init__(self, engine: EngineDelivery, ring: RingDelivery) -> None:
        self._engine = engine
        self._ring = ring

    def begin(self, step: int) -> None:
        self._engine.begin(step)
        self._ring.begin(step)

    def ready(self, tensor: int) -> None:
        (self._ring if tensor in self._ring.of_tensor else self._engine).ready(tensor)

    def end(self) -> None:
        self._engine.end()

    def is_here(self, layer: int) -> bool:
        return self._engine.is_here(layer) and self._ring.is_here(layer)
