"""A table: tensors that are synchronised together, and the slices that carry them.

In: the names, shapes and types of the tensors, the same on all ranks.
Out: for each tensor either its own slices, or its place in a fused one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from undertow.core.rounds import Op
from undertow.plan.placement import Placement
from undertow.plan.slicing import Cut, Slice, TensorSpec, count_slices, cut
from undertow.runtime.group import Group


@dataclass(slots=True)
class Place:
    """Where one tensor travels: alone in `slices`, or as bit `bit` of the fused slice."""

    slices: list[Slice] = field(default_factory=list)
    fused: Slice | None = None
    bit: int = 0


class Table:
    """Registered with all ranks when made; raises `MismatchError` if they differ."""

    def __init__(self, group: Group, label: str, specs: Sequence[TensorSpec], op: Op) -> None:
        self.specs = list(specs)
        # Two sets: while one is in use, another cut can be made known to all with the other.
        self._keys = count_slices(self.specs, group.sizes.smallest)
        self.slices = group.register(label, self.specs, op=op, keys=2 * self._keys)
        self.places = _find_places(self.slices, len(self.specs))
        self._group = group
        self._op = op
        self._first_key = self.slices[0].spec.key if self.slices else 0
        self._uses_second = False
        self._next: list[Slice] | None = None

    @property
    def size_bytes(self) -> int:
        return sum(spec.elements * spec.dtype.numpy.itemsize for spec in self.specs)

    def recut(self, slice_bytes: int) -> None:
        """Make other slices known, for `change`; all ranks do so before the same pass."""
        first_key = self._first_key + (0 if self._uses_second else self._keys)
        placement = Placement(self._group.size, start=self._first_key)
        how = Cut(first_key, slice_bytes)
        self._next = cut(self.specs, how, op=self._op, keep=False, placement=placement)
        self._group.learn(self._next)

    def change(self) -> None:
        """Use them, one pass later.

        By then everybody knows them: whoever comes here has the results of the pass before, to which
        all have contributed after they had learned.
        """
        assert self._next is not None
        self.slices, self._next = self._next, None
        self.places = _find_places(self.slices, len(self.specs))
        self._uses_second = not self._uses_second


def _find_places(slices: Sequence[Slice], tensors: int) -> list[Place]:
    places = [Place() for _ in range(tensors)]
    for item in slices:
        for bit, part in enumerate(item.parts):
            place = places[part.tensor]
            if item.is_fused:
                place.fused, place.bit = item, bit
            else:
                place.slices.append(item)
    return places
