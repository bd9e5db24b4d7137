"""The status report that a worker sends about once per second.

In: figures of the step meter.  Out: bytes for a datagram, and back.
Its names are chosen by the script, so readers must not trust them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated

import msgspec

from undertow.decoding import Count, Decoder, Rank

EVERY_S = 1.0
# Longer names are cut, so that a report fits into a datagram and a control message.
LONGEST_NAME = 200
# Views add up the figures of all ranks, and the sum must be finite as well.
Figure = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]


class Activity(enum.Enum):
    """Current activity of a worker."""

    STARTING = "starting"  # nothing was sent, and no pass has begun
    COMPUTING = "computing"
    WAITING = "waiting"
    ENDED = "ended"


class StatusReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures of one worker: rates and shares over the last seconds, counts since the start."""

    rank: Rank
    host: str
    sequence: Count
    uptime_s: Figure
    state: Activity
    stands_for: str = ""  # what it waits for right now, if anything
    stands_s: Figure = 0.0
    steps: Count = 0  # 0 where steps cannot be counted
    steps_per_s: Figure = 0.0
    waited_s: Figure = 0.0
    wait_share: Figure = 0.0
    waits_for: str = ""  # what caused most of the waiting
    wait_ms_per_step: Figure = 0.0
    turn_share: Figure = 0.0  # share of the time in which another job had the device
    layer: str = ""  # the slowest one
    layer_ms_per_step: Figure = 0.0
    bytes_out: Count = 0
    bytes_in: Count = 0
    out_bytes_per_s: Figure = 0.0
    in_bytes_per_s: Figure = 0.0
    link_bytes_per_s: Figure = 0.0  # each way, as measured; 0 if unknown


encode: Callable[[StatusReport], bytes] = msgspec.msgpack.Encoder().encode
_decoder: Decoder[StatusReport] = Decoder(StatusReport, "a status report")


def decode(data: bytes) -> StatusReport:
    """Decode a report; raise `Garbled` on anything else."""
    return _decoder.decode(data)
