"""What loaders and backward passes of one process tell each other about the part of a batch that is computed now.

In: parts that a loader hands out.  Out: their weight and size, for the backward pass that follows.
Who shares data, and how the ranks draw the same order, is for subclasses to say: a single-process script
(`script/plain.py`), or a script that asks for it (`distribution.py`).
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from undertow.core.decoding import Decoder
from undertow.runtime.group import Group
from undertow.torch.data.randomness import OwnNumbers, State, Stream, restore

_states: Decoder[State] = Decoder(State, "the random state of rank 0")


class Sharing(ABC):
    """The state of this process: the part of a batch that it computes, and the order of the data so far."""

    shares_sequential = False  # loaders that do not shuffle, too
    knows_ranks = False  # the script may call backward on one rank only, where no other is concerned

    def __init__(self, *, rank: int, size: int, is_split: bool, numbers: OwnNumbers) -> None:
        self.rank = rank
        self.size = size
        self.is_split = is_split
        self.numbers = numbers
        self.weight = 1.0  # of the part of a batch that is computed now
        self.samples: int | None = None  # in that part; 0: it counts for nothing; None: no part was handed out
        self.batch: int | None = None  # how many samples the loader of that part takes, if that is known
        self.waiting = 0  # parts that were handed out, and of which no backward has come
        self.is_mixed = False  # parts of different weights were handed out before one backward
        self.drawing: Stream | None = None  # what a sampler of the script's own draws from
        self._order = 0  # a digest of the batches of this epoch

    @property
    @abstractmethod
    def group(self) -> Group | None:
        """All ranks, while they share data."""

    @abstractmethod
    def shares(self) -> bool:
        """Whether loaders hand out shares now."""

    @abstractmethod
    def start_sharing(self, words: str) -> None:
        """A loader is about to hand out its shares, or says how many there are."""

    @abstractmethod
    def start_epoch(self) -> State:
        """Returns the numbers that all ranks draw the order of the data from: rank 0's."""

    @abstractmethod
    def end_epoch(self) -> None:
        """All parts have been handed out."""

    @abstractmethod
    def say(self, words: str) -> None:
        """Tell the user, once, on one rank."""

    def count_whole(self) -> None:  # noqa: B027  # of interest to those only that share later
        """A loader that may be shared later was asked how many batches it has."""

    def start_backward(self, outputs: Sequence[Any]) -> None:
        """The gradients of these are computed: of the part that was handed out last, as far as anybody knows."""
        self.waiting = max(0, self.waiting - 1)
        if self.is_mixed:
            self.say(
                "a batch is fetched before the one before it is computed: the batch before a smaller last one gets "
                "that one's weight; drop_last=True leaves the smaller one out"
            )

    def note_order(self, batch: object) -> None:
        """These samples come next, on all ranks together."""
        self._order = zlib.crc32(repr(batch).encode(), self._order)

    def take_order(self) -> int:
        """Returns a digest of the batches of this epoch, which is over."""
        if not self.waiting:  # else the last part is computed after the loader has ended
            self.weight, self.samples = 1.0, None
        self.waiting = 0
        order, self._order = self._order, 0
        return order

    def _resume_drawing(self) -> None:
        """What a sampler has drawn for itself, the script has drawn."""
        if self.drawing is not None:
            restore(self.drawing.state)
            self.drawing = None


def copy_from_first(group: Group, state: State) -> State:
    """Returns rank 0's state on all ranks."""
    payload = msgspec.msgpack.encode(state) if group.rank == 0 else b""
    return _states.decode(group.agree("copy", payload))
