"""Terms of a call that all ranks make under the same name.

In: the tensors of the call and the route that they take.  Out: the slices that carry them, the same on
all ranks, and a description of the difference between the terms of two ranks.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping

import msgspec

from undertow.decoding import Rank
from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import EVERYONE, KeySpec, Op
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import MOST_KEYS, Cut, Placement, Slice, TensorSpec, count_slices, cut
from undertow.errors import Garbled, MismatchError

MOST_SLICES = 1 << 20  # in one call: 1 TB in slices of 1 MB, which take seconds to lay out


class Route(enum.IntEnum):
    """Route that the bytes of a call take."""

    SLICES = 0  # in slices to the shards, which sum or copy them
    EVERYONE = 1  # unchanged, of any length, to every rank
    EACH = 2  # unchanged, of any length; each rank receives only what is addressed to it
    NOWHERE = 3  # no bytes: the call is a barrier


class Disagreement(msgspec.Struct, frozen=True):
    """A difference between ranks, as the coordinator reports it to all of them."""

    message: str
    matter: str = ""  # the call or table in which the ranks differ
    tensor: str = ""  # the first tensor that differs
    ranks: tuple[Rank, ...] = ()

    def make_error(self) -> MismatchError:
        return MismatchError(self.message, matter=self.matter, tensor=self.tensor, ranks=self.ranks)


class Terms(msgspec.Struct, frozen=True):
    """Description of a call, which must be the same on all ranks."""

    kind: str  # name of the operation
    route: Route
    op: Op = Op.GATHER
    tensors: list[TensorSpec] = []
    details: str = ""  # description of everything else that must be the same
    allows_absent: bool = False  # ranks that ran out of input may contribute nothing

    @property
    def signature(self) -> Hashable:
        """Signature of calls.  Calls with the same signature can use the same keys in succession."""
        if self.route is not Route.SLICES:
            return self.route
        return self.op, tuple((tensor.elements, tensor.dtype) for tensor in self.tensors)

    @property
    def size_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)


def lay_out(terms: Terms, how: Cut, shape: Shape) -> list[Slice]:
    """Return the slices that carry such a call in a group of this shape.

    The slices of each call are placed independently of everything else, because the ranks learn of calls and of other
    tables in different orders.  Raises `Garbled` if there would be more slices than any valid call has.
    """
    slices = count_slices(terms.tensors, how.slice_bytes) if terms.route is Route.SLICES else 0
    if slices > MOST_SLICES or how.first_key + slices > MOST_KEYS:
        raise Garbled(f"a call with {terms.size_bytes} bytes of tensors in {slices} slices is not possible")
    match terms.route:
        case Route.NOWHERE:
            return []
        case Route.SLICES:
            placement = Placement(shape.owners, start=how.first_key % shape.shards)
            return cut(terms.tensors, how, op=terms.op, placement=placement)
        case Route.EVERYONE:
            return [_gathered(how.first_key, EVERYONE)]
        case Route.EACH:
            return [_gathered(how.first_key + rank, rank) for rank in range(shape.workers)]


def _gathered(key: int, owner: int) -> Slice:
    return Slice(KeySpec(key, 0, DType.BYTES, Op.GATHER, owner), ())


def find_difference(name: str, terms: Mapping[int, Terms]) -> Disagreement | None:
    """Return the first difference between the ranks that make this call."""
    first = min(terms)
    ours = terms[first]
    for rank, theirs in sorted(terms.items()):
        if ours == theirs:
            continue
        if ours.kind != theirs.kind:
            text = f"ranks do different things in {name!r}: rank {first} calls {ours.kind}, rank {rank} {theirs.kind}"
            return Disagreement(text, name, ranks=(first, rank))
        tensor, difference = _compare(ours, theirs)
        text = f"ranks {first} and {rank} differ in {ours.kind} {name!r}: {difference}"
        return Disagreement(text, name, tensor, (first, rank))
    return None


def _compare(ours: Terms, theirs: Terms) -> tuple[str, str]:
    """Return the tensor in which two calls of one kind differ, or an empty string, and a description."""
    for mine, other in zip(ours.tensors, theirs.tensors, strict=False):
        if mine != other:
            return mine.name, f"{mine} against {other}"
    if len(ours.tensors) != len(theirs.tensors):
        return "", f"{len(ours.tensors)} tensors against {len(theirs.tensors)}"
    if ours.details != theirs.details:
        return "", f"{ours.details} against {theirs.details}"
    return "", f"{ours.route.name} {ours.op.name} against {theirs.route.name} {theirs.op.name}"
