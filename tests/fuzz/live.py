"""Targets: servers with real sockets.  After each input an honest guest must be served as before."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.mutation import damage_bytes, damage_lines
from tests.fuzz.target import Target
from tests.fuzz.wire import JOB, PEER, SIZE, check_engine, make_group
from tests.support.arbiters import hello_of, stop
from tests.support.live_samples import make_report
from undertow.crossover import contact, messages
from undertow.crossover.arbiter import Arbiter
from undertow.engine.coordinator.rendezvous import RendezvousServer, attend, parse_address
from undertow.engine.coordinator.rendezvous_table import Join
from undertow.engine.core import frames
from undertow.engine.core.dtypes import DType
from undertow.engine.core.frames import Header, Kind
from undertow.engine.wire import streams
from undertow.engine.wire.auth import Role, shake_hands
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.sockets import INTRODUCTION, SocketTransport
from undertow.launch.host_watch import Beat, Goodbye, HostRanks, Lost
from undertow.launch.launcher_link import LauncherLink
from undertow.observe.live.live_view import StatusReceiver
from undertow.observe.meter.status_report import StatusReport, encode
from undertow.tools.doctor.link_measurement import ConnectResult, try_connection
from undertow.tools.doctor.probe_protocol import Echo, Take
from undertow.tools.doctor.probe_server import ProbeServer

TOKEN = b"token"
HANG_S = 10.0
HOSTS = [HostRanks(name, rank, 1) for rank, name in enumerate("abc")]


def say(address: str, data: bytes, *, is_friend: bool = True) -> None:
    """Connect, say this after the handshake or in its place, and leave."""
    with contextlib.suppress(OSError), socket.create_connection(parse_address(address), timeout=HANG_S) as sock:
        if is_friend:
            shake_hands(sock, Role.DIALER, TOKEN)
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass


class Opened:
    """A server that is opened with the first input."""

    def __init__(self, open_server: Callable[[], Any]) -> None:
        self._open = open_server
        self._server: Any = None

    def get(self) -> Any:
        if self._server is None:
            self._server = self._open()
        return self._server

    def forget(self) -> None:
        self._server = None

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def _open_point() -> RendezvousServer:
    point = RendezvousServer("127.0.0.1", 0, TOKEN)
    point.start()
    return point


def _open_probe_server() -> ProbeServer:
    server = ProbeServer("127.0.0.1")
    server.serve(TOKEN)
    return server


class _Office:
    """A real arbiter in a thread."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="ut-")
        self.path = Path(self._folder) / "s"
        self._arbiter = Arbiter(self.path, 30.0)
        self._thread = threading.Thread(target=self._arbiter.run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        stop(self.path)
        self._thread.join(HANG_S)
        shutil.rmtree(self._folder)


class _Box:
    """A receiver that keeps the last report."""

    def __init__(self) -> None:
        self.heard = threading.Event()
        self.receiver = StatusReceiver(self._hear)
        self.receiver.start()
        self.sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def _hear(self, report: StatusReport) -> None:
        if report.host == "honest":
            self.heard.set()

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


def run_rendezvous(point: RendezvousServer, data: bytes) -> None:
    say(point.address, data, is_friend=data[:1] != b"\x55")
    payload = b"honest"
    assert attend(point.address, TOKEN, name="honest", rank=0, size=1, payload=payload, timeout_s=HANG_S) == [payload]


def run_probe(server: ProbeServer, data: bytes) -> None:
    say(server.address, data)
    assert try_connection(server.address, TOKEN) is ConnectResult.REACHED


def run_arbiter(office: _Office, data: bytes) -> None:
    if b"Stop" in data:
        return  # it obeys
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(HANG_S)
        sock.connect(str(office.path))
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    assert contact.ask_status(office.path) is not None


def run_receiver(box: _Box, data: bytes) -> None:
    box.heard.clear()
    with contextlib.suppress(OSError):  # longer than a datagram
        box.sender.sendto(data or b"\0", str(box.receiver.path))
    box.sender.sendto(encode(make_report(0, 1, host="honest")), str(box.receiver.path))
    assert box.heard.wait(HANG_S), "the receiver hears nothing any more"


def _find_box(box: Opened) -> _Box:
    """A fresh one if its folder is gone: who tidies up /tmp meanwhile is no failure of the decoder's."""
    opened: _Box = box.get()
    if not opened.receiver.path.exists():
        box.forget()
        opened = box.get()
    return opened


def run_launchers(data: bytes) -> None:
    """The first launcher waits for two others, one of which says this."""
    line = LauncherLink()
    try:
        address = line.listen("127.0.0.1", TOKEN)
        line.start(0, HOSTS)
        say(address, data)
        assert line._loop._thread.is_alive() or line.cause, "the thread between launchers has ended"
    finally:
        line.close()


def run_group(data: bytes) -> None:
    """A worker of a group, with its engine thread, whom somebody with the token dials."""
    loop = Loop()
    transport = SocketTransport(loop, rank=0, size=SIZE, host="127.0.0.1", silence_s=10.0)
    transport.admit(TOKEN, JOB)
    group = make_group(0, loop)
    loop.start()
    try:
        loop.post(transport.start, group.receiver)
        say(transport.address, data)
        served = threading.Event()
        loop.post(served.set)
        assert served.wait(HANG_S), "the engine thread has ended"
        check_engine(group)
    finally:
        loop.post(transport.close)
        loop.stop()


def make_targets() -> list[Target]:
    point, doctor, office, box = Opened(_open_point), Opened(_open_probe_server), Opened(_Office), Opened(_Box)
    joins = [streams.pack(Join("m", rank, 2, b"payload", 10.0, 9.5)) for rank in (0, 1)]
    joins.append(b"\x55TOW\x01\x00" + bytes(16))
    lines = [
        b"".join(map(messages.encode, [hello_of("a"), messages.Ask(1.0, 0.1), messages.Give(), messages.Query()])),
        b"".join(map(messages.encode, [hello_of("a"), messages.EndStep(1, 1, 0.5, 0.1), messages.Lift(3.0)])),
    ]
    launchers = [
        streams.pack(1) + streams.pack(Beat()) + streams.pack(Goodbye()),
        streams.pack(2) + streams.pack(Lost("a cause")),
    ]
    header = Header(Kind.PUSH, key=0, step=1, rank=PEER, length=16, dtype=DType.FLOAT32, job=JOB)
    dialers = [INTRODUCTION.pack(JOB, PEER) + frames.pack(header) + bytes(16), INTRODUCTION.pack(JOB, 0)]
    probes = [streams.pack(Echo(1)) + bytes(8), streams.pack(Take(0.001)) + b"data"]
    return [
        Target(
            name="live rendezvous",
            decodes=("engine/coordinator/rendezvous_server.py", "engine/coordinator/rendezvous.py"),
            samples=joins,
            run=lambda data: run_rendezvous(point.get(), data),
            mutate=damage_bytes,
            cost=16,
            finish=point.close,
        ),
        Target(
            name="live doctor",
            decodes=("tools/doctor/probe_server.py", "tools/doctor/probe_protocol.py"),
            samples=probes,
            run=lambda data: run_probe(doctor.get(), data),
            cost=64,
            finish=doctor.close,
        ),
        Target(
            name="live arbiter",
            decodes=("crossover/messages.py",),
            samples=lines,
            run=lambda data: run_arbiter(office.get(), data),
            mutate=damage_lines,
            cost=16,
            finish=office.close,
        ),
        Target(
            name="live receiver",
            decodes=("observe/meter/status_report.py",),
            samples=[encode(make_report(1, 2))],
            run=lambda data: run_receiver(_find_box(box), data),
            cost=4,
            finish=box.close,
        ),
        Target(
            name="live launchers",
            decodes=("launch/launcher_link.py",),
            samples=launchers,
            run=run_launchers,
            cost=64,
        ),
        Target(name="live group", samples=dialers, run=run_group, cost=64),
    ]
