"""Control messages between the workers of a group, which have a schema and are never pickled."""

from __future__ import annotations

import msgspec

from undertow.decoding import Count, Decoder, Finite, Rank, WeightedSeconds
from undertow.engine.coordinator.terms import Disagreement, Terms
from undertow.engine.core.membership import ExitCode, Loss
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import Cut, TensorSpec
from undertow.errors import ConfigError


class Arrive(msgspec.Struct, frozen=True, tag=True):
    """Message to the coordinator: this rank has arrived at its agreement number `sequence`."""

    sequence: int
    matter: str
    payload: bytes


class AgreementResult(msgspec.Struct, frozen=True, tag=True):
    """Message from the coordinator: its decision for all ranks, or the difference between them."""

    sequence: int
    payload: bytes
    mismatch: Disagreement | None = None


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Message to all: this worker's script has ended.

    It still answers, but contributes to no further rounds except those of these keys.
    """

    keys: list[int]


class Goodbye(msgspec.Struct, frozen=True, tag=True):
    """Message to all from a worker that leaves, with the error if that is why it leaves."""

    error: str = ""
    exit_code: ExitCode | None = None  # exit code that its process will have, if its script failed


class Farewell(msgspec.Struct, frozen=True, tag=True):
    """Answer to a goodbye: everything that the peer has sent has arrived."""


class Lost(msgspec.Struct, frozen=True, tag=True):
    """Message to all that a worker was lost.  It is passed on, so that all ranks name the same worker."""

    loss: Loss


class Joined(msgspec.Struct, frozen=True, tag=True):
    """Message to all: this worker ran out of input after round `step`; the rounds of these keys continue without it."""

    keys: list[int]
    step: Count
    divide_by_active: bool


class Discarded(msgspec.Struct, frozen=True, tag=True):
    """Message to all: this worker no longer contributes to the keys of the table that starts with this key."""

    first: int


class AskMissing(msgspec.Struct, frozen=True, tag=True):
    """Request to the owner of a key for the ranks that this round waits for."""

    key: int
    step: int


class Missing(msgspec.Struct, frozen=True, tag=True):
    """Answer to `AskMissing`."""

    step: int
    ranks: list[int]


class AskTime(msgspec.Struct, frozen=True, tag=True):
    """Request to rank 0 for the time of its clock, with the time of the sender's clock."""

    asked_s: Finite


class Time(msgspec.Struct, frozen=True, tag=True):
    """Answer to `AskTime`, with the times of both clocks."""

    asked_s: Finite
    told_s: Finite


class SideMessage(msgspec.Struct, frozen=True, tag=True):
    """Bytes of a worker for rank 0, which the engine passes on unread.  They are not answered."""

    body: bytes


class DeviceTime(msgspec.Struct, frozen=True, tag=True):
    """Message from rank 0: the device time per weight that this job has used up to a step, and the cost of a step."""

    step: Count
    virtual_s: WeightedSeconds
    cost_s: WeightedSeconds


class Lift(msgspec.Struct, frozen=True, tag=True):
    """Message to rank 0: this job is far behind the other jobs on a worker's device; raise its time to this value."""

    to_s: WeightedSeconds


class Call(msgspec.Struct, frozen=True, tag=True):
    """Message to the coordinator: this rank makes a call, which all ranks make sooner or later under this name."""

    name: str
    terms: Terms


class RanOut(msgspec.Struct, frozen=True, tag=True):
    """Message to the coordinator: this rank has no more input; calls continue without it."""


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Message from the coordinator: learn this set of keys, for calls with this signature."""

    number: int
    how: Cut
    terms: Terms


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """Message to the coordinator: this rank knows the set."""

    number: int


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Message from the coordinator: all ranks have made this call; contribute to it with this set of keys."""

    name: str
    number: int


class Drop(msgspec.Struct, frozen=True, tag=True):
    """Message from the coordinator: no further call uses this set of keys."""

    number: int


class Decline(msgspec.Struct, frozen=True, tag=True):
    """Message from the coordinator: all ranks have made this call, but with differences."""

    name: str
    mismatch: Disagreement


class AllOut(msgspec.Struct, frozen=True, tag=True):
    """Message from the coordinator: all ranks have run out of input, rank `last` being the last."""

    last: Rank


CallRequest = Call | RanOut | Prepared
CallDecision = Prepare | Begin | Drop | Decline | AllOut
Message = (
    Arrive
    | AgreementResult
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
    | SideMessage
    | DeviceTime
    | Lift
    | CallRequest
    | CallDecision
)


class TableProposal(msgspec.Struct, frozen=True):
    """Payload of the agreement on tensors."""

    label: str
    tensors: list[TensorSpec]
    op: Op
    keep: bool
    keys: Count = 0  # minimum number of keys to reserve

    def check(self) -> None:
        """Raise `ConfigError` if the operation is not possible with these tensors."""
        for tensor in self.tensors:
            if self.op is Op.MEAN and not tensor.dtype.is_float:
                raise ConfigError(f"{tensor} in {self.label}: there is no exact mean of integers")


_encoder = msgspec.msgpack.Encoder()
_decoder: Decoder[Message] = Decoder(Message, "a control message")


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview) -> Message:
    """Decode a message; raise `Garbled` if it is not valid."""
    return _decoder.decode(data)
