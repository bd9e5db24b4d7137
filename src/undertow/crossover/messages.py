"""Messages between workers, the arbiter and `undertow share`: one JSON object per line.

A worker sends `Hello` once and receives `Welcome` or `Refusal`.  Then it sends `Ask`, `Give` and `EndStep`; the arbiter
sends `Grant` and `Recall`, and `NowShared` or `NowAlone` when other jobs come or go.  The answer to a `Query` is a
`Status`; `Stop` ends the arbiter.  `DeviceTime` and `Lift` also travel between the workers of a job, as control
messages of its group.
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

# Decoding limits all values: one worker's nonsense must not disturb the turns of others.
Text = Annotated[str, msgspec.Meta(max_length=4096)]  # the name of a CPU lists its cores, which may be many


class Hello(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """First message of a worker: a request to take turns."""

    version: int
    job: Text
    name: Text
    rank: Count
    world_size: Count
    pid: Count
    device: Text
    weight: float = 1.0
    is_urgent: bool = False
    growth_bytes: Count = 0  # memory that the job has yet to allocate
    free_bytes: Count = 0  # free memory of the device


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Request to compute, with the job's position in the order of all jobs if it is known."""

    virtual_s: WeightedSeconds | None = None
    cost_s: WeightedSeconds = 0.0


class Give(msgspec.Struct, frozen=True, tag=True):
    """Notice that the worker no longer computes, nor waits for the turn."""


class EndStep(msgspec.Struct, frozen=True, tag=True):
    """Report of the steps since the last report, with their times by the worker's own clock."""

    step: Count  # the last of them
    steps: Count
    compute_s: Seconds
    network_s: Seconds  # spent waiting for the network
    is_alone: bool = False  # the arbiter has not counted the device time of these steps


class Query(msgspec.Struct, frozen=True, tag=True):
    """Request for a `Status`."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Request to the arbiter to exit.  Its workers go on without turns."""


Relayed = DeviceTime | Lift  # between the workers of a job
ToArbiter = Hello | Ask | Give | EndStep | Lift | Query | Stop


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Answer to a `Hello`: the worker takes turns from now on."""

    lease_s: float


class Refusal(msgspec.Struct, frozen=True, tag=True):
    reason: str


class Grant(msgspec.Struct, frozen=True, tag=True):
    """Permission to compute.

    A `lift_s` above 0 means that the job's count is far behind those of the others: its first worker has to raise the
    count to at least `lift_s`.
    """

    lift_s: float = 0.0


class Recall(msgspec.Struct, frozen=True, tag=True):
    """Request for the turn, because another job goes first: give it back between two layers, and ask again."""


class NowShared(msgspec.Struct, frozen=True, tag=True):
    """Notice that another job has come: workers have to ask for the turn.

    A worker that is computing holds the turn; any other sends `Give`.
    """


class NowAlone(msgspec.Struct, frozen=True, tag=True):
    """Notice that there is no other job on the device: no need to ask."""


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
    device_s: float  # device time used
    waited_s: float  # for its turn
    network_s: float  # for the network
    compute_s: float | None  # of one step as if the job were alone; None until it is known
    exposed_s: float | None
    since_s: float  # how long the job has been here
    overdue: int = 0  # how often it exceeded the lease and lost the turn


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one device."""

    device: str
    holder: str | None  # a job's identity
    held_s: float
    jobs: list[JobStatus]
    gain: float | None  # predicted, for all jobs together over one job after the other


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
    """Return the next messages, at least one.  Raises `Garbled` if they make no sense, OSError if none comes."""
    while data := connection.recv(CHUNK_BYTES):
        if complete := lines.feed(data):
            return [from_arbiter.decode(line) for line in complete]
    raise ConnectionResetError("the arbiter has closed the connection")


def find_relayed(message: FromArbiter) -> Relayed | None:
    """Return what a worker relays to other workers of its job: a device time to all of them, a lift to the first."""
    match message:
        case DeviceTime():
            return message
        case Grant(lift_s) if lift_s > 0:
            return Lift(lift_s)
    return None
