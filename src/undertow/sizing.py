"""Sizes of slices: as given, or chosen to fit the model and the link.

In: what the user allows, the bytes of a model, the measured rate of the links.  Out: bytes.
Pure; the same on all ranks, because all use rank 0's limits.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from undertow.decoding import Seconds

# Small slices suit priorities: an urgent slice waits for those in flight.  Large ones suit the engine: a message costs
# the same whatever its size.  P3 (MLSys 2019) found the best size near 200 KB on 4 Gbit/s, which is 0.4 ms; with this
# engine in Python the lab found it near 2 ms.
TIME_S = 0.002  # that the link needs for a slice
ALIGNMENT = 16  # bytes: a whole number of any element
SLICES_PER_SHARD = 4
MOST_FINER = 8  # times smaller than what fits the link, to have SLICES_PER_SHARD
MOST_SLICES = 384
UNSLICED_BYTES = 1 << 36  # larger than any tensor: every tensor travels whole
# Each way of a peer's link has one slice waiting and one on its way, so that both carry data all the time.  With half
# of this credit a link of 2 to 4 Gbit/s is idle for a tenth of the time.
CREDIT_SLICES_PER_PEER = 4
FEWEST_CREDIT_SLICES = 8
# With more an urgent slice only waits longer: in the simulator VGG19-22K on 32 hosts at 10 Gbit/s takes 1009 ms with
# twelve and 1084 with sixteen.
MOST_CREDIT_SLICES = 12
CREDIT_RULE = f"{CREDIT_SLICES_PER_PEER} slices per peer, at least {FEWEST_CREDIT_SLICES}, at most {MOST_CREDIT_SLICES}"


class Sizes(msgspec.Struct, frozen=True):
    """Limits of slices, in bytes."""

    # Given by the user, so that no other size is chosen; 0 if not.
    fixed: Annotated[int, msgspec.Meta(ge=0, le=UNSLICED_BYTES)] = 0
    # Below this a message costs more than it carries.
    smallest: Annotated[int, msgspec.Meta(ge=ALIGNMENT, le=UNSLICED_BYTES)] = 64 << 10
    largest: Annotated[int, msgspec.Meta(ge=4 * ALIGNMENT, le=UNSLICED_BYTES)] = 4 << 20
    time_s: Seconds = TIME_S

    @property
    def least(self) -> int:
        """The smallest size that is ever chosen, by which keys are reserved."""
        return self.fixed or self.smallest

    @property
    def start(self) -> int:
        """The size before anything is measured."""
        return self.fixed or align(self.largest // 4)

    def choose(self, total_bytes: int, *, shards: int, bytes_per_s: float | None = None) -> int:
        """Choose the size for a model of this many bytes, on links of this rate if it is known."""
        if self.fixed:
            return self.fixed
        if bytes_per_s is None:
            # One slice per shard at least, so that all links share the load.
            return max(self.smallest, min(self.start, _divide(total_bytes, shards)))
        # With a few slices per shard the links share the load evenly, but every host handles all slices, however many
        # hosts there are: in the simulator ResNet-50 on 64 hosts at 10 Gbit/s takes 1.6 times compute with one and 1.1
        # with four, but on 256 hosts with four more than with two.
        fine = min(align(int(bytes_per_s * self.time_s / MOST_FINER)), _divide(total_bytes, shards))
        share = max(fine, _divide(total_bytes, SLICES_PER_SHARD * shards), _divide(total_bytes, MOST_SLICES))
        return max(self.smallest, min(self.fit_link(bytes_per_s), share))

    def fit_link(self, bytes_per_s: float) -> int:
        """Return the size that such links carry in `time_s`."""
        return self.fixed or max(self.smallest, min(self.largest, align(int(bytes_per_s * self.time_s))))


def count_credit_slices(peers: int) -> int:
    """Return how many slices may be in flight, unless the user gives their bytes: see `CREDIT_RULE`."""
    return min(max(FEWEST_CREDIT_SLICES, CREDIT_SLICES_PER_PEER * peers), MOST_CREDIT_SLICES)


def _divide(total_bytes: int, slices: int) -> int:
    return align(-(-total_bytes // slices) + ALIGNMENT - 1)


def align(size_bytes: int) -> int:
    return size_bytes // ALIGNMENT * ALIGNMENT
