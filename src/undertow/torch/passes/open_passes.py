"""The backward passes that are open at the same time, at most one per wrapper.

In: the beginning and the end of each wrapper's pass.  Out: which of two passes over the same tensors came second, and
which passes end together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch

if TYPE_CHECKING:
    from undertow.torch.passes.passes import Passes


class OpenPass(NamedTuple):
    """An open pass of one owner."""

    backward: int  # autograd's number of its backward
    is_late: bool


class OpenPasses:
    """The open passes of one process, in the order in which they began.

    Refers weakly to owners, and not at all to their members: a pass that is interrupted by an exception never ends, and
    would keep a discarded model in memory.
    """

    def __init__(self) -> None:
        self._passes: WeakKeyDictionary[Passes, OpenPass] = WeakKeyDictionary()

    def add(self, owner: Passes, backward: int) -> bool:
        """Begin a pass; return whether it is late, that is, whether an open pass sends some of the same gradients.

        A late pass sends its gradients after its backward has ended and the earlier pass has landed its results.
        """
        is_late = any(not owner.members.isdisjoint(other.members) for other in list(self._passes))
        self._passes[owner] = OpenPass(backward, is_late)
        return is_late

    def remove(self, owner: Passes) -> None:
        del self._passes[owner]

    def find_together(self, owner: Passes) -> list[Passes]:
        """Return the owners whose passes end together with this one, including itself: those of the same backward.

        All of them send before any waits, because other ranks may have begun them in a different order.  All results
        must have arrived before any lands, because gradients may share memory with others that are still to be sent.  A
        late pass ends alone.
        """
        own = self._passes[owner]
        if own.is_late:
            return [owner]
        return [other for other, one in list(self._passes.items()) if one == own]

    def covers(self, member: torch.Tensor) -> bool:
        """Return whether an open pass sends the gradient of this tensor."""
        return any(member in owner.members for owner in list(self._passes))
