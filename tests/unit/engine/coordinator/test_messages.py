"""Control messages: each has a schema, and anything else is an error."""

from __future__ import annotations

import math
import pickle

import msgspec
import pytest

from undertow.bounds import WEIGHT
from undertow.engine.coordinator import messages
from undertow.engine.coordinator.terms import Disagreement, Route, Terms
from undertow.engine.core.dtypes import DType
from undertow.engine.core.membership import Loss
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import Cut, TensorSpec
from undertow.errors import Garbled

TERMS = Terms("allreduce", Route.SLICES, Op.SUM, [TensorSpec("x", (2, 3), DType.FLOAT32, 6)], "root 0")
ALL = [
    messages.Arrive(3, "tensors", b"\0payload"),
    messages.AgreementResult(3, b"", Disagreement("ranks differ", "tensors", "w", (0, 2))),
    messages.Ended([5, 7]),
    messages.Goodbye("its script failed"),
    messages.Farewell(),
    messages.Lost(Loss(2, 0, silent_s=10.5)),
    messages.Joined([1, 2, 3], 17, True),
    messages.Discarded(4),
    messages.AskMissing(4, 5),
    messages.Missing(5, [0, 2]),
    messages.SideMessage(b"\0figures"),
    messages.AskTime(12.5),
    messages.Time(12.5, 99.0),
    messages.DeviceTime(7, 12.5, 0.25),
    messages.Lift(3.5),
    messages.Lift(1e9 / WEIGHT.least),  # of a job that hardly counts
    messages.Call("x", TERMS),
    messages.RanOut(),
    messages.Prepare(1, Cut(2, 1040), TERMS),
    messages.Prepared(1),
    messages.Begin("x", 1),
    messages.Drop(1),
    messages.Decline("x", Disagreement("ranks differ", "x")),
    messages.AllOut(2),
]


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_every_message_comes_back_as_it_was(message: messages.Message) -> None:
    assert messages.decode(messages.encode(message)) == message
    assert messages.decode(bytearray(messages.encode(message))) == message


def test_no_kind_of_message_is_left_out_here() -> None:
    assert {type(message) for message in ALL} == set(messages.Message.__args__)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"hello",
        msgspec.msgpack.encode({"type": "Arrive"}),
        msgspec.msgpack.encode({"type": "Nobody", "rank": 1}),
        msgspec.msgpack.encode({"type": "Lost", "loss": {"rank": "one", "seen_by": 0}}),
        messages.encode(ALL[0])[:-1],
        messages.encode(ALL[0]) + b"x",
        pickle.dumps(ALL[0]),
        msgspec.msgpack.encode({"type": "Goodbye", "error": "?"}).replace(b"\xa1?", b"\xa1\xff"),
        b"\x91" * 100_000,
        msgspec.msgpack.encode({"type": "Lost", "loss": {"rank": -5, "seen_by": 0}}),
        msgspec.msgpack.encode({"type": "AskTime", "asked_s": math.nan}),
        msgspec.msgpack.encode({"type": "DeviceTime", "step": 1, "virtual_s": math.inf, "cost_s": 0.0}),
        messages.encode(messages.Prepare(1, Cut(-1, 1 << 20), TERMS)),
        messages.encode(messages.Prepare(1, Cut(0, 0), TERMS)),
    ],
)
def test_anything_else_is_an_error_of_one_kind(data: bytes) -> None:
    with pytest.raises(Garbled, match=r"^a control message cannot be read: "):
        messages.decode(data)
