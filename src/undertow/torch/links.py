"""What machines and links can do, measured once when a group trains its first model.

In: a group.  Out: a `Cluster` as this rank sees it.  All ranks come here together; it takes well under
a second, and less on fast links: transfers grow until one of them takes long enough to be believed.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from undertow.core.dtypes import DType
from undertow.core.flow import Contribution
from undertow.core.rounds import Array, Op
from undertow.plan.cluster import Cluster
from undertow.plan.slicing import TensorSpec
from undertow.runtime.group import Group
from undertow.runtime.waiting import Ticket
from undertow.torch.broadcast import URGENT
from undertow.torch.device import synchronise
from undertow.torch.other_means import note_own_collective
from undertow.torch.table import Layout, Table

SMALLEST_BYTES, STEPS, GROWTH = 64 << 10, 5, 4
ENOUGH_S = 0.03
REPEATS = 3
PRODUCT_SIZE = 384
ADD_ELEMENTS = 1 << 20

_known: weakref.WeakKeyDictionary[Group, Cluster] = weakref.WeakKeyDictionary()


def measure_cluster(group: Group, device: torch.device, process_group: Any = None, *, again: bool = False) -> Cluster:
    """The same answer when asked another time, unless it is to be measured again."""
    is_new = process_group is not None and group in _known and _known[group].allreduce_bytes_per_s is None
    if group not in _known or is_new or again:
        links = _Links(group)
        latency_s = links.measure_latency()
        size_bytes, bytes_per_s = links.measure_rate(latency_s)
        _known[group] = Cluster(
            workers=group.size,
            bytes_per_s=bytes_per_s,
            latency_s=latency_s,
            flops_per_s=measure_products(device),
            shard_flops_per_s=measure_shard_products(),
            add_bytes_per_s=measure_adds(),
            allreduce_bytes_per_s=_measure_allreduce(process_group, size_bytes, device) if process_group else None,
        )
    return _known[group]


class _Links:
    def __init__(self, group: Group) -> None:
        self._group = group
        elements = [SMALLEST_BYTES // 4 * GROWTH**step for step in range(STEPS)]
        specs = [TensorSpec(f"probe {count}", (count,), DType.FLOAT32, count) for count in elements]
        self._probes = [Table(group, "what the links carry", [spec], Op.SUM).first for spec in specs]
        small = TensorSpec("duration", (1,), DType.FLOAT64, 1)
        self._small = Table(group, "how long that takes", [small], Op.SUM).first

    def measure_latency(self) -> float:
        """One way, the engine's own share included."""
        # There and back.
        return min(self._run(self._small, np.zeros(1)) for _ in range(2 * REPEATS)) / 2

    def measure_rate(self, latency_s: float) -> tuple[int, float]:
        """Bytes per second that one link carries, each way, while everybody sends to everybody.

        First, of how many bytes the last sum was that tells so: the same on all ranks.
        """
        size_bytes, bytes_per_s = 0, 1e9
        for probe in self._probes:
            memory = np.zeros(sum(item.spec.elements for item in probe.slices), np.float32)
            duration_s = self._run(probe, memory)
            size_bytes = memory.nbytes
            bytes_per_s = _count_sent(size_bytes, self._group.size) / max(1e-6, duration_s - 2 * latency_s)
            # All ranks stop at the same size.
            total_s = np.array([duration_s])
            self._run(self._small, total_s)
            if total_s[0] / self._group.size > ENOUGH_S:
                break
        return size_bytes, bytes_per_s

    def _run(self, layout: Layout, memory: Array) -> float:
        ticket = Ticket(len(layout.slices))
        contributions = []
        for item in layout.slices:
            part = memory[item.parts[0].offset :][: item.spec.elements]
            contributions.append(Contribution(item.spec.key, part, part, 1, ticket.answer, URGENT))
        since_s = time.perf_counter()
        self._group.contribute(contributions)
        self._group.waiters.wait_for(ticket, "how fast the links are")
        return time.perf_counter() - since_s


def _measure_allreduce(process_group: Any, size_bytes: int, device: torch.device) -> float:
    """The same through torch's process group."""
    memory = torch.zeros(size_bytes // 4, device=device)

    def reduce() -> None:
        note_own_collective()
        dist.all_reduce(memory, group=process_group)
        synchronise(device)

    return _count_sent(size_bytes, dist.get_world_size(process_group)) / _time(reduce)


def _count_sent(size_bytes: int, workers: int) -> float:
    """By each worker for one sum, its own part and the result."""
    return 2 * size_bytes * (workers - 1) / workers


def measure_products(device: torch.device) -> float:
    """Matrix products of the training device."""
    matrix = torch.ones(PRODUCT_SIZE, PRODUCT_SIZE, device=device)

    def multiply() -> None:
        torch.mm(matrix, matrix)
        synchronise(device)

    return 2 * PRODUCT_SIZE**3 / _time(multiply)


def measure_shard_products() -> float:
    """The same where the shards make them."""
    matrix = np.ones((PRODUCT_SIZE, PRODUCT_SIZE), np.float32)
    return 2 * PRODUCT_SIZE**3 / _time(lambda: matrix @ matrix)


def measure_adds() -> float:
    total, term = np.zeros(ADD_ELEMENTS, np.float32), np.zeros(ADD_ELEMENTS, np.float32)
    return total.nbytes / _time(lambda: np.add(total, term, out=total))


def _time(work: Callable[[], object]) -> float:
    """The fastest of several runs, after one to warm up."""
    durations_s = []
    for _ in range(REPEATS + 1):
        since_s = time.perf_counter()
        work()
        durations_s.append(time.perf_counter() - since_s)
    return max(1e-9, min(durations_s[1:]))
