"""State shared by the loaders and backward passes of one process: the share of a batch that is being computed.

In: shares that a loader hands out.  Out: their weight and size, for the backward pass that follows.
Subclasses decide when data is shared and how all ranks draw the same order: one for single-process scripts
(`script/single_process.py`), one for scripts that call `undertow.torch.distribute` (`distribution.py`).
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from undertow.decoding import Decoder
from undertow.engine.interface import Group
from undertow.torch.data.randomness import ComputeStream, RandomState, RandomStream, restore

_states: Decoder[RandomState] = Decoder(RandomState, "the random state of rank 0")


class DataSharing(ABC):
    """The shared data of this process: the share of a batch that it computes, and the order of the data so far."""

    # Whether the script knows of ranks: then it chooses the loaders to share, even those that do not shuffle, and may
    # call backward on one rank only, without involving the others.
    knows_ranks = False

    def __init__(self, *, rank: int, size: int, is_split: bool, numbers: ComputeStream) -> None:
        self.rank = rank
        self.size = size
        self.is_split = is_split
        self.numbers = numbers
        self.weight = 1.0  # of the share that is being computed
        self.samples: int | None = None  # in that share; 0 if its weight is 0; None if no share was handed out
        self.batch: int | None = None  # the batch size of that share's loader, if known
        self.waiting = 0  # shares that were handed out but have had no backward pass yet
        self.is_mixed = False  # shares of different weights were handed out before one backward pass
        self.drawing: RandomStream | None = None  # the numbers that the script's own sampler draws
        self._order = 0  # a digest of the batches of this epoch

    @property
    @abstractmethod
    def group(self) -> Group | None:
        """The group of all ranks, while they share data."""

    @abstractmethod
    def shares(self) -> bool:
        """Return whether loaders currently hand out shares."""

    @abstractmethod
    def start_sharing(self, description: str) -> None:
        """Note that a loader is about to hand out shares or to report their number."""

    @abstractmethod
    def start_epoch(self) -> RandomState:
        """Return rank 0's random state, from which all ranks draw the order of the data."""

    @abstractmethod
    def end_epoch(self) -> None:
        """Check that the ranks agree, after all shares have been handed out."""

    @abstractmethod
    def announce(self, message: str) -> None:
        """Show a message to the user, once and on one rank."""

    def note_whole_length(self) -> None:  # noqa: B027  # optional
        """Note that the script has read the length of a loader that may be shared later."""

    def start_backward(self, outputs: Sequence[Any]) -> None:
        """Note a backward pass from these outputs, presumably for the share that was handed out last."""
        self.waiting = max(0, self.waiting - 1)
        if self.is_mixed:
            self.announce(
                "the script fetches a batch before it has computed the previous one, so the batch before a smaller "
                "last batch gets the weight of the smaller one: use drop_last=True to leave the smaller batch out"
            )

    def note_order(self, batch: object) -> None:
        """Add the next batch, which is the same on all ranks, to the digest of this epoch."""
        self._order = zlib.crc32(repr(batch).encode(), self._order)

    def take_order(self) -> int:
        """Return the digest of the batches of the epoch that has ended."""
        if not self.waiting:  # otherwise the last share is computed after the loader has ended
            self.weight, self.samples = 1.0, None
        self.waiting = 0
        order, self._order = self._order, 0
        return order

    def _resume_drawing(self) -> None:
        """Advance the script's generators past the numbers that its own sampler has drawn."""
        if self.drawing is not None:
            restore(self.drawing.state)
            self.drawing = None


def copy_from_first(group: Group, state: RandomState) -> RandomState:
    """Return rank 0's state on all ranks."""
    payload = msgspec.msgpack.encode(state) if group.rank == 0 else b""
    return _states.decode(group.agree("copy", payload))
