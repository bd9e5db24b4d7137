"""The trace events of a step, stage by stage.

Times are seconds of the recorder's clock; `layer` and `tensor` are names of the model, `key` and `round` those of a
slice.  An event states a fact and decides nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

# Where a training thread waits for a gradient: the reasons of `Waited`.
AT_THE_END, AT_THE_GATE = "the end of backward", "a gate"


def find_layer(tensor: str) -> str:
    """Return the name of the layer that a tensor belongs to."""
    return tensor.rpartition(".")[0] or tensor


class TraceEvent(msgspec.Struct, gc=False):
    """A fact with its time.  Thousands may wait to be written, so the garbage collector does not track them."""


class TraceInstant(TraceEvent):
    """Event at one moment."""

    time_s: float


class TraceSpan(TraceEvent):
    """Event that took some time."""

    began_s: float
    ended_s: float


# Stage 1, in the training threads


class Forward(TraceSpan):
    """A layer's forward, including what it waited for."""

    layer: str


class ForwardBegan(TraceInstant):
    """A model's forward has begun, with gradients enabled."""

    model: int


class PassBegan(TraceInstant):
    """Synchronised backward pass `number` of model `model` has begun; a process counts its models."""

    model: int
    number: int


class Hooked(TraceSpan):
    """A gradient was final and handed over.  Autograd computed it until `began_s`."""

    tensor: str


class PassEnded(TraceInstant):
    """Autograd has computed all gradients of a pass."""

    model: int
    number: int


# Stages 4 to 7, in the engine thread


class Pushed(TraceInstant):
    """A round of a key has begun on this worker.  Tests read it; no view does."""

    key: int
    round: int


class Sent(TraceEvent):
    """A slice, queued since `queued_s`, left the send queue for its link."""

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


class Answered(TraceInstant):
    """The result of a round has arrived.  Tests read it; no view does."""

    key: int
    round: int


class Reduced(TraceSpan):
    """The process group of torch has summed these tensors."""

    tensors: tuple[str, ...]
    size_bytes: int


# Stages 8 and 9, in the training threads


class Waited(TraceSpan):
    """A training thread waited for `reason`, and for `tensor` if it is known."""

    reason: str
    tensor: str = ""


class Applied(TraceSpan):
    """Results were copied into the gradients; `stepped` says that deferred optimizer steps were made, too."""

    tensors: tuple[str, ...]
    stepped: bool = False


class Stepped(TraceSpan):
    """The optimizer has stepped the parameters whose step was not deferred."""

    optimizer: str


class TurnAwaited(TraceSpan):
    """A wait of this worker while another job computed on its device."""


class TurnHeld(TraceSpan):
    """A turn of this worker on its device."""


# What is needed to read the other events


class Named(TraceInstant):
    """Names of the tensors of a table that its keys carry from now on."""

    table: str
    op: str
    tensors: dict[int, tuple[str, ...]]


class Planned(TraceInstant):
    """A plan is in force; `profile` and `cluster` are what it was made from."""

    plan: Any
    profile: Any = None
    cluster: Any = None


class Linked(TraceInstant):
    """The measured rate of this worker's link, each way."""

    bytes_per_s: float


class Compared(TraceInstant):
    """The clock of rank 0 shows `offset_s` more than this one, give or take half of the round trip."""

    offset_s: float
    round_trip_s: float
