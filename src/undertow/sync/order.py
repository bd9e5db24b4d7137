"""The order in which a forward pass uses tensors: gradients that are needed first are sent first.

In: the tensors that a forward pass is about to use, as any hashable identity.  Out: their positions in the order of
first use.  A tensor that has not been used yet has its position in the model.  Graphs may change from step to step: the
latest forward pass predicts the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence

from undertow.plan.slice_plan import prioritise

# The priority of transfers that a forward pass waits for: before any gradient.
URGENT = -1
# Numbers the backward passes of all models of this process.
_passes = itertools.count(1)


class UseOrder:
    """The order in which one model uses its tensors.  For the training thread only."""

    def __init__(self, tensors: Iterable[Hashable]) -> None:
        self._positions = {tensor: position for position, tensor in enumerate(tensors)}
        self._used: set[Hashable] = set()  # in the current forward pass
        self._pass = 0

    def use(self, tensors: Iterable[Hashable]) -> None:
        """Record that a forward pass is about to read these tensors."""
        for tensor in tensors:
            if tensor not in self._used:
                self._positions[tensor] = len(self._used)
                self._used.add(tensor)

    def end_pass(self) -> None:
        """End the forward pass: tensors used after this call belong to the next one."""
        self._used.clear()

    def begin_backward(self) -> None:
        """Begin a backward pass, whose gradients are less urgent than those of all earlier passes."""
        self.end_pass()
        self._pass = next(_passes)

    def prioritise(self, tensors: Sequence[Hashable]) -> list[int]:
        """Return the priorities of these tensors' gradients in the backward pass that has begun."""
        return [prioritise(self._pass, position) for position in self.positions(tensors)]

    def positions(self, tensors: Sequence[Hashable]) -> list[int]:
        """Return the position of each tensor in the order of use; unknown tensors come last."""
        last = len(self._positions)
        return [self._positions.get(tensor, last) for tensor in tensors]
