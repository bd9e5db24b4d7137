"""Targets: what workers of one group say to each other, from the handshake to the engine of a group."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from tests.fuzz.mutation import NUMBERS, damage_bytes, damage_msgpack
from tests.fuzz.target import Target
from tests.support.fake_group import make_shape
from undertow.engine.client.calls import NamedCall
from undertow.engine.client.group import ConnectedGroup
from undertow.engine.coordinator import messages
from undertow.engine.coordinator.agreement import DIFFERENCE, LATEST, Agreements, Keys
from undertow.engine.coordinator.messages import Arrive, TableProposal
from undertow.engine.coordinator.terms import Disagreement, Route, Terms
from undertow.engine.core import frames
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import HEADER_BYTES, Header, Kind
from undertow.engine.core.membership import Loss
from undertow.engine.core.rounds import EVERYONE, KeySpec, Op
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Cut, Slice, TensorRange, TensorSpec
from undertow.engine.wire.auth import Handshake, Role
from undertow.engine.wire.link import Link
from undertow.errors import Garbled, Refused
from undertow.sizing import Sizes

TOKEN = b"token"
JOB, SIZE, PEER = 7, 3, 2
SPEC = TensorSpec("w", (2, 3), DType.FLOAT32, 6)
TERMS = Terms("allreduce", Route.SLICES, Op.SUM, [SPEC], "root 0")
TABLE = TableProposal("Net", [SPEC], Op.MEAN, False)
pack = msgspec.msgpack.encode
CONTROL = [
    messages.Arrive(1, "barrier", b""),
    messages.Arrive(1, "tensors", pack(TABLE)),
    messages.Arrive(1, "join", pack([3])),
    messages.AgreementResult(1, pack(Cut(0, 1024))),
    messages.Ended([5, 7]),
    messages.Goodbye("a reason"),
    messages.Farewell(),
    messages.Lost(Loss(1, 0, "its connection closed")),
    messages.Joined([1, 2], 0, True),
    messages.Discarded(1),
    messages.Discarded(4),
    messages.AskMissing(1, 1),
    messages.Missing(1, [0, 2]),
    messages.AskTime(1.5),
    messages.Time(1.5, 2.5),
    messages.SideMessage(b"status"),
    messages.DeviceTime(3, 1.5, 0.1),
    messages.Lift(2.5),
    messages.Call("x", TERMS),
    messages.Call("y", Terms("allgather", Route.EVERYONE, allows_absent=True)),
    messages.RanOut(),
    messages.Prepare(0, Cut(100, 1024), TERMS),
    messages.Prepared(0),
    messages.Begin("x", 0),
    messages.Drop(0),
    messages.Decline("x", Disagreement("ranks differ", "x", "w", (0, 2))),
    messages.AllOut(1),
]


class HandLoop:
    """A loop without a thread: what is posted runs at once, and timers never."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()

    def watch(self, sock: socket.socket, events: int, call: Callable[[int], None]) -> None:
        self.selector.register(sock, events, call)

    def rewatch(self, sock: socket.socket, events: int, call: Callable[[int], None]) -> None:
        self.selector.modify(sock, events, call)

    def unwatch(self, sock: socket.socket) -> None:
        self.selector.unregister(sock)

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        call(*arguments)

    def later(self, delay_s: float, call: Callable[[], None]) -> None: ...

    def every_tick(self, call: Callable[[float], None]) -> None: ...

    def no_tick(self, call: Callable[[float], None]) -> None: ...

    def on_failure(self, call: Callable[[Exception], None]) -> None: ...


class Nowhere:
    """A transport whose peers are all connected, and read nothing."""

    bytes_sent = 0
    is_draining = False

    def send(self, peer: int, header: bytes, body: Any = None) -> None:
        assert 0 <= peer < SIZE

    def is_connected(self, peer: int) -> bool:
        return True

    def checks_bodies(self, peer: int) -> bool:
        return True

    def close(self) -> None: ...

    def abandon(self) -> None: ...


def make_group(rank: int, loop: Any = None) -> ConnectedGroup:
    """In the middle of its work: it knows keys, has contributed to some, and has called the others."""
    shape = Shape(
        rank=rank,
        hosts=["alpha", "beta", "gamma"],
        job=JOB,
        sizes=Sizes(),
        credit_bytes=1 << 20,
        silence_timeout_s=10.0,
        stall_timeout_s=10.0,
    )
    transport: Any = Nowhere()
    group = ConnectedGroup(shape, loop or HandLoop(), transport)
    parts = (TensorRange(0, 0, 4, 0),)
    slices = [Slice(KeySpec(key, 4, DType.FLOAT32, Op.SUM, key % SIZE, key == 4), parts) for key in range(6)]
    slices += [Slice(KeySpec(key, 0, DType.BYTES, Op.GATHER, EVERYONE), parts) for key in (10, 11)]
    group._exchange.learn(slices)
    numbers = np.ones(4, np.float32)
    own = [Contribution(key, numbers.copy(), numbers.copy(), 1, lambda item: None) for key in (0, 1, 2, 3)]
    own.append(Contribution(10, np.ones(8, np.uint8), None, 1, lambda item: None))
    group.contribute(own)
    group.calls.begin(NamedCall("x", TERMS, lambda slices, answer: [_contribute(item, answer) for item in slices]))
    group.begin_agreement("barrier")
    return group


def _contribute(item: Slice, answer: Callable[[Contribution], None]) -> Contribution:
    array = np.ones(item.spec.elements, item.spec.dtype.numpy)
    return Contribution(item.spec.key, array, array.copy(), 1, answer)


def check_engine(group: ConnectedGroup) -> None:
    """Whatever was said, it may have failed the group, but not by a defect of ours."""
    error = group.error
    if error is not None and str(error).startswith("the engine failed"):
        raise AssertionError(str(error)) from error


def run_control(data: bytes) -> None:
    """Several messages, each with its length, to the coordinator and to another rank."""
    for rank in (0, 1):
        group = make_group(rank)
        for body in _split(data):
            group.receiver.arrived(
                PEER if rank == 0 else 0, _header(PEER if rank == 0 else 0, len(body)), bytearray(body)
            )
        check_engine(group)


def mutate_control(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    bodies = [rng.choice(samples)[4:] for _ in range(rng.randrange(1, 6))]
    return b"".join(_with_length(damage_msgpack(rng, [body]) if rng.random() < 0.6 else body) for body in bodies)


def run_link(data: bytes) -> None:
    """A real socket, whose other end sends these bytes and closes."""
    loop: Any = HandLoop()
    group = make_group(1, loop)
    ours, theirs = socket.socketpair()
    with theirs, ours, loop.selector:
        lost: list[str] = []
        link = Link(ours, PEER, loop=loop, receiver=group.receiver, on_lost=lost.append)
        theirs.setblocking(False)
        for start in range(0, len(data), 1 << 14):
            if not link.is_open:
                break
            theirs.send(data[start : start + (1 << 14)])
            _turn(loop)
        theirs.shutdown(socket.SHUT_WR)
        _turn(loop)
        assert not link.is_open
        assert not link.is_draining
        assert len(lost) == 1
    check_engine(group)


def _turn(loop: HandLoop) -> None:
    while loop.selector.get_map() and (ready := loop.selector.select(0)):
        for key, events in ready:
            key.data(events)


def mutate_frames(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """Frames with a right checksum and any numbers; now and then bytes that are none."""
    made = b""
    for _ in range(rng.randrange(1, 8)):
        if rng.random() < 0.2:
            made += damage_bytes(rng, samples)
            continue
        length = rng.choice((0, 0, 1, 16, 16, 24, 300))
        header = Header(
            rng.choice(list(Kind)),
            key=_number(rng, rng.randrange(12), 32),
            step=_number(rng, rng.randrange(3), 32),
            rank=rng.choice((PEER, PEER, PEER, 0, 5)),
            present=_number(rng, rng.randrange(2), 64),
            length=_number(rng, length, 64) if rng.random() < 0.05 else length,
            dtype=rng.choice((DType.FLOAT32, DType.FLOAT32, DType.BYTES, DType.INT64)),
            flags=rng.choice((0, 1, 2, 4, 255)),
            job=JOB,
        )
        body = rng.choice(samples)[HEADER_BYTES:] if header.kind is Kind.CONTROL else rng.randbytes(length)
        made += frames.pack(header, _number(rng, 0, 64)) + body[:length].ljust(length, b"\0")
    return made


def _number(rng: random.Random, usual: int, bits: int) -> int:
    numbers = [number for number in NUMBERS if isinstance(number, int) and 0 <= number < 1 << bits]
    return rng.choice(numbers) if rng.random() < 0.15 else usual


def run_handshake(data: bytes) -> None:
    """To both ends, piece by piece."""
    for handshake in _make_ends():
        handshake.start()
        rest = data
        with contextlib.suppress(Refused):
            while rest and not handshake.done:
                wanted = min(handshake.wants, 1 + len(rest) // 2)
                handshake.feed(rest[:wanted])
                rest = rest[wanted:]


def _make_ends() -> tuple[Handshake, Handshake]:
    return Handshake(Role.DIALER, TOKEN, b"d" * 16), Handshake(Role.LISTENER, TOKEN, b"l" * 16)


def list_handshakes() -> list[bytes]:
    dialer, listener = _make_ends()
    greeting = dialer.start()
    answer = listener.feed(greeting)
    proof = dialer.feed(answer)
    return [greeting + proof, answer + listener.feed(proof)]


def run_agreement(data: bytes) -> None:
    """What one rank brings, and in another agreement both."""
    for matter, payload in AGREED:
        for payloads in ([payload, data], [data, data]):
            made = Agreements(make_shape(2), Keys())
            for rank, brought in enumerate(payloads):
                verdicts = made.arrive(rank, Arrive(1, matter, brought))
            assert [rank for rank, _ in verdicts] == [0, 1]


AGREED = [("tensors", pack(TABLE)), ("digest", pack([("w", b"digest")])), ("join", pack([3, 4]))]


def run_verdict(data: bytes) -> None:
    for decode in (LATEST.decode, DIFFERENCE.decode):
        try:
            decode(data)
        except Garbled:
            continue


def run_cut(data: bytes) -> None:
    """As what the coordinator says of the tensors that this rank registers."""
    group = make_group(1)
    with mock.patch.object(group, "agree", return_value=data):
        slices = group.register("Net", [SPEC], op=Op.MEAN)
    assert sum(part.elements for item in slices for part in item.ranges) == SPEC.elements
    check_engine(group)


def _header(rank: int, length: int) -> Header:
    return Header(Kind.CONTROL, rank=rank, length=length, job=JOB)


def _with_length(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


def _split(data: bytes) -> list[bytes]:
    bodies = []
    while data:
        length = int.from_bytes(data[:4], "little")
        bodies.append(data[4 : 4 + length])
        data = data[4 + length :]
    return bodies


def make_targets() -> list[Target]:
    control = [messages.encode(message) for message in CONTROL]
    framed = [frames.pack(_header(PEER, len(body))) + body for body in control]
    framed += [frames.pack(Header(Kind.PUSH, key=1, step=1, rank=PEER, length=16, dtype=DType.FLOAT32, job=JOB))]
    return [
        Target(name="frame header", samples=framed, run=lambda data: frames.unpack(data.ljust(HEADER_BYTES, b"\0"))),
        Target(name="handshake", samples=list_handshakes(), run=run_handshake),
        Target(
            name="control message",
            decodes=("engine/coordinator/messages.py",),
            samples=control,
            run=messages.decode,
            mutate=damage_msgpack,
            allowed=(Garbled,),
        ),
        Target(
            name="control",
            decodes=("engine/coordinator/messages.py",),
            samples=[_with_length(one) for one in control],
            run=run_control,
            mutate=mutate_control,
        ),
        Target(
            name="link",
            decodes=("engine/coordinator/messages.py",),
            samples=framed,
            run=run_link,
            mutate=mutate_frames,
            cost=2,
        ),
        Target(
            name="agreement",
            decodes=("engine/coordinator/agreement.py",),
            samples=[one for _, one in AGREED],
            run=run_agreement,
            mutate=damage_msgpack,
        ),
        Target(
            name="cut of tensors",
            decodes=("engine/client/group.py",),
            samples=[pack(Cut(100, 1024))],
            run=run_cut,
            mutate=damage_msgpack,
            cost=4,
        ),
        Target(
            name="verdict",
            decodes=("engine/coordinator/agreement.py",),
            samples=[pack((1, [3, 4], True)), pack(("w", [1, 2]))],
            run=run_verdict,
            mutate=damage_msgpack,
        ),
    ]
