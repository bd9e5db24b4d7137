"""Sizes of slices: given by the user, or chosen to fit the model and the link.

In: the user's limits, the size of a model, the measured rate of the links.  Out: bytes.
Pure.  The result is the same on all ranks, because all use rank 0's limits.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from undertow.decoding import Seconds

# Small slices suit priorities, because an urgent slice waits for those in flight.  Large slices suit the engine,
# because a message costs the same whatever its size.  P3 (MLSys 2019) found the best size near 200 KB on 4 Gbit/s,
# which is 0.4 ms; with this engine in Python, the lab found it near 2 ms.
TIME_S = 0.002  # time that the link needs for a slice
ALIGNMENT = 16  # bytes; a multiple of the size of every element type
SLICES_PER_SHARD = 4
MOST_FINER = 8  # slices are at most this many times smaller than what fits the link, to have SLICES_PER_SHARD
MOST_SLICES = 384
UNSLICED_BYTES = 1 << 36  # larger than any tensor, so that every tensor is one slice
# Each direction of a peer's link has one slice waiting and one in flight, so that both carry data all the time.  With
# half of this credit, a link of 2 to 4 Gbit/s is idle for a tenth of the time.
CREDIT_SLICES_PER_PEER = 4
FEWEST_CREDIT_SLICES = 8
# With more credit an urgent slice only waits longer: in the simulator, a step of VGG19-22K on 32 hosts at 10 Gbit/s
# takes 1009 ms with twelve slices and 1084 ms with sixteen.
MOST_CREDIT_SLICES = 12
CREDIT_RULE = f"{CREDIT_SLICES_PER_PEER} slices per peer, at least {FEWEST_CREDIT_SLICES}, at most {MOST_CREDIT_SLICES}"


class Sizes(msgspec.Struct, frozen=True):
    """Limits of slices, in bytes."""

    # The only size, if the user has set it; else 0.
    fixed: Annotated[int, msgspec.Meta(ge=0, le=UNSLICED_BYTES)] = 0
    # For smaller slices the cost of a message exceeds that of its bytes.
    smallest: Annotated[int, msgspec.Meta(ge=ALIGNMENT, le=UNSLICED_BYTES)] = 64 << 10
    largest: Annotated[int, msgspec.Meta(ge=4 * ALIGNMENT, le=UNSLICED_BYTES)] = 4 << 20
    time_s: Seconds = TIME_S

    @property
    def least(self) -> int:
        """The smallest size that can be chosen, which determines the number of reserved keys."""
        return self.fixed or self.smallest

    @property
    def start(self) -> int:
        """The size before anything is measured."""
        return self.fixed or align(self.largest // 4)

    def choose(self, total_bytes: int, *, shards: int, bytes_per_s: float | None = None) -> int:
        """Choose the size for a model of this many bytes; `bytes_per_s` is the rate of the links, if known."""
        if self.fixed:
            return self.fixed
        if bytes_per_s is None:
            # At least one slice per shard, so that all links share the load.
            return max(self.smallest, min(self.start, _divide(total_bytes, shards)))
        # With several slices per shard the links share the load evenly, but every host handles all slices, and their
        # number grows with the number of hosts.  In the simulator, ResNet-50 on 64 hosts at 10 Gbit/s takes 1.6 times
        # compute with one slice per shard and 1.1 times with four; on 256 hosts four take longer than two.
        fine = min(align(int(bytes_per_s * self.time_s / MOST_FINER)), _divide(total_bytes, shards))
        share = max(fine, _divide(total_bytes, SLICES_PER_SHARD * shards), _divide(total_bytes, MOST_SLICES))
        return max(self.smallest, min(self.fit_link(bytes_per_s), share))

    def fit_link(self, bytes_per_s: float) -> int:
        """Return the size that links of this rate carry in `time_s`."""
        return self.fixed or max(self.smallest, min(self.largest, align(int(bytes_per_s * self.time_s))))


def count_credit_slices(peers: int) -> int:
    """Return the number of slices that may be in flight unless the user sets the credit in bytes: see `CREDIT_RULE`."""
    return min(max(FEWEST_CREDIT_SLICES, CREDIT_SLICES_PER_PEER * peers), MOST_CREDIT_SLICES)


def _divide(total_bytes: int, slices: int) -> int:
    return align(-(-total_bytes // slices) + ALIGNMENT - 1)


def align(size_bytes: int) -> int:
    return size_bytes // ALIGNMENT * ALIGNMENT
