"""Stages 3 and 8 for gradients that torch's own process group sums: one more way, where there is one.

In: gradients that are final.  Out: buckets of them, each in one `all_reduce`, and the mean in place.
Collectives must be called in the same order on all ranks, in whichever order gradients come: a bucket is
called when it is full, and all that come before it have been.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from undertow.core.flow import Contribution
from undertow.errors import UndertowError
from undertow.plan.sizing import Sizes
from undertow.runtime.group import Group
from undertow.runtime.waiting import Ticket
from undertow.torch.carriers import Home
from undertow.torch.other_means import note_own_collective
from undertow.trace import notes
from undertow.trace.recorder import here

# As many of the largest slices as torch's own buckets have bytes, but the first one, which is small to start early.
BUCKET_SLICES = 6
RATED_PASSES = 3


def find_process_group(given: Any, group: Group) -> Any:
    """The process group of the same workers in the same order; None if there is none."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    chosen = given if given is not None else dist.group.WORLD
    is_same = (dist.get_rank(chosen), dist.get_world_size(chosen)) == (group.rank, group.size)
    return chosen if is_same else None


def can_reduce(parameter: torch.Tensor) -> bool:
    """Whether the process group sums its gradients as exactly as the shards do."""
    return parameter.dtype in (torch.float32, torch.float64)


class Reduction:
    """The buckets of one layout."""

    def __init__(self, group: Group, process_group: Any, homes: Sequence[Home], members: Sequence[int]) -> None:
        self.group = group
        self.process_group = process_group
        self.buckets = [Bucket(self, some, homes) for some in _fill(homes, members, group.sizes)]
        self._rates: deque[float] = deque(maxlen=len(self.buckets) * RATED_PASSES)
        self._free_s = 0.0  # since when nothing is called

    @property
    def bytes_per_s(self) -> float | None:
        """What the process group carries, each way, as seen in the last passes."""
        return statistics.median(self._rates) if self._rates else None

    def note(self, size_bytes: int, called_s: float, done_s: float) -> None:
        """A bucket has been summed, after those that were called before it."""
        since_s, self._free_s = max(called_s, self._free_s), done_s
        workers = self.group.size
        self._rates.append(2 * size_bytes * (workers - 1) / workers / max(1e-6, done_s - since_s))

    def call_full_ones(self) -> None:
        for bucket in self.buckets:
            if not bucket.is_full:
                return
            bucket.call()


class Bucket:
    """Gradients of one type and device, one after the other, and of each whether there is one."""

    answers = 1

    def __init__(self, reduction: Reduction, members: Sequence[int], homes: Sequence[Home]) -> None:
        self.members = members
        self._reduction = reduction
        self._homes = {index: homes[index] for index in members}
        first = homes[members[0]]
        sizes = [homes[index].parameter.numel() for index in members]
        self._memory = torch.empty(sum(sizes) + len(members), dtype=first.dtype, device=first.parameter.device)
        ends = list(itertools.accumulate(sizes))
        self._flags = self._memory[ends[-1] :]
        self._segments = {
            index: self._memory[end - size : end].view(homes[index].parameter.shape)
            for index, end, size in zip(members, ends, sizes, strict=True)
        }
        self._ticket = Ticket(0)
        self._unsent = set(members)
        self._work: Any = None
        self._present: list[float] = []  # of each how many workers had one, once that is known

    @property
    def is_full(self) -> bool:
        return not self._unsent

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        self._ticket, self._unsent, self._work = ticket, set(self.members), None
        self._present = []
        self._flags.fill_(1.0)

    def send(self, index: int, fresh: torch.Tensor | None) -> None:
        gradient = self._homes[index].parameter.grad
        if gradient is None:
            self._segments[index].zero_()
            self._flags[self.members.index(index)] = 0.0
        else:
            self._segments[index].copy_(gradient)
        self._unsent.discard(index)
        self._reduction.call_full_ones()

    def call(self) -> None:
        if self._work is None:
            note_own_collective()
            self._work = dist.all_reduce(self._memory, group=self._reduction.process_group, async_op=True)
            self._reduction.group.owed.begin()  # the others need this process until the sum is made
            ticket, called_s = self._ticket, time.perf_counter()
            self._work.get_future().add_done_callback(lambda future: self._done(future, ticket, called_s))

    def uses_memory_of(self, index: int) -> bool:
        return False

    def land(self, index: int) -> None:
        if not self._present:
            self._work.wait()  # on an accelerator, of its stream for the sum
            self._present = self._flags.tolist()
            self._memory.div_(self._reduction.group.size)
        if self._present[self.members.index(index)]:
            self._homes[index].replace(self._segments[index].clone())

    def _done(self, future: Any, ticket: Ticket, called_s: float) -> None:
        """In a thread of torch's."""
        try:
            future.value()
        except Exception as error:
            self._reduction.group.suspect(UndertowError(f"torch's all_reduce failed: {error}"))
        else:
            done_s = time.perf_counter()
            self._reduction.note(self._memory.nbytes, called_s, done_s)
            if here.is_on:
                names = tuple(home.name for home in self._homes.values())
                # The same span on the clock of the record.
                ended_s = here.clock()
                here.note(notes.Reduced(ended_s - (done_s - called_s), ended_s, names, self._memory.nbytes))
            ticket.answer(_ANSWER)
        finally:
            self._reduction.group.owed.end()


_ANSWER = Contribution(-1, None, None, 1, lambda contribution: None)


def _fill(homes: Sequence[Home], members: Sequence[int], sizes: Sizes) -> Iterator[list[int]]:
    """Buckets of gradients that can be summed together, in their order."""
    bucket: list[int] = []
    filled, most = 0, sizes.largest // 4
    for index in members:
        home = homes[index]
        is_like = not bucket or _kind_of(home) == _kind_of(homes[bucket[0]])
        if bucket and (filled >= most or not is_like):
            yield bucket
            bucket, filled, most = [], 0, BUCKET_SLICES * sizes.largest
        bucket.append(index)
        filled += home.parameter.numel() * home.dtype.itemsize
    if bucket:
        yield bucket


def _kind_of(home: Home) -> tuple[torch.dtype, torch.device]:
    return home.dtype, home.parameter.device
