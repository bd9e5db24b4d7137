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


class _SlicedTransfer:
    """A transfer of arrays that the shards sum or copy."""

    def __init__(self, sources: Sequence[Array] | None, targets: Sequence[Array] | None) -> None:
        self._sources = sources
        self._targets = targets
        self._fused: list[tuple[Slice, Array]] = []  # results that are not unpacked yet

    def contribute(self, slices: Sequence[Slice], answer: Answer) -> list[Contribution]:
        return [self._contribute(item, answer) for item in slices]

    def _contribute(self, item: Slice, answer: Answer) -> Contribution:
        source = None if self._sources is None else gather_segments(item, self._sources)
        target: Array | None = None
        if self._targets is not None and item.is_fused:
            target = np.empty(item.spec.elements, item.spec.dtype.numpy) if source is None else source
            self._fused.append((item, target))
        elif self._targets is not None:
            target = gather_segments(item, self._targets)  # a view
        present = (1 << len(item.ranges)) - 1 if source is not None else 0
        return Contribution(item.spec.key, source, target, present, answer)

    def land(self) -> None:
        """Put the results, all of which have arrived, into the targets."""
        for item, memory in self._fused:
            assert self._targets is not None
            scatter_segments(item, memory, self._targets)
        self._fused = []


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
    transfer = _SlicedTransfer(sources, targets)

    def end() -> Any:
        transfer.land()
        return finish()

    return handles.start(name, terms, transfer.contribute, end, group=group)


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
