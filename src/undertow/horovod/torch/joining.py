"""`join`: a rank that has run out of data lets the other ranks continue, and waits for them.

In: a rank that has no more input.  Out: calls and steps of the others, to which this rank contributes zeros; the rank
that ran out last.
"""

from __future__ import annotations

from collections.abc import Sequence

from undertow.engine.core.slicing import Slice
from undertow.engine.interface import Group
from undertow.horovod.errors import translated
from undertow.horovod.torch import basics, handles
from undertow.horovod.torch.process_sets import own_groups
from undertow.runtime import process

# The slices of every optimizer, in the order of creation, which is the same on all ranks.  The slices of a deleted
# optimizer stay until it is deleted on all ranks; its entry stays for good.
_tables: list[tuple[Group, Sequence[Slice]]] = []


def register(group: Group, slices: Sequence[Slice]) -> None:
    """Register slices that take part in rounds of this group without a named call."""
    process.at_shutdown(_tables.clear)
    _forget_removed()
    _tables[:] = [(other, known if other.uneven.knows(known) else ()) for other, known in _tables]
    _tables.append((group, slices))


def _forget_removed() -> None:
    """Forget the slices of process sets that were removed."""
    groups = _groups()
    _tables[:] = [(group, slices) for group, slices in _tables if group in groups]


def _groups() -> list[Group]:
    """Return all groups of this rank, in an order on which all of their ranks agree."""
    return [basics.group(), *own_groups()]


def join(device: int = -1) -> int:
    """Wait until all ranks have run out of data, and return the last one.

    Until then, sums and means of the others continue as if this rank contributed zeros, also in its process sets.
    """
    groups = _groups()
    _forget_removed()
    with translated():
        for group, slices in _tables:
            group.uneven.leave(slices, divide_by_active=False)
        waiting = [(group, group.calls.run_out()) for group in groups]
        last, *_ = [group.calls.wait_until_out(out) for group, out in waiting]
        handles.restart_numbering()
        for group in groups:
            # All ranks continue at the step of the rank that has trained longest.
            if tables := [slices for other, slices in _tables if other is group]:
                group.uneven.settle(tables)
    return last
