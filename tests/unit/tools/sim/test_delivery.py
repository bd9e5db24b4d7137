"""torch DDP on virtual links: its buckets, its ring, and what runs at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from undertow.plan.slice_plan import fill_buckets
from undertow.tools.sim.delivery import AT_ONCE, BUCKET_S, DDP_BUCKETS_BYTES, STEP_S, Ring, RingDelivery
from undertow.tools.sim.topology import Fabric, make_topology
from undertow.tools.virtual.world import Clock

MIB = 1 << 20
RATE_BITS = 8e6 * MIB / 1e6  # a MiB per second


def bucket(*sizes_bytes: int) -> list[list[int]]:
    return make_buckets(dict(enumerate(sizes_bytes)))


def make_buckets(sizes_bytes: dict[int, int]) -> list[list[int]]:
    return fill_buckets(((tensor, size, None) for tensor, size in sizes_bytes.items()), DDP_BUCKETS_BYTES)


# Buckets, as torch's own _compute_bucket_assignment_by_size makes them


def test_the_first_bucket_is_full_at_one_mebibyte_and_the_others_at_25() -> None:
    assert bucket(*[MIB // 2] * 5) == [[0, 1], [2, 3, 4]]
    assert bucket(MIB, *[5 * MIB] * 11) == [[0], [1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11]]


def test_a_bucket_is_full_with_the_tensor_that_reaches_its_size() -> None:
    assert bucket(MIB - 1, 100 * MIB, 1) == [[0, 1], [2]]
    assert bucket(MIB, 25 * MIB - 1, 1, 7) == [[0], [1, 2], [3]]


def test_buckets_have_all_tensors_once_in_the_order_in_which_they_are_ready() -> None:
    sizes = {9: MIB, 4: 0, 7: 30 * MIB, 1: 3, 0: 2}
    assert make_buckets(sizes) == [[9], [4, 7], [1, 0]]
    assert make_buckets({}) == []


# The ring


class Workers:
    """Workers of a ring, whose gradients are ready when a test says so."""

    def __init__(
        self,
        workers: int,
        sizes_bytes: Sequence[int],
        *,
        gates: Sequence[Sequence[int]] = (),
        latency_s: float = 0.0,
        bucket_sizes: tuple[int, int] = DDP_BUCKETS_BYTES,
    ) -> None:
        self.clock = Clock()
        self.fabric = Fabric(self.clock, make_topology(workers, RATE_BITS, latency_s=latency_s, goodput=1.0))
        sizes = dict(enumerate(sizes_bytes))
        self.ring = Ring(self.clock, self.fabric, workers, sizes, latency_s=latency_s, bucket_sizes=bucket_sizes)
        self.heard_s: list[float] = []  # of the first worker: when an all-reduce had ended
        self.members = [self.ring.join(gates, self._hear if not rank else lambda: None) for rank in range(workers)]
        for member in self.members:
            member.begin(0)

    def ready(self, tensor: int, *, at_s: float = 0.0, members: Sequence[RingDelivery] | None = None) -> None:
        for member in self.members if members is None else members:
            self.clock.at(at_s, member.ready, tensor)

    def run(self) -> list[float]:
        self.clock.run()
        return self.heard_s

    def _hear(self) -> None:
        self.heard_s.append(self.clock.now_s)


def find_overhead_s(workers: int) -> float:
    """Beside the bytes."""
    return BUCKET_S + 2 * (workers - 1) * STEP_S


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_an_all_reduce_sends_almost_twice_the_bucket_from_every_worker(workers: int) -> None:
    ring = Workers(workers, [MIB])
    ring.ready(0)
    bytes_out = 2 * (workers - 1) / workers * MIB
    assert ring.run() == [pytest.approx(bytes_out / MIB + find_overhead_s(workers), rel=1e-6)]
    assert ring.fabric.bytes_out == [round(bytes_out)] * workers


def test_every_step_of_a_ring_waits_for_the_network_once() -> None:
    near, far = (Workers(4, [MIB], latency_s=latency_s) for latency_s in (0.0, 0.125))
    for ring in (near, far):
        ring.ready(0)
    more_s = far.run()[0] - near.run()[0]
    assert 6 * 0.125 <= more_s <= 7 * 0.125 + 1e-9  # the links have theirs as well


def test_one_worker_needs_nobody() -> None:
    ring = Workers(1, [MIB, 3])
    ring.ready(0, at_s=2.0)
    ring.ready(1, at_s=3.0)
    assert ring.run() == [2.0, 3.0]
    assert ring.fabric.bytes_out == [0]
    assert ring.members[0].is_here(0)


def test_an_all_reduce_starts_when_the_last_worker_comes() -> None:
    ring = Workers(2, [MIB])
    ring.ready(0, members=ring.members[:1])
    ring.ready(0, members=ring.members[1:], at_s=7.0)
    assert ring.run() == [pytest.approx(7 + 1 + find_overhead_s(2))]


def test_two_all_reduces_share_the_links_and_a_third_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AT_ONCE == 2
    monkeypatch.setattr("undertow.tools.sim.delivery.BUCKET_S", 0.5)
    ring = Workers(2, [MIB] * 3, bucket_sizes=(MIB, MIB))
    for tensor in range(3):
        ring.ready(tensor)
    first_s, second_s, third_s = ring.run()
    assert first_s == pytest.approx(2.5, rel=1e-3)
    assert second_s == pytest.approx(2.5, rel=1e-3)
    # Nothing of it has gone before: it has the links for itself.
    assert third_s == pytest.approx(first_s + 1.5, rel=1e-3)


def test_buckets_start_in_their_order_whatever_is_ready_first() -> None:
    ring = Workers(2, [MIB, 3 * MIB])
    ring.ready(1, at_s=0.0)
    ring.ready(0, at_s=10.0)
    short_s, long_s = ring.run()
    assert short_s == pytest.approx(10 + 2 + find_overhead_s(2), rel=1e-3)
    assert long_s == pytest.approx(10 + 4 + find_overhead_s(2), rel=1e-3)


def test_a_bucket_waits_for_all_of_its_tensors() -> None:
    ring = Workers(2, [MIB // 2, MIB // 2])
    ring.ready(0, at_s=0.0)
    ring.ready(1, at_s=5.0)
    assert ring.run() == [pytest.approx(5 + 1 + find_overhead_s(2))]


def test_without_gates_every_layer_waits_for_all_buckets() -> None:
    ring = Workers(2, [MIB, MIB])
    ring.ready(0)
    ring.ready(1, at_s=10.0)
    here = []
    for time_s in (0.0, 9.0, 30.0):
        ring.clock.at(time_s, lambda: here.append([ring.members[0].is_here(layer) for layer in (0, 1)]))
    ring.run()
    assert here == [[False, False], [False, False], [True, True]]


def test_with_gates_a_layer_waits_for_its_own_bucket() -> None:
    ring = Workers(2, [MIB, MIB], gates=[[1], [], [0]])
    ring.ready(0)
    ring.ready(1, at_s=10.0)
    here = []
    for time_s in (0.0, 9.0, 30.0):
        ring.clock.at(time_s, lambda: here.append([ring.members[0].is_here(layer) for layer in range(3)]))
    ring.run()
    assert here == [[False, True, False], [False, True, True], [True, True, True]]


def test_the_next_step_is_like_the_first() -> None:
    ring = Workers(2, [MIB])
    ring.ready(0)
    once_s = ring.run()[0]
    for member in ring.members:
        member.begin(1)
    assert not ring.members[0].is_here(0)
    ring.ready(0, at_s=once_s)
    assert ring.run() == [once_s, pytest.approx(2 * once_s)]
