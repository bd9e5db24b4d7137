"""Switches a model from one plan to the next: cuts new slices, and makes layers hand over factors.

In: schemes and a slice size, the same on all ranks.  Out: a layout that is prepared in one pass and used in the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from undertow.engine.core.slicing import Chunking
from undertow.engine.interface import Group
from undertow.plan.scheme import Scheme
from undertow.plan.slice_plan import SlicePlan
from undertow.sync.gradient_table import GradientTable
from undertow.sync.slot import FactorSlot


class _NextLayout(NamedTuple):
    table: GradientTable
    factored: dict[int, FactorSlot[Any, Any]]
    allreduced: list[int]


class PlanSwitch:
    """The switch of one model's tables from the slice plan in force to the next one."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._next: SlicePlan | None = None
        self._layouts: list[_NextLayout] = []
        self._layer_changes: list[Callable[[], None]] = []  # applied when the next forward pass begins

    @property
    def is_prepared(self) -> bool:
        return self._next is not None

    def prepare(self, slice_plan: SlicePlan, tables: Sequence[GradientTable]) -> None:
        """Make the new slices known, and let layers hand over their factors from the next forward pass."""
        self._next = slice_plan
        self._layouts = [self._prepare_table(slice_plan, table) for table in tables]

    def _prepare_table(self, slice_plan: SlicePlan, gradients: GradientTable) -> _NextLayout:
        layout = _NextLayout(gradients, {}, [])
        cuts: dict[int, Chunking] = {}
        least_bytes = self._group.shape.sizes.least
        for index, spec in enumerate(gradients.table.specs):
            chunking = slice_plan.choose_chunking(spec, least_bytes=least_bytes, shards=self._group.shape.shards)
            if chunking is None:
                continue
            if slice_plan.schemes[spec.name] is Scheme.ALLREDUCE:
                if gradients.can_allreduce(index):
                    layout.allreduced.append(index)
                    cuts[index] = chunking
            elif (slot := gradients.find_factor_slot(index)) is not None:
                layout.factored[index] = slot
                self._layer_changes.append(slot.attach)
                cuts[index] = chunking
        gradients.table.recut(slice_plan.slice_bytes, cuts)
        return layout

    def change_layers(self) -> None:
        """Change layers at the beginning of a forward pass.

        Not earlier: activation checkpointing repeats the forward during backward, with the layers of that forward.
        """
        for change in self._layer_changes:
            change()
        self._layer_changes = []

    def change(self) -> SlicePlan:
        """Use the prepared layouts; return the slice plan in force.

        A layer whose factors are no longer needed computes its gradient in its own backward.
        """
        assert self._next is not None
        for gradients, factored, allreduced in self._layouts:
            gradients.change_layout(factored, allreduced)
            slots = [gradients.find_factor_slot(index) for index in range(len(gradients)) if index not in factored]
            self._layer_changes += [slot.detach for slot in slots if slot is not None]
        self._group.resize(self._next.credited_bytes)
        slice_plan, self._next, self._layouts = self._next, None, []
        return slice_plan
