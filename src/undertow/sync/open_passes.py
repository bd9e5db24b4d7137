"""The backward passes that are open at the same time, each of another wrapper.

In: a wrapper's pass begins; it ends.  Out: which of two passes over the same tensors comes second, and which passes
end together.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from typing import Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary


class PassOwner(Protocol):
    """Owner of one wrapper's passes, of which one is open at a time."""

    @property
    def members(self) -> AbstractSet[Hashable]:
        """The tensors whose gradients its passes send."""


Owner = TypeVar("Owner", bound=PassOwner)


class OpenPass(NamedTuple):
    """An open pass of one owner."""

    backward: int  # the framework's number of the backward that it is
    is_late: bool


class OpenPasses(Generic[Owner]):
    """The open passes of one process, in the order in which they began.

    Owners are referred to weakly, and their members not at all: a pass that an exception breaks off never ends, and a
    model that is discarded then would stay for good.
    """

    def __init__(self) -> None:
        self._passes: WeakKeyDictionary[Owner, OpenPass] = WeakKeyDictionary()

    def add(self, owner: Owner, backward: int) -> bool:
        """Begin a pass.  Return whether it is late: an open pass sends some of the same gradients.

        A late pass sends when its backward has ended, after the earlier one has put its results in place.
        """
        is_late = any(not owner.members.isdisjoint(other.members) for other in list(self._passes))
        self._passes[owner] = OpenPass(backward, is_late)
        return is_late

    def remove(self, owner: Owner) -> None:
        del self._passes[owner]

    def find_together(self, owner: Owner) -> list[Owner]:
        """Return the passes that end together with this one, itself included: those of the same backward.

        All of them send before one waits, because another rank may have met them in another order.  All results are
        here before one lands, because gradients may share memory with others that are still to be sent.  A late pass
        ends alone.
        """
        own = self._passes[owner]
        if own.is_late:
            return [owner]
        return [other for other, one in list(self._passes.items()) if one == own]

    def covers(self, member: Hashable) -> bool:
        """Return whether an open pass sends the gradient of this tensor."""
        return any(member in owner.members for owner in list(self._passes))
