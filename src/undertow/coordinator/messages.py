"""What workers tell each other besides slices: messages with a schema, never pickled."""

from __future__ import annotations

import msgspec

from undertow.coordinator.terms import Terms
from undertow.core.decoding import Count, Decoder, Finite, Rank, WeightedSeconds
from undertow.core.rounds import Op
from undertow.plan.slicing import Cut, TensorSpec


class Arrive(msgspec.Struct, frozen=True, tag=True):
    """To the coordinator: this rank is at its `sequence`-th agreement."""

    sequence: int
    matter: str
    payload: bytes


class Verdict(msgspec.Struct, frozen=True, tag=True):
    """From the coordinator: what all ranks have agreed on, or why they cannot."""

    sequence: int
    payload: bytes
    error: str = ""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """This worker's script has ended: it goes on answering, but contributes to no more rounds, but for these keys."""

    keys: list[int]


class Goodbye(msgspec.Struct, frozen=True, tag=True):
    """This worker leaves in order; an error if it leaves because of one."""

    error: str = ""


class Farewell(msgspec.Struct, frozen=True, tag=True):
    """The answer to a goodbye: everything that you sent has arrived."""


class Lost(msgspec.Struct, frozen=True, tag=True):
    """A worker was lost; sent by whoever notices first, so that all name the same one."""

    rank: Rank
    reason: str


class Joined(msgspec.Struct, frozen=True, tag=True):
    """This worker ran out of input after round `step`; the rounds of these keys go on without it."""

    keys: list[int]
    step: Count
    divide_by_active: bool


class Discarded(msgspec.Struct, frozen=True, tag=True):
    """This worker will contribute no more to the keys that were registered together, from this one on."""

    first: int


class AskMissing(msgspec.Struct, frozen=True, tag=True):
    """To a shard: whom does this round wait for?"""

    key: int
    step: int


class Missing(msgspec.Struct, frozen=True, tag=True):
    key: int
    step: int
    ranks: list[int]


class AskTime(msgspec.Struct, frozen=True, tag=True):
    """To rank 0: what does your clock show?  With what the asker's own did."""

    asked_s: Finite


class Time(msgspec.Struct, frozen=True, tag=True):
    """The answer."""

    asked_s: Finite
    told_s: Finite


class Pulse(msgspec.Struct, frozen=True, tag=True):
    """To rank 0, for whoever watches the job at its launcher: see `live`.  Nobody answers."""

    body: bytes


class Standing(msgspec.Struct, frozen=True, tag=True):
    """From rank 0: the device time per weight that this job has had after a step, and what one costs."""

    step: Count
    virtual_s: WeightedSeconds
    cost_s: WeightedSeconds


class Behind(msgspec.Struct, frozen=True, tag=True):
    """To rank 0: on this worker's device the job is far behind all others; let it count as having had so much."""

    to_s: WeightedSeconds


class Call(msgspec.Struct, frozen=True, tag=True):
    """To the coordinator: this rank makes a call that all ranks make, sooner or later, under this name."""

    name: str
    terms: Terms


class RanOut(msgspec.Struct, frozen=True, tag=True):
    """To the coordinator: this rank has no more input, calls go on without it."""


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """From the coordinator: know this set of keys, for calls of this form."""

    number: int
    how: Cut
    terms: Terms


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """To the coordinator: this rank knows the set."""

    number: int


class Begin(msgspec.Struct, frozen=True, tag=True):
    """From the coordinator: all have made this call; contribute to it with this set of keys."""

    name: str
    number: int


class Drop(msgspec.Struct, frozen=True, tag=True):
    """From the coordinator: no further call uses this set of keys."""

    number: int


class Decline(msgspec.Struct, frozen=True, tag=True):
    """From the coordinator: all have made this call, but it cannot be."""

    name: str
    reason: str


class AllOut(msgspec.Struct, frozen=True, tag=True):
    """From the coordinator: all have run out of input, this rank last."""

    last: Rank


Asked = Call | RanOut | Prepared  # of the coordinator
Told = Prepare | Begin | Drop | Decline | AllOut  # by the coordinator
Message = (
    Arrive
    | Verdict
    | Ended
    | Goodbye
    | Farewell
    | Lost
    | Joined
    | Discarded
    | AskMissing
    | Missing
    | AskTime
    | Time
    | Pulse
    | Standing
    | Behind
    | Asked
    | Told
)


class Table(msgspec.Struct, frozen=True):
    """The payload of the agreement on tensors."""

    label: str
    tensors: list[TensorSpec]
    op: Op
    keep: bool
    keys: Count = 0  # to set aside, at least


_encoder = msgspec.msgpack.Encoder()
_decoder: Decoder[Message] = Decoder(Message, "a control message")


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview) -> Message:
    """Raises `Garbled` on anything else."""
    return _decoder.decode(data)
