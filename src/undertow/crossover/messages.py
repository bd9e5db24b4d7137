"""Messages between workers, the arbiter and `undertow share`: one JSON object per line.

A worker says `Hello` once and is answered with `Welcome` or `Refusal`.  Then it asks, gives back and ends steps; the
arbiter grants, recalls, and says whether there are other jobs.  `Query` is answered with `Status`; `Stop` ends the
arbiter.  `DeviceTime` and `Lift` also travel between the workers of a job, as control messages of its group.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import Annotated

import msgspec

from undertow.decoding import Count, Decoder, Format, Seconds, WeightedSeconds
from undertow.engine.coordinator.messages import DeviceTime as DeviceTime
from undertow.engine.coordinator.messages import Lift as Lift
from undertow.engine.wire.streams import Lines

VERSION = 2
MOST_BYTES = 1 << 20  # of one line
CHUNK_BYTES = 1 << 16

# Values are limited when they are decoded: one worker's nonsense must not spoil the others' turns.
Text = Annotated[str, msgspec.Meta(max_length=4096)]  # all cores of a large host have a long name


class Hello(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """First message of a worker, which wants to take part."""

    version: int
    job: Text
    name: Text
    rank: Count
    world_size: Count
    pid: Count
    device: Text
    weight: float = 1.0
    is_urgent: bool = False
    growth_bytes: Count = 0  # memory that the job will still take
    free_bytes: Count = 0  # free memory of the device


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Request to compute, with the job's position in the order of all jobs if it is known."""

    virtual_s: WeightedSeconds | None = None
    cost_s: WeightedSeconds = 0.0


class Give(msgspec.Struct, frozen=True, tag=True):
    """The worker does not compute any more."""


class EndStep(msgspec.Struct, frozen=True, tag=True):
    """Report of the steps since the last one, with what they took by the worker's own clock."""

    step: Count  # the last of them
    steps: Count
    compute_s: Seconds
    network_s: Seconds  # that it waited for the network
    is_alone: bool = False  # the arbiter has not counted their device time


class Query(msgspec.Struct, frozen=True, tag=True):
    """Request for a `Status`."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Order to end.  The workers go on without turns."""


Relayed = DeviceTime | Lift  # between the workers of a job
ToArbiter = Hello | Ask | Give | EndStep | Lift | Query | Stop


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Answer to a `Hello`: the worker takes part."""

    lease_s: float


class Refusal(msgspec.Struct, frozen=True, tag=True):
    reason: str


class Grant(msgspec.Struct, frozen=True, tag=True):
    """Permission to compute.

    A `lift_s` above 0 says that the job is far behind the others' counts: its first worker should learn that it counts
    as having had at least this much.
    """

    lift_s: float = 0.0


class Recall(msgspec.Struct, frozen=True, tag=True):
    """Another job goes first: give back between two layers, and ask again."""


class NowShared(msgspec.Struct, frozen=True, tag=True):
    """Another job has come.  From now on ask; a worker that computes now holds the turn, any other gives back."""


class NowAlone(msgspec.Struct, frozen=True, tag=True):
    """There is no other job here: no need to ask."""


class Notice(msgspec.Struct, frozen=True, tag=True):
    text: str


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one job on one device."""

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
    device_s: float  # device time that it has had
    waited_s: float  # for its turn
    network_s: float  # for the network
    compute_s: float | None  # of one step, as it would be alone; None before that is known
    exposed_s: float | None
    since_s: float  # how long it has been here
    overdue: int = 0  # how often it lost its turn to the lease


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one device."""

    device: str
    holder: str | None  # a job's identity
    held_s: float
    jobs: list[JobStatus]
    gain: float | None  # predicted, of all jobs together over one after the other


class Status(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Answer to a `Query`: everything the arbiter knows."""

    pid: int
    lease_s: float
    up_s: float
    devices: list[DeviceStatus]
    notices: list[str]  # the latest last


FromArbiter = Welcome | Refusal | Grant | Recall | NowShared | NowAlone | DeviceTime | Notice | Status

_encoder = msgspec.json.Encoder()
# Each decodes one line.
to_arbiter: Decoder[ToArbiter] = Decoder(ToArbiter, "a message to the arbiter", format=Format.JSON)
from_arbiter: Decoder[FromArbiter] = Decoder(FromArbiter, "a message of the arbiter", format=Format.JSON)
make_lines = partial(Lines, MOST_BYTES, refuses=True)


def encode(message: ToArbiter | FromArbiter) -> bytes:
    return _encoder.encode(message) + b"\n"


def receive(connection: socket.socket, lines: Lines) -> list[FromArbiter]:
    """Return the next messages.  Raises `Garbled` if they make no sense, OSError if none comes."""
    while data := connection.recv(CHUNK_BYTES):
        if complete := lines.feed(data):
            return [from_arbiter.decode(line) for line in complete]
    raise ConnectionResetError("the arbiter has closed the connection")


def find_relayed(message: FromArbiter) -> Relayed | None:
    """Return what a worker passes on to other workers of its job: a count to all of them, a lift to the first."""
    match message:
        case DeviceTime():
            return message
        case Grant(lift_s) if lift_s > 0:
            return Lift(lift_s)
    return None
