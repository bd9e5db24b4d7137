"""Broadcast and all-gather of bytes, as rounds of the engine.

`ArrayBroadcast`  In: flat byte arrays in host memory, such as the initial weights, or buffers before each forward.
                  Out: the source rank's bytes in the arrays of all ranks.
`ByteGather`      In: this rank's bytes.  Out: the bytes of all ranks, in rank order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from undertow.engine.client.waiting import Ticket
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Array, Op
from undertow.engine.core.slicing import TensorSpec
from undertow.engine.interface import Group
from undertow.sync.order import URGENT
from undertow.sync.table import Table, gather_segments, scatter_segments


class ArrayBroadcast:
    """A repeatable broadcast of arrays whose sizes do not change."""

    def __init__(self, group: Group, label: str, specs: Sequence[TensorSpec]) -> None:
        self.table = Table(group, label, specs, Op.COPY)
        self._group = group
        self._label = label
        self._running = Ticket(0)

    def wait(self) -> None:
        """Wait until the other ranks have received this rank's last broadcast."""
        self._group.wait_for(self._running, self._label)

    def run(self, arrays: Sequence[Array], *, source: int | None = 0) -> bool:
        """Copy the source rank's bytes into the arrays of all other ranks.

        With `source=None` every rank offers its bytes, and those of the lowest participating rank are used.  The source
        does not wait until the others have received them: see `wait`.  Returns whether this rank's arrays were
        overwritten.
        """
        offers = source is None or source == self._group.rank
        takes = source != self._group.rank
        slices = self.table.first.slices
        memories = [gather_segments(item, arrays) for item in slices]
        self._running = Ticket(len(memories))
        self._group.contribute(
            [
                Contribution(
                    item.spec.key,
                    memory if offers else None,
                    memory if takes else None,
                    int(offers),
                    self._running.answer,
                    URGENT,
                )
                for item, memory in zip(slices, memories, strict=True)
            ]
        )
        if takes:
            self.wait()
            for item, memory in zip(slices, memories, strict=True):
                scatter_segments(item, memory, arrays)
        return takes


class ByteGather:
    """A repeatable all-gather of bytes; all ranks create and use it in the same order."""

    def __init__(self, group: Group, label: str) -> None:
        self._group = group
        self._table = Table(group, label, [TensorSpec("bytes", (), DType.BYTES, 0)], Op.GATHER)
        self._sent: Contribution | None = None
        self._ticket = Ticket(0)

    @property
    def is_sent(self) -> bool:
        """Whether this rank has sent its bytes but not yet received those of all ranks."""
        return self._sent is not None

    def send(self, body: bytes) -> None:
        self._ticket = Ticket(1)
        key = self._table.first.slices[0].spec.key
        self._sent = Contribution(key, np.frombuffer(body, np.uint8), None, 1, self._ticket.answer, URGENT)
        self._group.contribute([self._sent])

    def receive(self, reason: str) -> list[bytes]:
        """Return the bytes of all ranks, when they have arrived; `reason` appears in traces."""
        assert self._sent is not None
        self._group.wait_for(self._ticket, reason)
        sent, self._sent = self._sent, None
        bodies = [b"" if each.array is None else each.array.tobytes() for each in sent.gathered]
        release_gathered(self._group, [sent])
        return bodies


def release_gathered(group: Group, contributions: Sequence[Contribution]) -> None:
    """Return the memory of other ranks' contributions to these rounds to the engine."""
    for contribution in contributions:
        group.release([each for rank, each in enumerate(contribution.gathered) if rank != group.rank])
