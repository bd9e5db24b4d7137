"""What can be noted of a step, stage by stage.

Times are seconds of the clock of whoever notes; `layer` and `tensor` are the model's own names, `key` and `round` those
of a slice.  A note states a fact and decides nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

# Where a training thread waits for a gradient: the reasons of `Waited`.
AT_THE_END, AT_THE_GATE = "the end of backward", "a gate"


def find_layer(tensor: str) -> str:
    """The name of the layer that a tensor belongs to."""
    return tensor.rpartition(".")[0] or tensor


class Note(msgspec.Struct, gc=False):
    """Thousands of them may wait to be written: the collector has no business with them."""


# Stage 1, in the training threads


class Forward(Note):
    """A layer's forward, with whatever it waited for inside."""

    began_s: float
    ended_s: float
    layer: str


class ForwardBegan(Note):
    """A model's forward that records for a backward pass."""

    time_s: float
    model: int


class PassBegan(Note):
    """A backward pass that is synchronised: the `number`-th of this model, which is the `model`-th of the process."""

    time_s: float
    model: int
    number: int


class Hooked(Note):
    """A gradient was final and handed over; until `began_s` autograd computed it."""

    began_s: float
    ended_s: float
    tensor: str


class PassEnded(Note):
    """Autograd has computed all gradients of the pass."""

    time_s: float
    model: int
    number: int


# Stages 4 to 7, in the engine thread


class Pushed(Note):
    """A round of this key has begun for this worker."""

    time_s: float
    key: int
    round: int


class Sent(Note):
    """A slice left the outbox, where it was since `queued_s`, for its link."""

    queued_s: float
    time_s: float
    peer: int
    kind: int  # see core.frames.Kind
    key: int
    round: int
    size_bytes: int


class Written(Note):
    """The last byte of a slice is with the operating system."""

    time_s: float
    peer: int
    kind: int
    key: int
    round: int


class Received(Note):
    """A slice has come, from its first byte to its last."""

    began_s: float
    ended_s: float
    peer: int
    kind: int
    key: int
    round: int
    size_bytes: int


class Summed(Note):
    """The shard has added one round up."""

    began_s: float
    ended_s: float
    key: int
    round: int


class Answered(Note):
    """The result of a round is here."""

    time_s: float
    key: int
    round: int


class Reduced(Note):
    """Torch's own process group has summed these."""

    began_s: float
    ended_s: float
    tensors: tuple[str, ...]
    size_bytes: int


# Stages 8 and 9, in the training threads


class Waited(Note):
    """A training thread stood still for `reason`: for a `tensor`, if it has a name."""

    began_s: float
    ended_s: float
    reason: str
    tensor: str = ""


class Applied(Note):
    """Results were put in place; where steps are deferred, the parameters were `stepped` as well."""

    began_s: float
    ended_s: float
    tensors: tuple[str, ...]
    stepped: bool = False


class Stepped(Note):
    """The optimizer's own step of whatever was not deferred."""

    began_s: float
    ended_s: float
    optimizer: str


class TurnAwaited(Note):
    """This worker stood still because another job computed on its device."""

    began_s: float
    ended_s: float


class TurnHeld(Note):
    began_s: float
    ended_s: float


# What the other notes mean


class Named(Note):
    """From now on these keys carry these tensors of a table."""

    time_s: float
    table: str
    op: str
    tensors: dict[int, tuple[str, ...]]


class Planned(Note):
    """A plan is in force, and what it was made of: see `plan`."""

    time_s: float
    plan: Any
    profile: Any = None
    cluster: Any = None


class Linked(Note):
    """What this worker's link carries each way, as measured."""

    time_s: float
    bytes_per_s: float


class Compared(Note):
    """This clock was compared with that of rank 0, which shows `offset_s` more, give or take half of the round trip."""

    time_s: float
    offset_s: float
    round_trip_s: float
