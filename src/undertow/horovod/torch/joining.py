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
from undertow.plan.slicing import Slice

# Of every optimizer so far, in the order in which they were made, which is the same on all ranks.  An optimizer
# that is gone stays in it: it would not be gone on all ranks at the same time.
_tables: list[Sequence[Slice]] = []


def register(slices: Sequence[Slice]) -> None:
    """Slices that go through rounds without being called by name."""
    _tables.append(slices)


def join(device: int = -1) -> int:
    """This rank has no more data.  Returns when all have none: the rank that was the last.

    Until then sums and means of the others go on, as if this rank contributed zeros.
    """
    group = basics.group()
    with translated():
        for slices in _tables:
            group.join(slices, divide_by_active=False)
        last = group.run_out()
        handles.count_anew()
        _settle()
    return last


def _settle() -> None:
    """All have run out: steps go on together where the longest training one is."""
    if not _tables:
        return
    group = basics.group()
    own = [group.rounds_done(slices) for slices in _tables]
    reply = group.agree("join", msgspec.msgpack.encode(own))
    _, steps, _ = decode_latest(reply)
    for slices, step in zip(_tables, steps, strict=True):
        group.resume(slices, step)
    group.barrier()


basics.at_shutdown(_tables.clear)
