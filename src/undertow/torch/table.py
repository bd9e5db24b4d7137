"""A table: tensors that are synchronised together, and the slices that carry them.

In: the names, shapes and types of the tensors, the same on all ranks.
Out: for each tensor either its own slices, or its place in a fused one.  They can be cut anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from undertow.core.rounds import Op
from undertow.plan.placement import Placement
from undertow.plan.slicing import Cut, Slice, TensorSpec, Way, count_keys, cut
from undertow.runtime.discarding import discard_with
from undertow.runtime.group import Group


@dataclass(slots=True)
class Place:
    """Where one tensor travels: alone in `slices`, or as bit `bit` of the fused slice."""

    slices: list[Slice] = field(default_factory=list)
    fused: Slice | None = None
    bit: int = 0


class TableKeys:
    """The keys of one table, which are discarded when nothing refers to this any more."""

    def __init__(self, group: Group, keys: range) -> None:
        if keys:
            discard_with(self, group, keys)


class Layout:
    """One way to cut the tensors of a table.  Its keys stay in use as long as it or its table is there."""

    def __init__(self, slices: Sequence[Slice], tensors: int, keys: TableKeys) -> None:
        self.slices = slices
        self._table_keys = keys
        self.places = [Place() for _ in range(tensors)]
        for item in slices:
            for bit, part in enumerate(item.parts):
                place = self.places[part.tensor]
                if item.is_fused:
                    place.fused, place.bit = item, bit
                else:
                    place.slices.append(item)


class Table:
    """Registered with all ranks when made; raises `MismatchError` if they differ.

    The first layout stays for good, beside whichever is in use.
    """

    def __init__(self, group: Group, label: str, specs: Sequence[TensorSpec], op: Op) -> None:
        self.specs = list(specs)
        # Three sets: while one of two is in use, another cut can be made known to all with the other.
        self._keys = count_keys(self.specs, group.sizes.least, group.size)
        slices = group.register(label, self.specs, op=op, keys=3 * self._keys)
        count = max(3 * self._keys, len(slices)) if slices else 0
        self._first_key = slices[0].spec.key if slices else 0
        self._table_keys = TableKeys(group, range(self._first_key, self._first_key + count))
        self.first = self.current = Layout(slices, len(self.specs), self._table_keys)
        self._group = group
        self._op = op
        self._label = label
        self._sets = 0  # how many cuts there have been after the first
        self._next: Layout | None = None

    @property
    def size_bytes(self) -> int:
        return sum(spec.elements * spec.dtype.numpy.itemsize for spec in self.specs)

    def recut(self, slice_bytes: int, ways: Mapping[int, Way] | None = None) -> Layout:
        """Make another layout known, for `change`; all ranks do so before the same pass."""
        self._sets += 1
        first_key = self._first_key + self._keys * (1 + self._sets % 2)
        placement = Placement(self._group.size, start=self._first_key)
        slices = cut(self.specs, Cut(first_key, slice_bytes), op=self._op, placement=placement, ways=ways)
        self._group.note_names(self._label, self.specs, slices)
        self._group.learn(slices)
        self._next = Layout(slices, len(self.specs), self._table_keys)
        return self._next

    def change(self) -> None:
        """Use it, one pass later.

        By then everybody knows it: whoever comes here has the results of the pass before, to which
        all have contributed after they had learned.
        """
        assert self._next is not None
        self.current, self._next = self._next, None
