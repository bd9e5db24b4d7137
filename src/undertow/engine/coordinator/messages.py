"""Control messages among the workers of a group: messages with a schema, never pickled."""

from __future__ import annotations

import msgspec

from undertow.decoding import Count, Decoder, Finite, Rank, WeightedSeconds
from undertow.engine.coordinator.terms import Disagreement, Terms
from undertow.engine.core.membership import ExitCode, Loss
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import Cut, TensorSpec
from undertow.errors import ConfigError


class Arrive(msgspec.Struct, frozen=True, tag=True):
    """Message to the coordinator: this rank has come to its agreement number `sequence`."""

    sequence: int
    matter: str
    payload: bytes


class AgreementResult(msgspec.Struct, frozen=True, tag=True):
    """Message from the coordinator: the agreement of all ranks, or their difference."""

    sequence: int
    payload: bytes
    mismatch: Disagreement | None = None


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Message to all: this worker's script has ended.

    It still answers, but contributes to no further rounds except those of these keys.
    """

    keys: list[int]


class Goodbye(msgspec.Struct, frozen=True, tag=True):
    """Message to all from a worker that leaves in order, with an error if it leaves because of one."""

    error: str = ""
    exit_code: ExitCode | None = None  # the one its process will have, if its script failed


class Farewell(msgspec.Struct, frozen=True, tag=True):
    """Answer to a goodbye: everything that the peer has sent has arrived."""


class Lost(msgspec.Struct, frozen=True, tag=True):
    """Message to all that a worker was lost, from the rank that notices first, so that all name the same worker."""

    loss: Loss


class Joined(msgspec.Struct, frozen=True, tag=True):
    """Message to all: this worker ran out of input after round `step`; the rounds of these keys go on without it."""

    keys: list[int]
    step: Count
    divide_by_active: bool


class Discarded(msgspec.Struct, frozen=True, tag=True):
    """Message to all: this worker contributes no more to the keys of a table, whose first key this is."""

    first: int


class AskMissing(msgspec.Struct, frozen=True, tag=True):
    """Question to the owner of a key: which ranks does this round wait for?"""

    key: int
    step: int


class Missing(msgspec.Struct, frozen=True, tag=True):
    """Answer to `AskMissing`."""

    step: int
    ranks: list[int]


class AskTime(msgspec.Struct, frozen=True, tag=True):
    """Question to rank 0 for the time of its clock, with the time of the asker's."""

    asked_s: Finite


class Time(msgspec.Struct, frozen=True, tag=True):
    """Answer to `AskTime`."""

    asked_s: Finite
    told_s: Finite


class ForwardedStatus(msgspec.Struct, frozen=True, tag=True):
    """Status report of a worker, sent to rank 0 for the live view of its launcher.  It is not answered."""

    body: bytes


class DeviceTime(msgspec.Struct, frozen=True, tag=True):
    """Message from rank 0: the device time per weight that this job has had after a step, and the cost of a step."""

    step: Count
    virtual_s: WeightedSeconds
    cost_s: WeightedSeconds


class Lift(msgspec.Struct, frozen=True, tag=True):
    """Message to rank 0: on a worker's device this job is far behind all others; count at least this for it."""

    to_s: WeightedSeconds


class Call(msgspec.Struct, frozen=True, tag=True):
    """Message to the coordinator: this rank makes a call, as all ranks do sooner or later under this name."""

    name: str
    terms: Terms


class RanOut(msgspec.Struct, frozen=True, tag=True):
    """Message to the coordinator: this rank has no more input, calls go on without it."""


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Message from the coordinator: learn this set of keys, for calls of this form."""

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
    """Message from the coordinator: all ranks have made this call, but they differ in it."""

    name: str
    mismatch: Disagreement


class AllOut(msgspec.Struct, frozen=True, tag=True):
    """Message from the coordinator: all ranks have run out of input, this one last."""

    last: Rank


Asked = Call | RanOut | Prepared  # of the coordinator
Told = Prepare | Begin | Drop | Decline | AllOut  # by the coordinator
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
    | ForwardedStatus
    | DeviceTime
    | Lift
    | Asked
    | Told
)


class TableProposal(msgspec.Struct, frozen=True):
    """Payload of the agreement on tensors."""

    label: str
    tensors: list[TensorSpec]
    op: Op
    keep: bool
    keys: Count = 0  # to reserve, at least

    def check(self) -> None:
        """Raise `ConfigError` if the operation is not possible with these tensors."""
        for tensor in self.tensors:
            if self.op is Op.MEAN and not tensor.dtype.is_float:
                raise ConfigError(f"{tensor} in {self.label}: there is no exact mean of whole numbers")


_encoder = msgspec.msgpack.Encoder()
_decoder: Decoder[Message] = Decoder(Message, "a control message")


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview) -> Message:
    """Decode a message; raise `Garbled` if it is none."""
    return _decoder.decode(data)
