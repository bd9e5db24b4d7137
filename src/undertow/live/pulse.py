"""A pulse: what one worker says of itself, about once per second.

In: figures of the gauge.  Out: bytes for a datagram, and back.
Whoever reads one must not trust its words: they are the script's own.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from undertow.core.decoding import Count, Decoder, Rank

EVERY_S = 1.0
# A datagram, and a control message, must hold it whatever a script calls its layers.
LONGEST_NAME = 200
# Views add figures up: the sum of all ranks' must be finite, too.
Figure = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]


class State(enum.Enum):
    """What a worker does at the moment."""

    STARTING = "starting"  # nothing was sent and no pass has begun
    COMPUTING = "computing"
    WAITING = "waiting"
    ENDED = "ended"


class Pulse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates and shares are of the last seconds; counts are since the start."""

    rank: Rank
    host: str
    sequence: Count
    uptime_s: Figure
    state: State
    stands_for: str = ""  # what it waits for right now
    stands_s: Figure = 0.0
    steps: Count = 0  # stays 0 where steps are not known
    steps_per_s: Figure = 0.0
    waited_s: Figure = 0.0
    wait_share: Figure = 0.0
    waits_for: str = ""  # most of the time
    wait_ms_per_step: Figure = 0.0
    turn_share: Figure = 0.0  # of the time that the device belonged to another job
    layer: str = ""  # the slowest
    layer_ms_per_step: Figure = 0.0
    bytes_out: Count = 0
    bytes_in: Count = 0
    out_bytes_per_s: Figure = 0.0
    in_bytes_per_s: Figure = 0.0
    link_bytes_per_s: Figure = 0.0  # each way, as measured; 0: not known


_encoder = msgspec.msgpack.Encoder()
_decoder: Decoder[Pulse] = Decoder(Pulse, "a pulse")


def encode(pulse: Pulse) -> bytes:
    return _encoder.encode(pulse)


def decode(data: bytes) -> Pulse:
    """Raises `Garbled` on anything else."""
    return _decoder.decode(data)
