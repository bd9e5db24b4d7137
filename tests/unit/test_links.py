"""What links and machines can do, measured over a group whose links are as the test says, by its own clock."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch

from undertow.core.flow import Contribution
from undertow.core.rounds import Op
from undertow.plan.cluster import Cluster
from undertow.plan.placement import Placement
from undertow.plan.sizing import Sizes
from undertow.plan.slicing import Cut, Slice, TensorSpec, cut
from undertow.runtime.waiting import Ticket
from undertow.torch import links
from undertow.torch.links import ENOUGH_S, GROWTH, REPEATS, SMALLEST_BYTES, STEPS, measure_cluster

CPU = torch.device("cpu")
MOST_BYTES = SMALLEST_BYTES * GROWTH ** (STEPS - 1)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


class TimedGroup:
    """All workers contribute the same at the same time; their answers take as long as the links need."""

    rank = 0

    def __init__(
        self, clock: Clock, *, size: int = 2, bytes_per_s: float = 1e8, latency_s: float = 0.001, others_s: float = 0.0
    ) -> None:
        self.size = size
        self.sizes = Sizes()
        self.waiters = self
        self.transfers: list[int] = []  # bytes of each transfer that was timed
        self.verdicts = 0  # how often the ranks have told each other how long one took
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._others_s = others_s  # how much longer the other workers say that it took
        self._next_key = 0
        self._specs: dict[int, TensorSpec] = {}

    def discard(self, keys: range) -> None:
        pass

    def register(
        self, label: str, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0
    ) -> list[Slice]:
        slices = cut(tensors, Cut(self._next_key, self.sizes.start), op=op, placement=Placement(self.size))
        self._specs |= {item.spec.key: tensors[0] for item in slices}
        self._next_key += max(keys, len(slices))
        return slices

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        total_bytes = sum(one.source.nbytes for one in contributions if one.source is not None)
        share = (self.size - 1) / self.size
        self._clock.now_s += 2 * self._latency_s
        is_probe = self._specs[contributions[0].key].name.startswith("probe")
        if is_probe:
            self._clock.now_s += 2 * total_bytes * share / self._bytes_per_s
            self.transfers.append(total_bytes)
        elif contributions[0].source is not None and contributions[0].source[0]:
            self.verdicts += 1
        for one in contributions:
            assert one.source is not None
            assert one.target is not None
            extra = 0.0 if is_probe else self._others_s * (self.size - 1)
            one.target[:] = one.source * self.size + extra
            one.on_result(one)

    def wait_for(self, ticket: Ticket, reason: str = "", *, tensor: str = "") -> None:
        assert ticket.is_done


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(links, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


def measure(group: TimedGroup) -> Cluster:
    return measure_cluster(group, CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("bytes_per_s", [1e6, 1e8, 5e9])
def test_the_rate_and_the_latency_of_the_links_are_found(clock: Clock, bytes_per_s: float, size: int) -> None:
    cluster = measure(TimedGroup(clock, size=size, bytes_per_s=bytes_per_s))
    assert cluster.workers == size
    assert cluster.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-6)
    assert cluster.latency_s == pytest.approx(0.001)


def test_every_figure_is_one_that_a_plan_can_be_made_with(clock: Clock) -> None:
    """Even if no time passes at all."""
    cluster = measure(TimedGroup(clock, bytes_per_s=float("inf"), latency_s=0.0))
    for figure in (cluster.bytes_per_s, cluster.flops_per_s, cluster.shard_flops_per_s, cluster.add_bytes_per_s):
        assert 0 < figure < float("inf")


def test_transfers_grow_until_one_takes_long_enough(clock: Clock) -> None:
    group = TimedGroup(clock, bytes_per_s=1e8, latency_s=0.0)
    measure(group)
    assert group.transfers[0] == SMALLEST_BYTES
    assert all(later == GROWTH * earlier for earlier, later in zip(group.transfers, group.transfers[1:], strict=False))
    durations_s = [size_bytes / 1e8 for size_bytes in group.transfers]
    assert durations_s[-1] > ENOUGH_S
    assert all(duration_s <= ENOUGH_S for duration_s in durations_s[:-1])


def test_a_slow_link_is_not_held_up_by_more_than_the_smallest_transfer(clock: Clock) -> None:
    group = TimedGroup(clock, bytes_per_s=1e6)
    measure(group)
    assert group.transfers == [SMALLEST_BYTES]


def test_a_fast_link_gets_the_largest_transfer_and_no_more(clock: Clock) -> None:
    group = TimedGroup(clock, bytes_per_s=1e12, latency_s=0.0)
    measure(group)
    assert len(group.transfers) == STEPS
    assert group.transfers[-1] == MOST_BYTES


def test_all_ranks_stop_at_the_same_size_whoever_is_slow(clock: Clock) -> None:
    """Ours would be fast enough for a larger one; the mean of all says no."""
    slow = TimedGroup(clock, size=4, bytes_per_s=1e12, others_s=2 * ENOUGH_S)
    measure(slow)
    assert slow.transfers == [SMALLEST_BYTES]
    quick = TimedGroup(clock, size=4, bytes_per_s=SMALLEST_BYTES / ENOUGH_S, latency_s=0.0, others_s=-ENOUGH_S)
    measure(quick)
    assert len(quick.transfers) > 1


def test_the_ranks_tell_each_other_after_every_transfer(clock: Clock) -> None:
    group = TimedGroup(clock)
    measure(group)
    assert group.verdicts == len(group.transfers)


def test_a_group_is_measured_once(clock: Clock) -> None:
    group, other = TimedGroup(clock), TimedGroup(clock, bytes_per_s=1e7)
    first = measure(group)
    seen = list(group.transfers)
    assert measure(group) is first
    assert group.transfers == seen
    assert measure(other).bytes_per_s == pytest.approx(1e7)
    assert measure(group) is first


def test_a_process_group_that_is_there_later_is_measured_then(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_measure_allreduce", lambda process_group, size_bytes, device: 7.0)
    group = TimedGroup(clock)
    assert measure(group).allreduce_bytes_per_s is None
    cluster = measure_cluster(group, CPU, "of torch")  # type: ignore[arg-type]
    assert cluster.allreduce_bytes_per_s == 7.0
    assert measure_cluster(group, CPU, "of torch") is cluster  # type: ignore[arg-type]


def test_a_group_that_is_gone_is_forgotten(clock: Clock) -> None:
    group = TimedGroup(clock)
    measure(group)
    ref = weakref.ref(group)
    del group
    gc.collect()
    assert ref() is None


def test_a_large_transfer_travels_in_all_its_slices(clock: Clock) -> None:
    """Each with its own part of the memory, all of which is answered."""
    group = TimedGroup(clock, bytes_per_s=1e12, latency_s=0.0)
    group.sizes = Sizes(fixed=SMALLEST_BYTES)
    measure(group)
    assert group.transfers == [SMALLEST_BYTES * GROWTH**step for step in range(STEPS)]


def test_of_several_runs_the_fastest_counts_but_never_the_first(clock: Clock) -> None:
    durations_s = iter([0.001, *(2.0 + run for run in range(REPEATS))])

    def work() -> None:
        clock.now_s += next(durations_s)

    assert links._time(work) == pytest.approx(2.0)
    assert next(durations_s, None) is None
