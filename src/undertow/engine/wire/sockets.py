"""The transport over sockets: one connection for each pair of workers.

Workers on different hosts use TCP, workers on the same host a Unix socket, which takes a quarter less CPU time.

In: a listening socket, the addresses of the peers, the token.
Out: links to peers that know the token.  Strangers are refused, counted and
logged once per reason; they cannot keep a peer out.
The lower rank listens, the higher rank dials.
"""

from __future__ import annotations

import logging
import secrets
import socket
import struct
import sys
from collections import Counter
from typing import Any

from undertow.engine.wire.auth import introduce
from undertow.engine.wire.link import Link
from undertow.engine.wire.listeners import format_address, listen
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.routes import look_up
from undertow.engine.wire.strangers import MAX_STRANGERS, Stranger, Strangers
from undertow.engine.wire.transport import Receiver
from undertow.errors import ConfigError, Refused
from undertow.settings import Checksum
from undertow.tracing.recorder import Recorder

log = logging.getLogger("undertow")

INTRODUCTION = struct.Struct("<II")  # job, rank; sent by the dialer after the handshake
LOCAL = "unix:"  # prefix of the address of a Unix socket
BACKLOG = 128


class SocketTransport:
    """Transport of one group over sockets.  Can be made and closed in any thread; used in the engine thread."""

    def __init__(
        self,
        loop: Loop,
        *,
        rank: int,
        size: int,
        host: str,
        silence_s: float,
        recorder: Recorder | None = None,
    ) -> None:
        self.refused: Counter[str] = Counter()  # refused connections by reason
        self._loop = loop
        self._rank = rank
        self._size = size
        self._silence_s = silence_s
        self._checksum = Checksum.AUTO
        self._recorder = recorder
        self._job = 0
        self._token = b""
        self._links: dict[int, Link] = {}
        self._checked_peers: set[int] = set()  # peers to which frames carry checksums of their bodies
        self._listener = _listen(host, max(BACKLOG, 2 * size))
        self._local_listener = _listen_locally(max(BACKLOG, 2 * size))
        self._strangers = Strangers(
            loop,
            [self._listener, *([self._local_listener] if self._local_listener else [])],
            self._admit,
            refuse=self._refuse,
            find_missing=lambda introduction: INTRODUCTION.size - len(introduction),
            most=max(MAX_STRANGERS, 2 * size),  # all workers of the group may connect at once
        )
        self._receiver: Receiver | None = None
        self._closed = False

    @property
    def address(self) -> str:
        return format_address(*self._listener.getsockname()[:2])

    @property
    def local_address(self) -> str:
        """Address of the Unix socket for workers on this host; empty if there is none."""
        return LOCAL + self._local_listener.getsockname()[1:].decode() if self._local_listener else ""

    def admit(self, token: bytes, job: int, checksum: Checksum = Checksum.AUTO) -> None:
        """Set the token and job that peers must have, and the use of checksums.  Call it before `start` and `dial`."""
        self._token = token
        self._job = job
        self._checksum = checksum

    def start(self, receiver: Receiver) -> None:
        """Begin to accept peers.  To be called in the engine thread."""
        self._receiver = receiver
        self._strangers.start(self._token)

    def dial(self, peer: int, address: str, timeout_s: float) -> None:
        """Connect to a peer that listens.  Blocks, so it must not be called in the engine thread."""
        sock = introduce(_connect(address, timeout_s), self._token, INTRODUCTION.pack(self._job, self._rank))
        self._loop.post(self._adopt, sock, peer)

    def send(self, peer: int, header: bytes, body: Any = None) -> None:
        link = self._links.get(peer)
        if link is not None and link.is_open:
            link.send(header, body)

    def is_connected(self, peer: int) -> bool:
        return peer in self._links and self._links[peer].is_open

    @property
    def is_draining(self) -> bool:
        return any(link.is_draining for link in self._links.values())

    def checks_bodies(self, peer: int) -> bool:
        return peer in self._checked_peers

    @property
    def bytes_sent(self) -> int:
        return sum(link.bytes_sent for link in self._links.values())

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._strangers.close()
        for link in self._links.values():
            link.close()

    def abandon(self) -> None:
        for link in self._links.values():
            link.abandon()
        self._strangers.abandon()

    def _admit(self, stranger: Stranger) -> None:
        job, peer = INTRODUCTION.unpack(stranger.introduction)
        if job != self._job or not self._rank < peer < self._size or peer in self._links:
            raise Refused("it knows the token but is not expected in this group")
        self._adopt(stranger.sock, peer)

    def _adopt(self, sock: socket.socket, peer: int) -> None:
        assert self._receiver is not None
        if self._closed:
            sock.close()
            return
        tune(sock, self._silence_s)
        if self._checksum is Checksum.ON or (self._checksum is Checksum.AUTO and sock.family != socket.AF_UNIX):
            self._checked_peers.add(peer)
        receiver = self._receiver
        self._links[peer] = Link(
            sock,
            peer,
            loop=self._loop,
            receiver=receiver,
            on_lost=lambda reason: receiver.lost(peer, reason),
            recorder=self._recorder,
        )
        receiver.connected(peer)

    def _refuse(self, error: Exception, stranger: Stranger) -> None:
        reason = str(error)
        self.refused[reason] += 1
        if self.refused[reason] == 1:
            origin = stranger.address[0] if stranger.address else "this host"
            log.warning("refused a connection from %s: %s (the next ones are only counted)", origin, reason)


def _listen(host: str, backlog: int) -> socket.socket:
    try:
        family, _, _, _, where = look_up(host, 0)[0]
        return listen(socket.socket(family, socket.SOCK_STREAM), where, backlog)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror}; give an address of this host") from None


def _listen_locally(backlog: int) -> socket.socket | None:
    """Listen on a Unix socket with an abstract name, which needs no file and no cleaning up.

    It is visible only in this network namespace, and protected by the token like every other listener.
    """
    if sys.platform != "linux":
        return None
    name = f"\0undertow-{secrets.token_hex(8)}"
    return listen(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), name, backlog)


def _connect(address: str, timeout_s: float) -> socket.socket:
    if not address.startswith(LOCAL):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        sock.connect("\0" + address.removeprefix(LOCAL))
    except BaseException:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket, silence_s: float) -> None:
    """Send small frames without delay, and fail if the peer's host stops acknowledging."""
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))
