"""What workers, the arbiter and `undertow share` say to each other: one JSON object per line.

A worker says `Hello` once and is answered with `Welcome` or `Refusal`.  Then it asks, gives back and
ends steps; the arbiter grants, recalls, and tells whether there is anybody else.  `Query` is answered
with `Status`; `Stop` ends the arbiter.
"""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec

from undertow.core.decoding import Decoder, Format, Seconds, WeightedSeconds
from undertow.errors import Garbled

VERSION = 1
MOST_BYTES = 1 << 20  # of one line

# What a worker says is looked at before anybody counts with it: one that has gone mad must not spoil the others' turns.
Number = Annotated[int, msgspec.Meta(ge=0, le=sys.maxsize)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]  # all cores of a large host have a long name


class Hello(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A worker that wants to take part."""

    version: int
    job: Text
    name: Text
    rank: Number
    world_size: Number
    pid: Number
    device: Text
    weight: float = 1.0
    is_urgent: bool = False
    growth_bytes: Number = 0  # memory that it will still take
    free_bytes: Number = 0  # memory of the device that nobody has


class Ask(msgspec.Struct, frozen=True, tag=True):
    """May I compute?  With the job's place in the order of all jobs, if it is known."""

    virtual_s: WeightedSeconds | None = None
    cost_s: WeightedSeconds = 0.0


class Give(msgspec.Struct, frozen=True, tag=True):
    """I do not compute any more."""


class EndStep(msgspec.Struct, frozen=True, tag=True):
    """One more step is done, or several since the last word; what they took, as the worker itself has seen it."""

    step: Number  # the last of them
    steps: Number
    compute_s: Seconds
    network_s: Seconds  # that it waited for the network
    is_alone: bool = False  # nobody counted the device time for it


class Lift(msgspec.Struct, frozen=True, tag=True):
    """From a job's first worker: on another host the job is far behind, and should count as having had so much."""

    to_s: WeightedSeconds


class Query(msgspec.Struct, frozen=True, tag=True):
    """How are things?"""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End.  The workers go on without turns."""


ToArbiter = Hello | Ask | Give | EndStep | Lift | Query | Stop


class Welcome(msgspec.Struct, frozen=True, tag=True):
    lease_s: float


class Refusal(msgspec.Struct, frozen=True, tag=True):
    reason: str


class Grant(msgspec.Struct, frozen=True, tag=True):
    lift_s: float = 0.0


class Recall(msgspec.Struct, frozen=True, tag=True):
    pass


class Company(msgspec.Struct, frozen=True, tag=True):
    pass


class Solitude(msgspec.Struct, frozen=True, tag=True):
    pass


class Standing(msgspec.Struct, frozen=True, tag=True):
    step: int
    virtual_s: float
    cost_s: float


class Notice(msgspec.Struct, frozen=True, tag=True):
    """For the user's eyes."""

    text: str


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One job on one device."""

    job: str
    name: str
    pids: list[int]
    ranks: list[int]
    world_size: int
    weight: float
    is_urgent: bool
    state: str  # computes, waits for its turn, waits for the network
    steps: int
    turns: int
    device_s: float  # that it has had
    waited_s: float  # for its turn
    network_s: float  # that it waited for the network
    compute_s: float | None  # of one step, as it would be alone; None before that is known
    exposed_s: float | None
    since_s: float  # how long it has been here
    overdue: int = 0  # how often it lost its turn to the lease


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    holder: str | None  # a job's identity
    held_s: float
    jobs: list[JobStatus]
    gain: float | None  # predicted, of all jobs together over one after the other


class Status(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    pid: int
    lease_s: float
    up_s: float
    devices: list[DeviceStatus]
    notices: list[str]  # the latest last


FromArbiter = Welcome | Refusal | Grant | Recall | Company | Solitude | Standing | Notice | Status

_encoder = msgspec.json.Encoder()
_to_arbiter: Decoder[ToArbiter] = Decoder(ToArbiter, "a message to the arbiter", format=Format.JSON)
_from_arbiter: Decoder[FromArbiter] = Decoder(FromArbiter, "a message of the arbiter", format=Format.JSON)


def encode(message: ToArbiter | FromArbiter) -> bytes:
    return _encoder.encode(message) + b"\n"


def decode_to_arbiter(line: bytes) -> ToArbiter:
    """Raises `Garbled` on anything else."""
    return _to_arbiter.decode(line)


def decode_from_arbiter(line: bytes) -> FromArbiter:
    """Raises `Garbled` on anything else."""
    return _from_arbiter.decode(line)


class Lines:
    """Bytes in, whole lines out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Raises `Garbled` if a line gets longer than any honest one."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MOST_BYTES:
            raise Garbled(f"a line of more than {MOST_BYTES} bytes")
        return lines
