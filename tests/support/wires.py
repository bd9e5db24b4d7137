"""All transports behind one interface, so that one suite can check each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from undertow.engine.core.frames import Body, Header, Kind, pack
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.memory import MemoryNetwork
from undertow.engine.wire.sockets import SocketTransport
from undertow.engine.wire.transport import Transport
from undertow.settings import Checksum

HANG_S = 30.0  # nothing here takes this long
TOKEN, JOB, HOST = b"the token of this job", 7, "127.0.0.1"


class Recorder:
    """A receiver that keeps everything it receives; bodies of keys in `unwanted` are dropped."""

    def __init__(self, changed: threading.Condition) -> None:
        self.unwanted: set[int] = set()
        self.connections: list[int] = []
        self.losses: list[tuple[int, str]] = []
        self.on_lost: Callable[[int], None] = lambda peer: None
        self.frames: list[tuple[int, int, bytes | None]] = []  # peer, key, body
        self._changed = changed

    def sink(self, peer: int, header: Header) -> Any | None:
        return None if header.key in self.unwanted else bytearray(header.length)

    def arrived(self, peer: int, header: Header, body: Any | None) -> None:
        self._keep(self.frames, (peer, header.key, None if body is None else bytes(body)))

    def connected(self, peer: int) -> None:
        self._keep(self.connections, peer)

    def lost(self, peer: int, reason: str) -> None:
        self.on_lost(peer)
        self._keep(self.losses, (peer, reason))

    def _keep(self, kept: list[Any], item: Any) -> None:
        with self._changed:
            kept.append(item)
            self._changed.notify_all()


class Wires(Protocol):
    """Connected workers.  `run` calls a function in the thread of the transports; `until` delivers frames meanwhile."""

    transports: list[Any]
    recorders: list[Recorder]

    def run(self, call: Callable[[], Any]) -> Any: ...

    def until(self, condition: Callable[[], bool]) -> None: ...

    def close(self) -> None: ...


class MemoryWires:
    def __init__(self, size: int) -> None:
        self._network = MemoryNetwork(size)
        self.transports: list[Transport] = list(self._network.transports)
        self.recorders = [Recorder(threading.Condition()) for _ in range(size)]
        self._network.connect(self.recorders)

    def run(self, call: Callable[[], Any]) -> Any:
        return call()

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            links = self._network.links_with_frames()
            assert links, "no frames are left"
            self._network.deliver(*links[0])

    def close(self) -> None: ...


class SocketWires:
    """Real links on this host: TCP over loopback, or Unix sockets."""

    def __init__(self, size: int, *, local: bool = False, checksum: Checksum = Checksum.AUTO) -> None:
        self._local = local
        self._changed = threading.Condition()
        self.loop = Loop()
        self.loop.start()
        self.transports = [
            SocketTransport(self.loop, rank=rank, size=size, host=HOST, silence_s=10.0) for rank in range(size)
        ]
        self.recorders = [Recorder(self._changed) for _ in range(size)]
        for transport, recorder in zip(self.transports, self.recorders, strict=True):
            transport.admit(TOKEN, JOB, checksum)
            self.run(lambda transport=transport, recorder=recorder: transport.start(recorder))

    def connect(self) -> SocketWires:
        for rank, transport in enumerate(self.transports):
            for peer in range(rank):
                listener = self.transports[peer]
                transport.dial(peer, listener.local_address if self._local else listener.address, HANG_S)
        everyone = len(self.transports) - 1
        self.until(lambda: all(len(recorder.connections) == everyone for recorder in self.recorders))
        return self

    def run(self, call: Callable[[], Any]) -> Any:
        done, result = threading.Event(), []

        def work() -> None:
            result.append(call())
            done.set()

        self.loop.post(work)
        assert done.wait(HANG_S)
        return result[0]

    def until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, HANG_S), "it did not happen"

    def close(self) -> None:
        for transport in self.transports:
            self.run(transport.close)
        self.loop.stop()


def send(wires: Wires, sender: int, receiver: int, key: int, body: Any = None) -> None:
    length = 0 if body is None else memoryview(body).nbytes
    header = Header(Kind.PUSH, key=key, rank=sender, length=length, job=JOB)
    packed = pack(header, checked_body=None if body is None else Body(body))
    wires.run(lambda: wires.transports[sender].send(receiver, packed, body))
