"""How large a slice is: as given, or to fit the model and the link.

In: what the user allows, the bytes of a model, the measured rate of the links.  Out: bytes.
Pure; the same on all ranks, because rank 0's limits are everyone's.
"""

from __future__ import annotations

import msgspec

# Priority wants small slices: an urgent one waits for those in flight.  A message costs the same
# whatever its size, and wants large ones.  P3 (MLSys 2019) found the best near 200 KB on 4 Gbit/s, 0.4 ms;
# here, with a Python engine, the lab found it near 2 ms.
TIME_S = 0.002  # seconds of the link
ALIGNMENT = 16  # bytes: a whole number of any element


class Sizes(msgspec.Struct, frozen=True):
    """What slices may be, in bytes."""

    fixed: int = 0  # given by the user: no other is ever chosen; 0 if not
    smallest: int = 64 << 10  # below this a message costs more than it carries
    largest: int = 4 << 20
    time_s: float = TIME_S

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
        wished = self.start if bytes_per_s is None else min(self.largest, align(int(bytes_per_s * self.time_s)))
        # One slice per shard at least, so that all links share the load.
        share = align(-(-total_bytes // shards) + ALIGNMENT - 1)
        return max(self.smallest, min(wished, share))


def align(size_bytes: int) -> int:
    return size_bytes // ALIGNMENT * ALIGNMENT
