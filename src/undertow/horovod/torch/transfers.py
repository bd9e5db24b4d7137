"""Moves the bytes of a call: as slices through the shards, or as whole blobs to other ranks.

In: arrays of this rank, and the slices that the coordinator has laid out.  Out: contributions, then the result's arrays
or the blobs of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from undertow.engine.client.calls import Answer
from undertow.engine.coordinator.terms import Terms
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Array
from undertow.engine.core.slicing import Slice
from undertow.engine.interface import Group
from undertow.horovod.torch import handles
from undertow.sync.broadcast import release_gathered
from undertow.sync.table import gather_segments, scatter_segments

Blobs = Sequence[Array | None]  # one from each rank; None from a rank that contributes nothing

# Up to this size, a second hop through a shard costs more time than it saves in bytes.
SMALL_BYTES = 8 << 10


def exchange_slices(
    name: str | None,
    terms: Terms,
    sources: Sequence[Array] | None,
    targets: Sequence[Array] | None,
    finish: Callable[[], Any],
    *,
    group: Group,
) -> int:
    """Start a call whose slices the shards sum or copy; `synchronize` returns the result of `finish`.

    Without `sources` this rank contributes nothing; without `targets` it receives nothing.  Both may be the same
    arrays.
    """
    received: list[tuple[Slice, Array]] = []

    def contribute(slices: Sequence[Slice], answer: Answer) -> list[Contribution]:
        contributions = []
        for item in slices:
            source = None if sources is None else gather_segments(item, sources)
            target: Array | None = None
            if targets is not None:
                # A fused slice is a copy, so its result can replace it.
                target = source if source is not None and item.is_fused else gather_segments(item, targets)
                received.append((item, target))
            present = (1 << len(item.ranges)) - 1 if source is not None else 0
            contributions.append(Contribution(item.spec.key, source, target, present, answer))
        return contributions

    def end() -> Any:
        for item, memory in received:
            assert targets is not None
            scatter_segments(item, memory, targets)
        return finish()

    return handles.start(name, terms, contribute, end, group=group)


def exchange_blobs(
    name: str | None,
    terms: Terms,
    blobs: Sequence[Array | None],
    read: Callable[[Blobs], Any],
    finish: Callable[[Any], Any] = lambda result: result,
    *,
    group: Group,
) -> int:
    """Start a call that sends one blob to all ranks, or one to each; `synchronize` returns `finish(read(received))`.

    `read` gets the blobs of all ranks; their memory is released before `finish` is called.
    """
    contributions: list[Contribution] = []

    def contribute(slices: Sequence[Slice], answer: Answer) -> list[Contribution]:
        for item, blob in zip(slices, blobs, strict=True):
            source = blob if blob is not None and blob.size else None
            contributions.append(Contribution(item.spec.key, source, None, int(blob is not None), answer))
        return contributions

    def end() -> Any:
        own = contributions[group.rank if len(blobs) > 1 else 0]
        empty = np.empty(0, np.uint8)
        try:
            result = read(
                [(empty if each.array is None else each.array) if each.present else None for each in own.gathered]
            )
        finally:
            release_gathered(group, [own])
            own.gathered = ()
        return finish(result)

    return handles.start(name, terms, contribute, end, group=group)
