"""Decodes one line of a trace file, described in docs/trace.md.

In: a line.  Out: an `Event`, or None if the line is not an event of undertow.
All kinds of events are decoded into one structure, because finding the kind first would double the time.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from undertow.bounds import MOST_WORKERS
from undertow.decoding import Decoder, Format
from undertow.errors import Garbled

# An event with an impossible figure would distort all sums, so it is left out.  Times are at most 317 years from zero,
# whatever the clock; spans are at most 116 days long.
LATEST_US, LONGEST_US = 1e16, 1e13
SLOWEST_BYTES_PER_S, FASTEST_BYTES_PER_S = 1e-3, 1e15
Microseconds = Annotated[float, msgspec.Meta(ge=-LATEST_US, le=LATEST_US)]
Number = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 53)]
Peer = Annotated[int, msgspec.Meta(ge=-1, lt=MOST_WORKERS)]


class Args(msgspec.Struct, gc=False, rename={"size_bytes": "bytes", "source_rank": "from"}):
    """Arguments of an event of any kind; arguments that it lacks have their defaults."""

    step: Number = -1
    tensor: str = ""
    tensors: Any = None  # a list of names, or in `undertow.table` a list for each key
    reason: str = ""
    kind: str = ""
    key: Number = -1
    round: Number = -1
    size_bytes: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    to: Peer = -1
    source_rank: Peer = -1
    sent: Microseconds = -1.0
    queued: Microseconds = -1.0
    # Metadata
    format: int = 1
    rank: int = -1
    world_size: Annotated[int, msgspec.Meta(le=MOST_WORKERS)] = 0
    host: str = ""
    version: str = ""
    source: str = "worker"
    script: str = ""
    started: Any = ""
    op: str = ""
    plan: msgspec.Raw = msgspec.Raw()
    profile: msgspec.Raw = msgspec.Raw()
    cluster: msgspec.Raw = msgspec.Raw()
    bytes_per_s: Annotated[float, msgspec.Meta(ge=0, le=FASTEST_BYTES_PER_S)] | None = None
    round_trip_s: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_US / 1e6)] = 0.0


class Event(msgspec.Struct, gc=False):
    """An event of Chrome's trace format.  Times are in microseconds, as the format requires."""

    ph: str
    name: str = ""
    cat: str = ""
    ts: Microseconds = 0.0
    dur: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_US)] = 0.0
    pid: int = -1
    args: Args | None = None


_decoder: Decoder[Event] = Decoder(Event, format=Format.JSON)


def decode(line: bytes) -> Event | None:
    """Return the event, or None if the line is not an event, is incomplete, or has impossible figures."""
    try:
        event = _decoder.decode(line.strip().rstrip(b","))
    except Garbled:
        return None
    rate = event.args.bytes_per_s if event.args else None
    return None if rate and rate < SLOWEST_BYTES_PER_S else event


def to_ns(time_us: float) -> int:
    return round(time_us * 1000)
