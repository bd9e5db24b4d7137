"""Ranks that run out of data: `join` lets the others go on, and waits for them.

In: "this rank has no more input".  Out: calls and steps of the others that go on as if it contributed zeros;
who was the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from undertow.coordinator.agreement import decode_latest
from undertow.horovod.errors import translated
from undertow.horovod.torch import basics, handles
from undertow.horovod.torch.process_sets import own_groups
from undertow.plan.slicing import Slice
from undertow.runtime.group import Group

# Of every optimizer so far, in the order in which they were made, which is the same on all ranks.  The slices of one
# that is gone stay until it is gone on all ranks; its place stays for good.
_tables: list[tuple[Group, Sequence[Slice]]] = []


def register(group: Group, slices: Sequence[Slice]) -> None:
    """Slices that go through rounds of this group without being called by name."""
    _forget_removed()
    _tables[:] = [(other, known if other.knows(known) else ()) for other, known in _tables]
    _tables.append((group, slices))


def _forget_removed() -> None:
    """Tables of process sets that were removed take part in nothing."""
    groups = _groups()
    _tables[:] = [(group, slices) for group, slices in _tables if group in groups]


def _groups() -> list[Group]:
    """Return all groups of this rank, in an order that is the same on all ranks of each."""
    return [basics.group(), *own_groups()]


def join(device: int = -1) -> int:
    """This rank has no more data.  Returns when all have none: the rank that was the last.

    Until then sums and means of the others go on, as if this rank contributed zeros, in its process sets as well.
    """
    groups = _groups()
    _forget_removed()
    with translated():
        for group, slices in _tables:
            group.join(slices, divide_by_active=False)
        waiting = [(group, group.run_out()) for group in groups]
        last, *_ = [group.wait_until_out(out) for group, out in waiting]
        handles.count_anew()
        for group in groups:
            _settle(group)
    return last


def _settle(group: Group) -> None:
    """All have run out: steps go on together where the longest training one is."""
    tables = [slices for other, slices in _tables if other is group]
    if not tables:
        return
    own = [group.rounds_done(slices) for slices in tables]
    reply = group.agree("join", msgspec.msgpack.encode(own))
    _, steps, _ = decode_latest(reply)
    for slices, step in zip(tables, steps, strict=True):
        group.resume(slices, step)
    group.barrier()


basics.at_shutdown(_tables.clear)
