"""How large a slice is: as given, or to fit the model and the link.

In: what the user allows, the bytes of a model, the measured rate of the links.  Out: bytes.
Pure; the same on all ranks, because rank 0's limits are everyone's.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from undertow.core.decoding import Seconds

# Priority wants small slices: an urgent one waits for those in flight.  A message costs the same
# whatever its size, and wants large ones.  P3 (MLSys 2019) found the best near 200 KB on 4 Gbit/s, 0.4 ms;
# here, with a Python engine, the lab found it near 2 ms.
TIME_S = 0.002  # seconds of the link
ALIGNMENT = 16  # bytes: a whole number of any element
SLICES_PER_SHARD = 4
MOST_FINER = 8  # than what the link asks for, to have so many
MOST_SLICES = 384
UNSLICED_BYTES = 1 << 36  # larger than any tensor: every tensor travels whole


class Sizes(msgspec.Struct, frozen=True):
    """What slices may be, in bytes."""

    # Given by the user: no other is ever chosen; 0 if not.
    fixed: Annotated[int, msgspec.Meta(ge=0, le=UNSLICED_BYTES)] = 0
    # Below this a message costs more than it carries.
    smallest: Annotated[int, msgspec.Meta(ge=ALIGNMENT, le=UNSLICED_BYTES)] = 64 << 10
    largest: Annotated[int, msgspec.Meta(ge=4 * ALIGNMENT, le=UNSLICED_BYTES)] = 4 << 20
    time_s: Seconds = TIME_S

    @property
    def least(self) -> int:
        """No slice is ever meant to be smaller: what keys are set aside by."""
        return self.fixed or self.smallest

    @property
    def start(self) -> int:
        """Before anything is measured."""
        return self.fixed or align(self.largest // 4)

    def choose(self, total_bytes: int, *, shards: int, bytes_per_s: float | None = None) -> int:
        """For a model of so many bytes, on links of this rate if it is known."""
        if self.fixed:
            return self.fixed
        if bytes_per_s is None:
            # One slice per shard at least, so that all links share the load.
            return max(self.smallest, min(self.start, _divide(total_bytes, shards)))
        # With a few per shard they share it alike, but every host has all slices to handle, however many hosts there
        # are: in the simulator ResNet-50 on 64 hosts at 10 Gbit/s takes 1.6 times compute with one and 1.1 with four,
        # but on 256 hosts with four more than with two.
        fine = min(align(int(bytes_per_s * self.time_s / MOST_FINER)), _divide(total_bytes, shards))
        share = max(fine, _divide(total_bytes, SLICES_PER_SHARD * shards), _divide(total_bytes, MOST_SLICES))
        return max(self.smallest, min(self.fit_link(bytes_per_s), share))

    def fit_link(self, bytes_per_s: float) -> int:
        """As large as such links alone ask for."""
        return self.fixed or max(self.smallest, min(self.largest, align(int(bytes_per_s * self.time_s))))


def _divide(total_bytes: int, slices: int) -> int:
    return align(-(-total_bytes // slices) + ALIGNMENT - 1)


def align(size_bytes: int) -> int:
    return size_bytes // ALIGNMENT * ALIGNMENT
