"""The order in which a forward pass uses tensors: what is needed first travels first.

In: "these tensors are used now", by whatever identifies one in its framework.  Out: each one's position in the order of
first use.  Until a tensor has been used its position is that in which the model holds it.  A graph that changes from
step to step is followed: the latest forward pass is the best guess of the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence

from undertow.plan.slice_plan import prioritise

# The priority of what a forward pass waits for: before any gradient.
URGENT = -1
# The backward passes of all models of this process.
_passes = itertools.count(1)


class UseOrder:
    """The order in which one model's tensors are used.  For the training thread only."""

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
        """End the forward pass: tensors used from now on belong to the next one."""
        self._used.clear()

    def begin_backward(self) -> None:
        """Begin a backward pass, whose gradients are less urgent than those of all passes before it."""
        self.end_pass()
        self._pass = next(_passes)

    def prioritise(self, tensors: Sequence[Hashable]) -> list[int]:
        """Return the priorities of these tensors' gradients in the backward pass that has begun."""
        return [prioritise(self._pass, position) for position in self.positions(tensors)]

    def positions(self, tensors: Sequence[Hashable]) -> list[int]:
        """Return the position of each tensor, the earliest lowest; tensors that were never seen come last."""
        last = len(self._positions)
        return [self._positions.get(tensor, last) for tensor in tensors]
