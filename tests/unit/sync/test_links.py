"""Measurements of links and hosts, over a fake group with given links and its own clock."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from tests.support.timed_group import Clock, TimedGroup
from undertow.plan.cluster import Cluster
from undertow.sizing import Sizes
from undertow.sync import links
from undertow.sync.links import GROWTH, LONG_ENOUGH_S, REPEATS, SMALLEST_BYTES, STEPS, measure_cluster
from undertow.torch.planning.probe import TorchDevice

CPU = TorchDevice(torch.device("cpu"))
MOST_BYTES = SMALLEST_BYTES * GROWTH ** (STEPS - 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(links, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


def measure(group: TimedGroup) -> Cluster:
    return measure_cluster(group, CPU)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("bytes_per_s", [1e6, 1e8, 5e9])
def test_rate_and_latency_of_the_links_are_measured(clock: Clock, bytes_per_s: float, size: int) -> None:
    cluster = measure(TimedGroup(clock, size=size, bytes_per_s=bytes_per_s))
    assert cluster.workers == size
    assert cluster.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-6)
    assert cluster.latency_s == pytest.approx(0.001)


def test_all_figures_are_usable_by_the_planner(clock: Clock) -> None:
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
    assert durations_s[-1] > LONG_ENOUGH_S
    assert all(duration_s <= LONG_ENOUGH_S for duration_s in durations_s[:-1])


def test_a_slow_link_carries_only_the_smallest_transfer(clock: Clock) -> None:
    group = TimedGroup(clock, bytes_per_s=1e6)
    measure(group)
    assert group.transfers == [SMALLEST_BYTES]


def test_a_fast_link_carries_transfers_up_to_the_largest(clock: Clock) -> None:
    group = TimedGroup(clock, bytes_per_s=1e12, latency_s=0.0)
    measure(group)
    assert len(group.transfers) == STEPS
    assert group.transfers[-1] == MOST_BYTES


def test_all_ranks_stop_at_the_same_size_whichever_is_slow(clock: Clock) -> None:
    """This rank would be fast enough for a larger transfer, but the mean of all ranks is not."""
    slow = TimedGroup(clock, size=4, bytes_per_s=1e12, others_s=2 * LONG_ENOUGH_S)
    measure(slow)
    assert slow.transfers == [SMALLEST_BYTES]
    bytes_per_s = SMALLEST_BYTES / LONG_ENOUGH_S
    quick = TimedGroup(clock, size=4, bytes_per_s=bytes_per_s, latency_s=0.0, others_s=-LONG_ENOUGH_S)
    measure(quick)
    assert len(quick.transfers) > 1


def test_ranks_exchange_durations_after_every_transfer(clock: Clock) -> None:
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


def test_a_process_group_is_measured_when_it_appears(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchDevice, "measure_allreduce", lambda device, size_bytes: 7.0)
    with_process_group = TorchDevice(torch.device("cpu"), "of torch")
    group = TimedGroup(clock)
    assert measure(group).allreduce_bytes_per_s is None
    cluster = measure_cluster(group, with_process_group)
    assert cluster.allreduce_bytes_per_s == 7.0
    assert measure_cluster(group, with_process_group) is cluster


def test_a_deleted_group_is_forgotten(clock: Clock) -> None:
    group = TimedGroup(clock)
    measure(group)
    ref = weakref.ref(group)
    del group
    gc.collect()
    assert ref() is None


def test_a_large_transfer_uses_all_its_slices(clock: Clock) -> None:
    """Each slice has its own range of the memory, all of which is answered."""
    group = TimedGroup(clock, bytes_per_s=1e12, latency_s=0.0)
    group.configure(sizes=Sizes(fixed=SMALLEST_BYTES))
    measure(group)
    assert group.transfers == [SMALLEST_BYTES * GROWTH**step for step in range(STEPS)]


def test_the_fastest_run_counts_but_not_the_warm_up(clock: Clock) -> None:
    durations_s = iter([0.001, *(2.0 + run for run in range(REPEATS))])

    def work() -> None:
        clock.now_s += next(durations_s)

    assert links.measure_fastest(work) == pytest.approx(2.0)
    assert next(durations_s, None) is None
