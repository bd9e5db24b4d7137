"""Measures links, host processors and the training device when a group trains its first model.

In: a group.  Out: a `Cluster` as this rank sees it.  All ranks measure together.  It takes well under a second, and
less on fast links: transfers grow until one takes long enough to be reliable.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Protocol

import numpy as np

from undertow.engine.client.waiting import Ticket
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Array, Op
from undertow.engine.core.slicing import TensorSpec
from undertow.engine.interface import Group
from undertow.plan.cluster import Cluster
from undertow.plan.scheme import count_dense_traffic
from undertow.sync.order import URGENT
from undertow.sync.table import Layout, Table, view_slice

SMALLEST_BYTES, STEPS, GROWTH = 64 << 10, 5, 4
LONG_ENOUGH_S = 0.03
REPEATS = 3
PRODUCT_SIZE = 384
ADD_ELEMENTS = 1 << 20

_known: weakref.WeakKeyDictionary[Group, Cluster] = weakref.WeakKeyDictionary()


class Device(Protocol):
    """The training device of a frontend, and the framework's process group of the same workers if there is one."""

    def measure_products(self) -> float:
        """Return the device's rate of matrix products, in FLOP/s."""

    @property
    def has_process_group(self) -> bool: ...

    def measure_allreduce(self, size_bytes: int) -> float:
        """Return the rate in B/s at which each worker sends while the process group sums this many bytes."""


def measure_cluster(group: Group, device: Device, *, again: bool = False) -> Cluster:
    """Return the group's measurements, taken on the first call or `again`."""
    is_new = device.has_process_group and group in _known and _known[group].allreduce_bytes_per_s is None
    if group not in _known or is_new or again:
        links = _Links(group)
        latency_s = links.measure_latency()
        size_bytes, bytes_per_s = links.measure_rate(latency_s)
        _known[group] = Cluster(
            workers=group.size,
            servers=group.shape.shards,
            bytes_per_s=bytes_per_s,
            latency_s=latency_s,
            flops_per_s=device.measure_products(),
            shard_flops_per_s=measure_shard_products(),
            add_bytes_per_s=measure_adds(),
            allreduce_bytes_per_s=device.measure_allreduce(size_bytes) if device.has_process_group else None,
        )
    return _known[group]


class _Links:
    """Tables that all ranks sum simultaneously to measure their links."""

    def __init__(self, group: Group) -> None:
        self._group = group
        elements = [SMALLEST_BYTES // 4 * GROWTH**step for step in range(STEPS)]
        specs = [TensorSpec(f"probe {count}", (count,), DType.FLOAT32, count) for count in elements]
        self._probes = [Table(group, "the measurement of link rates", [spec], Op.SUM).first for spec in specs]
        small = TensorSpec("duration", (1,), DType.FLOAT64, 1)
        self._small = Table(group, "the durations of that measurement", [small], Op.SUM).first

    def measure_latency(self) -> float:
        """Return the one-way latency, including the engine's share."""
        return min(self._run(self._small, np.zeros(1)) for _ in range(2 * REPEATS)) / 2

    def measure_rate(self, latency_s: float) -> tuple[int, float]:
        """Return the size of the last sum, the same on all ranks, and its rate in B/s per direction of a link.

        Every worker sends to all others.
        """
        size_bytes, bytes_per_s = 0, 1e9
        for probe in self._probes:
            memory = np.zeros(sum(item.spec.elements for item in probe.slices), np.float32)
            duration_s = self._run(probe, memory)
            size_bytes = memory.nbytes
            sent_bytes = count_dense_traffic(size_bytes, self._group.size)
            bytes_per_s = sent_bytes / max(1e-6, duration_s - 2 * latency_s)
            # All ranks stop at the same size.
            total_s = np.array([duration_s])
            self._run(self._small, total_s)
            if total_s[0] / self._group.size > LONG_ENOUGH_S:
                break
        return size_bytes, bytes_per_s

    def _run(self, layout: Layout, memory: Array) -> float:
        ticket = Ticket(len(layout.slices))
        contributions = []
        for item in layout.slices:
            part = view_slice(item, memory)
            contributions.append(Contribution(item.spec.key, part, part, 1, ticket.answer, URGENT))
        since_s = time.perf_counter()
        self._group.contribute(contributions)
        self._group.wait_for(ticket, "the measurement of links")
        return time.perf_counter() - since_s


def measure_shard_products() -> float:
    """Return the rate of matrix products on the host's processors, where shards compute them, in FLOP/s."""
    matrix = np.ones((PRODUCT_SIZE, PRODUCT_SIZE), np.float32)
    return 2 * PRODUCT_SIZE**3 / measure_fastest(lambda: matrix @ matrix)


def measure_adds() -> float:
    """Return the rate at which a host's processor adds arrays, in B/s."""
    total, term = np.zeros(ADD_ELEMENTS, np.float32), np.zeros(ADD_ELEMENTS, np.float32)
    return total.nbytes / measure_fastest(lambda: np.add(total, term, out=total))


def measure_fastest(work: Callable[[], object]) -> float:
    """Return the duration of the fastest of several runs in seconds, after one warm-up run."""
    durations_s = []
    for _ in range(REPEATS + 1):
        since_s = time.perf_counter()
        work()
        durations_s.append(time.perf_counter() - since_s)
    return max(1e-9, min(durations_s[1:]))
