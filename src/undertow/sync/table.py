"""A table: tensors that are synchronised together, and the slices that carry them.

In: the names, shapes and types of the tensors, the same on all ranks.
Out: for each tensor its own slices, or its segment of a fused slice.  A table can be sliced again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from undertow.engine.client.discarding import discard_with
from undertow.engine.core.rounds import Array, Op
from undertow.engine.core.slicing import Chunking, Cut, Placement, Slice, TensorSpec, count_keys, cut
from undertow.engine.interface import Group


class TableKeys:
    """The keys of one table, which are discarded when the last reference to this object is gone."""

    def __init__(self, group: Group, keys: range) -> None:
        if keys:
            discard_with(self, group.discard, keys)


class Layout:
    """One division of a table's tensors into slices.  Its keys are in use as long as it or its table exists."""

    def __init__(self, slices: Sequence[Slice], tensors: int, keys: TableKeys) -> None:
        self.slices = slices
        self._table_keys = keys
        self.own_slices: list[list[Slice]] = [
            [] for _ in range(tensors)
        ]  # of each tensor; none if it is fused or empty
        for item in slices:
            if not item.is_fused:
                self.own_slices[item.ranges[0].tensor].append(item)


class Table:
    """Tensors that are registered with all ranks when the table is created; raises `MismatchError` if ranks differ.

    The first layout always stays valid, beside the one in use.
    """

    def __init__(self, group: Group, label: str, specs: Sequence[TensorSpec], op: Op) -> None:
        self.specs = list(specs)
        # Three sets: one for the first layout, and two more so that a layout can be prepared while another is in use.
        self._keys = count_keys(self.specs, group.shape.sizes.least, group.shape.shards)
        slices = group.register(label, self.specs, op=op, keys=3 * self._keys)
        count = max(3 * self._keys, len(slices)) if slices else 0
        self._first_key = slices[0].spec.key if slices else 0
        self._table_keys = TableKeys(group, range(self._first_key, self._first_key + count))
        self.first = self.current = Layout(slices, len(self.specs), self._table_keys)
        self._group = group
        self._op = op
        self._label = label
        self._recuts = 0
        self._next: Layout | None = None

    @property
    def size_bytes(self) -> int:
        return sum(spec.size_bytes for spec in self.specs)

    def recut(self, slice_bytes: int, chunkings: Mapping[int, Chunking] | None = None) -> Layout:
        """Prepare another layout, for `change`; all ranks do so before the same pass."""
        self._recuts += 1
        first_key = self._first_key + self._keys * (1 + self._recuts % 2)
        placement = Placement(self._group.shape.owners, start=self._first_key)
        slices = cut(self.specs, Cut(first_key, slice_bytes), op=self._op, placement=placement, chunkings=chunkings)
        self._group.learn(slices, label=self._label, tensors=self.specs)
        self._next = Layout(slices, len(self.specs), self._table_keys)
        return self._next

    def change(self) -> None:
        """Use the layout that `recut` prepared, one pass later.

        By then all ranks know it: this rank has received the results of the previous pass, to which every rank
        contributed after it had prepared the layout.
        """
        assert self._next is not None
        self.current, self._next = self._next, None


def view_slice(item: Slice, array: Array) -> Array:
    """Return the elements of a slice of one tensor, as a view of the tensor's array."""
    [part] = item.ranges
    return array[part.offset : part.offset + part.elements]


def gather_segments(item: Slice, arrays: Sequence[Array]) -> Array:
    """Return the slice's elements: a view if they belong to one tensor, a copy if the slice is fused."""
    segments = [arrays[part.tensor][part.offset : part.offset + part.elements] for part in item.ranges]
    return np.concatenate(segments) if item.is_fused else segments[0]


def scatter_segments(item: Slice, memory: Array, arrays: Sequence[Array]) -> None:
    """Copy the elements of a fused slice back into its tensors; other slices are views already."""
    if item.is_fused:
        for part in item.ranges:
            arrays[part.tensor][part.offset : part.offset + part.elements] = memory[part.at : part.at + part.elements]
