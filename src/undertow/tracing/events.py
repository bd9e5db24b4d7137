"""The trace events of a step, stage by stage.

Times are seconds of the recorder's clock; `layer` and `tensor` are names in the model; `key` and `round` identify a
slice.  An event states a fact and decides nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

# Points at which a training thread waits for gradients: reasons of `Waited`.
AT_THE_END, AT_THE_GATE = "the end of backward", "a gate"


def find_layer(tensor: str) -> str:
    """Return the name of the layer that a tensor belongs to."""
    return tensor.rpartition(".")[0] or tensor


class TraceEvent(msgspec.Struct, gc=False):
    """A fact with its time.  The garbage collector does not track events, because thousands may wait to be written."""


class TraceInstant(TraceEvent):
    """Event at a point in time."""

    time_s: float


class TraceSpan(TraceEvent):
    """Event with a duration."""

    began_s: float
    ended_s: float


# Stage 1, in the training threads


class Forward(TraceSpan):
    """A layer's forward, including its waits."""

    layer: str


class ForwardBegan(TraceInstant):
    """A model's forward has begun, with gradients enabled."""

    model: int


class PassBegan(TraceInstant):
    """Synchronised backward pass `number` of model `model` has begun.  Each process numbers its own models."""

    model: int
    number: int


class Hooked(TraceSpan):
    """A final gradient was handed over.  Autograd had finished it at `began_s`."""

    tensor: str


class PassEnded(TraceInstant):
    """Autograd has computed all gradients of a pass."""

    model: int
    number: int


# Stages 4 to 7, in the engine thread


class Sent(TraceEvent):
    """A slice, queued at `queued_s`, has left the send queue for its link."""

    queued_s: float
    time_s: float
    peer: int
    kind: int  # see core.frames.Kind
    key: int
    round: int
    size_bytes: int


class Written(TraceInstant):
    """The operating system has taken the last byte of a slice."""

    peer: int
    kind: int
    key: int
    round: int


class Received(TraceSpan):
    """A slice has arrived, from its first byte to its last."""

    peer: int
    kind: int
    key: int
    round: int
    size_bytes: int


class Summed(TraceSpan):
    """The shard has summed one round."""

    key: int
    round: int


class Reduced(TraceSpan):
    """Torch's process group has summed these tensors."""

    tensors: tuple[str, ...]
    size_bytes: int


# Stages 8 and 9, in the training threads


class Waited(TraceSpan):
    """A training thread waited for `reason` and, if known, for `tensor`."""

    reason: str
    tensor: str = ""


class Applied(TraceSpan):
    """Results were copied into the gradients; if `stepped`, deferred optimizer steps were made too."""

    tensors: tuple[str, ...]
    stepped: bool = False


class Stepped(TraceSpan):
    """The optimizer has stepped the parameters whose step was not deferred."""

    optimizer: str


class TurnAwaited(TraceSpan):
    """A wait of this worker while another job computed on its device."""


class TurnHeld(TraceSpan):
    """A turn of this worker on its device."""


# Events that explain other events


class Named(TraceInstant):
    """Names of the tensors that the keys of a table carry from now on."""

    table: str
    op: str
    tensors: dict[int, tuple[str, ...]]


class Planned(TraceInstant):
    """A plan, made from `profile` and `cluster`, is now in force."""

    plan: Any
    profile: Any = None
    cluster: Any = None


class Linked(TraceInstant):
    """The measured rate of this worker's link, in each direction."""

    bytes_per_s: float


class Compared(TraceInstant):
    """The clock of rank 0 is ahead of this one by `offset_s`, plus or minus half the round trip."""

    offset_s: float
    round_trip_s: float
