"""What one rank says of a call that all ranks make under the same name.

In: the tensors of the call and the way they travel.  Out: the slices that carry them, the same on
all ranks, and in words what differs between the terms of two ranks.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping

import msgspec

from undertow.core.dtypes import DType
from undertow.core.rounds import EVERYONE, KeySpec, Op
from undertow.errors import Garbled
from undertow.plan.placement import Placement
from undertow.plan.slicing import MOST_KEYS, Cut, Slice, TensorSpec, count_slices, cut

MOST_SLICES = 1 << 20  # of one call: 1 TB in slices of 1 MB, which take seconds to lay out


class Route(enum.IntEnum):
    """Which way the bytes of a call take."""

    SLICES = 0  # in slices to the shards, which sum or copy them for all
    EVERYONE = 1  # as they are, of any length, to everyone
    EACH = 2  # the same, but each rank gets only what all have for it
    NOWHERE = 3  # nothing travels: the ranks only come together


class Terms(msgspec.Struct, frozen=True):
    """All of it must be the same on all ranks."""

    kind: str  # what is done, in a word
    route: Route
    op: Op = Op.GATHER
    tensors: list[TensorSpec] = []
    details: str = ""  # what else must be the same, in words
    allows_absent: bool = False  # ranks that ran out of input may take part with nothing

    @property
    def signature(self) -> Hashable:
        """Calls with the same one can use the same keys, one after the other."""
        if self.route is not Route.SLICES:
            return self.route
        return self.op, tuple((tensor.elements, tensor.dtype) for tensor in self.tensors)

    @property
    def size_bytes(self) -> int:
        return sum(tensor.elements * tensor.dtype.numpy.itemsize for tensor in self.tensors)


def lay_out(terms: Terms, how: Cut, size: int) -> list[Slice]:
    """The slices that carry such a call among `size` ranks.

    Ranks learn of calls in no common order with anything else: so every set of slices is placed for itself.
    Raises `Garbled` if there would be more of them than any honest call has.
    """
    slices = count_slices(terms.tensors, how.slice_bytes) if terms.route is Route.SLICES else 0
    if slices > MOST_SLICES or how.first_key + slices > MOST_KEYS:
        raise Garbled(f"a call with {terms.size_bytes} bytes of tensors in {slices} slices is not possible")
    match terms.route:
        case Route.NOWHERE:
            return []
        case Route.SLICES:
            return cut(terms.tensors, how, op=terms.op, placement=Placement(size, start=how.first_key % size))
        case Route.EVERYONE:
            return [_gathered(how.first_key, EVERYONE)]
        case Route.EACH:
            return [_gathered(how.first_key + rank, rank) for rank in range(size)]


def _gathered(key: int, shard: int) -> Slice:
    return Slice(KeySpec(key, 0, DType.BYTES, Op.GATHER, shard), ())


def find_difference(name: str, terms: Mapping[int, Terms]) -> str:
    """The first difference between the ranks that make this call, in words; empty if there is none."""
    first = min(terms)
    ours = terms[first]
    for rank, theirs in sorted(terms.items()):
        if ours.kind != theirs.kind:
            return f"ranks do different things in {name!r}: rank {first} calls {ours.kind}, rank {rank} {theirs.kind}"
        between = f"ranks {first} and {rank} differ in {ours.kind} {name!r}: "
        for mine, other in zip(ours.tensors, theirs.tensors, strict=False):
            if mine != other:
                return between + f"{mine} against {other}"
        if len(ours.tensors) != len(theirs.tensors):
            return between + f"{len(ours.tensors)} tensors against {len(theirs.tensors)}"
        if ours.details != theirs.details:
            return between + f"{ours.details} against {theirs.details}"
        if ours != theirs:
            return between + f"{ours.route.name} {ours.op.name} against {theirs.route.name} {theirs.op.name}"
    return ""
