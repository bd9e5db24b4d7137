"""One line of a trace file, as docs/trace.md has it.

In: a line.  Out: an `Event`, or None if it is no event of undertow.
One structure for all kinds of events: deciding which kind it is before it is decoded would take as long again.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from undertow.core.decoding import Decoder, Format, Seconds
from undertow.errors import Garbled

# Before or after these no clock of a worker shows anything; sums and nanoseconds of them are whole numbers.
Microseconds = Annotated[float, msgspec.Meta(ge=-1e17, le=1e17)]


class Args(msgspec.Struct, gc=False, rename={"size_bytes": "bytes", "source_rank": "from"}):
    """Whatever an event may carry; what it does not carry has a value that says so."""

    step: int = -1
    tensor: str = ""
    tensors: Any = None  # a list of names, or in `undertow.table` a list for each key
    reason: str = ""
    kind: str = ""
    key: int = -1
    round: int = -1
    size_bytes: int = 0
    to: int = -1
    source_rank: int = -1
    sent: Microseconds = -1.0
    queued: Microseconds = -1.0
    # Metadata
    format: int = 1
    rank: int = -1
    world_size: Annotated[int, msgspec.Meta(le=1 << 16)] = 0
    host: str = ""
    version: str = ""
    source: str = "worker"
    script: str = ""
    started: Any = ""
    op: str = ""
    plan: msgspec.Raw = msgspec.Raw()
    profile: msgspec.Raw = msgspec.Raw()
    cluster: msgspec.Raw = msgspec.Raw()
    bytes_per_s: float | None = None
    round_trip_s: Seconds = 0.0


class Event(msgspec.Struct, gc=False):
    """Times in microseconds, as trace viewers want them."""

    ph: str
    name: str = ""
    cat: str = ""
    ts: Microseconds = 0.0
    dur: Microseconds = 0.0
    pid: int = -1
    args: Args | None = None


_decoder: Decoder[Event] = Decoder(Event, format=Format.JSON)


def decode(line: bytes) -> Event | None:
    """None: this is no event, or only half of one."""
    try:
        return _decoder.decode(line.strip().rstrip(b","))
    except Garbled:
        return None


def to_ns(time_us: float) -> int:
    return round(time_us * 1000)
