"""A pulse: what one worker says of itself, about once per second.

In: figures of the gauge.  Out: bytes for a datagram, and back.
Whoever reads one must not trust its words: they are the script's own.
"""

from __future__ import annotations

import enum

import msgspec

EVERY_S = 1.0
# A datagram, and a control message, must hold it whatever a script calls its layers.
LONGEST_NAME = 200


class State(enum.Enum):
    """What a worker does at the moment."""

    STARTING = "starting"  # nothing was sent and no pass has begun
    COMPUTING = "computing"
    WAITING = "waiting"
    ENDED = "ended"


class Pulse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates and shares are of the last seconds; counts are since the start."""

    rank: int
    host: str
    sequence: int
    uptime_s: float
    state: State
    stands_for: str = ""  # what it waits for right now
    stands_s: float = 0.0
    steps: int = 0  # 0 for ever where nobody knows what a step is
    steps_per_s: float = 0.0
    waited_s: float = 0.0
    wait_share: float = 0.0
    waits_for: str = ""  # most of the time
    wait_ms_per_step: float = 0.0
    turn_share: float = 0.0  # of the time that the device belonged to another job
    layer: str = ""  # the slowest
    layer_ms_per_step: float = 0.0
    bytes_out: int = 0
    bytes_in: int = 0
    out_bytes_per_s: float = 0.0
    in_bytes_per_s: float = 0.0
    link_bytes_per_s: float = 0.0  # each way, as measured; 0: not known


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Pulse)


def encode(pulse: Pulse) -> bytes:
    return _encoder.encode(pulse)


def decode(data: bytes) -> Pulse:
    """Raises `msgspec.MsgspecError` on anything else."""
    pulse: Pulse = _decoder.decode(data)
    return pulse
