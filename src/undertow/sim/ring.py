"""torch DDP on virtual links: gradients in buckets, a ring all-reduce for each.

In: gradients of all workers, in the order in which they become ready.  Out: all buckets are there, on all workers.
A ring of P workers takes 2 (P - 1) steps, in each of which everybody sends one P-th of the bucket to the next one.
The steps of a bucket follow each other without a break, so here they are one stream that carries as many bytes; what
each step costs beside its bytes is added up at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from undertow.sim.clock import Clock
from undertow.sim.topology import Sends

# torch's defaults, in bytes.
FIRST_BUCKET = 1 << 20
BUCKET = 25 << 20
# Gloo's threads: so many all-reduces run at the same time.
AT_ONCE = 2


# What Gloo takes beside the bytes, estimated from DDP's steps in the lab on fast links: for each step of a ring, apart
# from the network's latency, and to fill a bucket, to hand it over and to read it.
STEP_S = 0.00025
BUCKET_S = 0.0015


def make_buckets(sizes_bytes: Mapping[int, int]) -> list[list[int]]:
    """Of tensors in the order in which they become ready; a bucket is full with the tensor that reaches its size."""
    buckets: list[list[int]] = [[]]
    filled, limit = 0, FIRST_BUCKET
    for tensor, size_bytes in sizes_bytes.items():
        buckets[-1].append(tensor)
        filled += size_bytes
        if filled >= limit:
            buckets.append([])
            filled, limit = 0, BUCKET
    return [bucket for bucket in buckets if bucket]


class Ring:
    """All workers' buckets, of tensors with these sizes."""

    def __init__(
        self, clock: Clock, fabric: Sends, workers: int, sizes_bytes: Mapping[int, int], latency_s: float
    ) -> None:
        self.buckets = make_buckets(sizes_bytes)
        self._clock = clock
        self._fabric = fabric
        self._workers = workers
        sizes = [sum(sizes_bytes[tensor] for tensor in bucket) for bucket in self.buckets]
        steps = 2 * (workers - 1)
        self._stream_bytes = [max(1, round(size * steps / workers)) for size in sizes]
        self._overhead_s = BUCKET_S + steps * STEP_S + max(0, steps - 1) * latency_s  # one is the stream's own
        self.on_sum: Callable[[int, float], None] = lambda bucket, since_s: None  # told of every bucket that is there
        self._began_s = [0.0] * len(self.buckets)
        self._members: list[Member] = []
        self._launched = [0] * len(self.buckets)  # by so many workers
        self._streams = [0] * len(self.buckets)  # that are still under way

    def join(self, gates: Sequence[Sequence[int]], go_on: Callable[[], None]) -> Member:
        """A worker, whose layers wait for these tensors, or for all of them, if there are no gates."""
        self._members.append(Member(self, gates, go_on))
        return self._members[-1]

    def launch(self, bucket: int) -> None:
        """One more worker has started this bucket's all-reduce."""
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
            member.take()


class Member:
    """One worker's `Delivery`."""

    def __init__(self, ring: Ring, gates: Sequence[Sequence[int]], go_on: Callable[[], None]) -> None:
        self._ring = ring
        self._go_on = go_on
        self.of_tensor = {tensor: bucket for bucket, members in enumerate(ring.buckets) for tensor in members}
        # So many buckets must be there before a layer runs; without gates, all.
        self._needed = [max((self.of_tensor.get(tensor, -1) for tensor in gate), default=-1) + 1 for gate in gates]
        self._unready: list[int] = []
        self._ready = 0  # so many of the first buckets are; torch starts them in their order
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

    def take(self) -> None:
        """An all-reduce has ended."""
        self._done += 1
        self._launch()
        self._go_on()

    def _launch(self) -> None:
        while self._launched < self._ready and self._launched - self._done < AT_ONCE:
            self._launched += 1
            self._ring.launch(self._launched - 1)
