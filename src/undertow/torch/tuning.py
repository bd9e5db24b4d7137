"""Slices of the right size: about two milliseconds of the link, the same on all ranks.

In: how fast this rank's slices are received (see `core.rate`).  Out: gradients that are cut anew,
on all ranks in the same pass, when the size no longer fits.
Nobody waits for it.  Every few passes the ranks tell each other their rates, in a round like any
other.  One pass later, when its result has long been there, they cut, all in the same way, and
make the new slices known to their engines; in the pass after that they use them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from undertow.core.dtypes import DType
from undertow.core.flow import Contribution
from undertow.core.rounds import Op
from undertow.plan.slicing import TensorSpec
from undertow.runtime.group import Group
from undertow.runtime.waiting import Ticket
from undertow.torch.broadcast import URGENT
from undertow.torch.gradients import Gradients
from undertow.torch.table import Table

PASSES = 4
# A size within this factor of the wished one is left as it is.
GOOD_ENOUGH = 1.6


class Tuning:
    """Of one wrapped module."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._table = Table(group, "what the links carry", [TensorSpec("rate", (2,), DType.FLOAT64, 2)], Op.SUM)
        self._passes = 0
        self._slice_bytes = 0  # 0: as it was chosen at the start
        self._next_bytes = 0  # known to the engines, used from the next pass on
        self._recut: list[Gradients] = []  # those that change then
        self._told = np.zeros(2)  # bytes per second, and how many ranks know theirs; then of all ranks together
        self._ticket: Ticket | None = None

    def begin(self, gradients: Sequence[Gradients]) -> None:
        """A pass is about to begin, and nothing of the last one is on its way."""
        self._passes += 1
        if self._next_bytes:
            self._change()
        elif self._ticket is not None:
            self._group.waiters.wait_for(self._ticket)
            self._ticket = None
            self._consider(gradients)
        elif self._passes % PASSES == 0:
            self._tell()

    def _tell(self) -> None:
        rate = self._group.bytes_per_s
        self._told[:] = (0, 0) if rate is None else (rate, 1)
        self._ticket = Ticket(1)
        key = self._table.first.slices[0].spec.key
        self._group.contribute([Contribution(key, self._told, self._told, 1, self._ticket.answer, URGENT)])

    def _consider(self, gradients: Sequence[Gradients]) -> None:
        total, known = self._told
        if not known:
            return  # nothing ever had to wait: any size does
        sizes, shards = self._group.sizes, self._group.size
        model_bytes = sum(one.table.size_bytes for one in gradients)
        wished = sizes.choose(model_bytes, shards=shards, bytes_per_s=total / known)
        current = self._slice_bytes or sizes.choose(model_bytes, shards=shards)
        if max(wished, current) > GOOD_ENOUGH * min(wished, current):
            self._next_bytes, self._recut = wished, list(gradients)
            for one in gradients:
                one.table.recut(wished)

    def _change(self) -> None:
        for one in self._recut:
            one.change_slices()
        self._group.resize(self._next_bytes)
        self._slice_bytes, self._next_bytes = self._next_bytes, 0
