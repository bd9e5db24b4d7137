"""A table: tensors that are synchronised together, and the slices that carry them.

In: the names, shapes and types of the tensors, the same on all ranks.
Out: for each tensor either its own slices, or its place in a fused one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from undertow.core.rounds import Op
from undertow.plan.slicing import Slice, TensorSpec
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
        self.slices = group.register(label, self.specs, op=op)
        self.places = [Place() for _ in self.specs]
        for item in self.slices:
            self._assign(item)

    def _assign(self, item: Slice) -> None:
        for bit, part in enumerate(item.parts):
            place = self.places[part.tensor]
            if item.is_fused:
                place.fused, place.bit = item, bit
            else:
                place.slices.append(item)
