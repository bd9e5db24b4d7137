"""Stages 3 and 8 of the scheme `allreduce`: gradients that torch's own process group sums.

In: final gradients.  Out: buckets of them, each in one `all_reduce`, and the mean in place.
All ranks must call collectives in the same order, in whichever order gradients become ready: a bucket's collective is
called when the bucket is full and those of all earlier buckets have been called.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from undertow.engine.client.waiting import Ticket
from undertow.engine.core.flow import Contribution
from undertow.engine.interface import Group
from undertow.errors import UndertowError
from undertow.plan.scheme import count_dense_traffic
from undertow.plan.slice_plan import fill_buckets, find_bucket_sizes
from undertow.torch.claims.other_means import note_own_collective
from undertow.torch.slots.slot import TorchSlot
from undertow.tracing import events
from undertow.tracing.recorder import process_recorder

RATED_PASSES = 3


def find_process_group(given: Any, group: Group) -> Any:
    """Return the process group of the same workers in the same order; None if there is none."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    chosen = given if given is not None else dist.group.WORLD
    is_same = (dist.get_rank(chosen), dist.get_world_size(chosen)) == (group.rank, group.size)
    return chosen if is_same else None


def can_allreduce(parameter: torch.Tensor) -> bool:
    """Whether a process group sums this parameter's gradients as exactly as shards do."""
    return parameter.dtype in (torch.float32, torch.float64)


class AllreduceBuckets:
    """The buckets of one layout, in the order of their collectives.

    Torch calls `rate` in its own threads, possibly for two buckets at once; the rate is read between passes.
    """

    def __init__(self, group: Group, process_group: Any, slots: Sequence[TorchSlot], members: Sequence[int]) -> None:
        self.group = group
        self.process_group = process_group
        own = ((index, slots[index].dtype, slots[index].parameter) for index in members)
        kinds = ((index, weight.numel() * dtype.itemsize, (dtype, weight.device)) for index, dtype, weight in own)
        buckets = fill_buckets(kinds, find_bucket_sizes(group.shape.sizes))
        self.syncers = [AllreduceSyncer(self, some, slots) for some in buckets]
        self._rates: deque[float] = deque(maxlen=len(self.syncers) * RATED_PASSES)
        self._free_s = 0.0  # when the last collective ended
        self._lock = threading.Lock()

    @property
    def bytes_per_s(self) -> float | None:
        """The rate of the process group in each direction, in the last passes."""
        return statistics.median(self._rates) if self._rates else None

    def rate(self, size_bytes: int, called_s: float, done_s: float) -> None:
        """Record the rate of one bucket's sum, which started after the sums that were called before it."""
        with self._lock:
            since_s, self._free_s = max(called_s, self._free_s), done_s
        self._rates.append(count_dense_traffic(size_bytes, self.group.size) / max(1e-6, done_s - since_s))

    def call_full_ones(self) -> None:
        for syncer in self.syncers:
            if not syncer.is_full:
                return
            syncer.call()


class AllreduceSyncer:
    """A bucket: gradients of one type and device in one tensor, followed by a flag for each: 1 if it exists, else 0."""

    answers = 1

    def __init__(self, buckets: AllreduceBuckets, members: Sequence[int], slots: Sequence[TorchSlot]) -> None:
        self.members = members
        self._buckets = buckets
        self._slots = {index: slots[index] for index in members}
        first = slots[members[0]]
        sizes = [slots[index].parameter.numel() for index in members]
        self._memory = torch.empty(sum(sizes) + len(members), dtype=first.dtype, device=first.parameter.device)
        ends = list(itertools.accumulate(sizes))
        self._flags = self._memory[ends[-1] :]
        self._segments = {
            index: self._memory[end - size : end].view(slots[index].parameter.shape)
            for index, end, size in zip(members, ends, sizes, strict=True)
        }
        self._ticket = Ticket(0)
        self._unsent = set(members)
        self._work: Any = None
        self._present: list[float] = []  # the number of workers that had each gradient; empty until it is known

    @property
    def is_full(self) -> bool:
        return not self._unsent

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        self._ticket, self._unsent, self._work = ticket, set(self.members), None
        self._present = []
        self._flags.fill_(1.0)

    def send(self, index: int, hint: Any) -> None:
        gradient = self._slots[index].parameter.grad
        if gradient is None:
            self._segments[index].zero_()
            self._flags[self.members.index(index)] = 0.0
        else:
            self._segments[index].copy_(gradient)
        self._unsent.discard(index)
        self._buckets.call_full_ones()

    def call(self) -> None:
        if self._work is None:
            note_own_collective()
            self._work = dist.all_reduce(self._memory, group=self._buckets.process_group, async_op=True)
            self._buckets.group.open_work.begin()  # other workers need this process until the sum is complete
            ticket, called_s = self._ticket, time.perf_counter()
            self._work.get_future().add_done_callback(lambda future: self._done(future, ticket, called_s))

    def uses_memory_of(self, index: int) -> bool:
        return False

    def land(self, index: int) -> None:
        if not self._present:
            self._work.wait()  # on an accelerator, this makes the current stream wait
            self._present = self._flags.tolist()
            self._memory.div_(self._buckets.group.size)
        if self._present[self.members.index(index)]:
            self._slots[index].replace(self._segments[index].clone())

    def _done(self, future: Any, ticket: Ticket, called_s: float) -> None:
        """Answer for the bucket.  Called in whichever of torch's threads completed the collective."""
        try:
            future.value()
        except Exception as error:
            self._buckets.group.suspect(UndertowError(f"torch's all_reduce failed: {error}"))
        else:
            done_s = time.perf_counter()
            self._buckets.rate(self._memory.nbytes, called_s, done_s)
            if process_recorder.is_on:
                names = tuple(slot.name for slot in self._slots.values())
                # The same duration on the recorder's clock.
                ended_s = process_recorder.clock()
                process_recorder.record(
                    events.Reduced(ended_s - (done_s - called_s), ended_s, names, self._memory.nbytes)
                )
            ticket.answer(_ANSWER)
        finally:
            self._buckets.group.open_work.end()


_ANSWER = Contribution(-1, None, None, 1, lambda contribution: None)
