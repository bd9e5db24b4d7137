"""Arbiter process of one host: it serves a Unix socket that only its own user can reach.

    python -m undertow.crossover.arbiter SOCKET LEASE_S

In: connections of workers and of `undertow share`.  Out: the messages of `ArbiterState`, in order.
A worker whose connection closes has left; a connection that sends nonsense, or does not read, is
closed.  No job depends on the arbiter: workers that lose it compute without turns until there is
one again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import IO

from undertow.crossover import messages
from undertow.crossover.arbiter_state import ArbiterState, Outgoing
from undertow.crossover.messages import FromArbiter, make_lines
from undertow.crossover.socket_path import find_peer, prepare_folder
from undertow.crossover.turns import LEASE_S
from undertow.engine.wire.listeners import listen
from undertow.engine.wire.strangers import find_surplus
from undertow.errors import ConfigError, Garbled

log = logging.getLogger("undertow.share")

MOST_CONNECTIONS = 512
MOST_UNREAD_BYTES = 1 << 18


class ArbiterConnection:
    """Connection of a worker or a command."""

    def __init__(self, number: int, accepted: socket.socket) -> None:
        self.number = number
        self.socket = accepted
        self.lines = make_lines()
        self.unsent = b""
        self.has_sent = False

    def send(self, message: FromArbiter) -> None:
        """Send as soon as the socket has room.  Raises OSError if the other end leaves too much unread."""
        self.unsent += messages.encode(message)
        self.flush()
        if len(self.unsent) > MOST_UNREAD_BYTES:
            raise OSError("its other end does not read")

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]


class Arbiter:
    """Server at one socket.  `run` returns after a `Stop`."""

    def __init__(self, path: Path, lease_s: float = LEASE_S) -> None:
        self._state = ArbiterState(lease_s)
        self._path = path
        self._began_s = time.monotonic()
        self._connections: dict[int, ArbiterConnection] = {}
        self._numbers = 0
        self._is_running = True
        self._logged = ""
        self._selector = selectors.DefaultSelector()
        prepare_folder(path)
        self._lock = _claim(path)
        self._listener = _listen(path)
        self._spare = os.open(os.devnull, os.O_RDONLY)  # gives up its descriptor when there is no other: see `_refuse`
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def run(self) -> None:
        try:
            while self._is_running:
                for key, events in self._selector.select(self._find_timeout_s()):
                    if key.data is None:
                        self._accept()
                    else:
                        self._serve(key.data, events)
                self._deliver(self._state.tick(time.monotonic()))
        finally:
            self.close()

    def stop(self) -> None:
        self._is_running = False

    def close(self) -> None:
        """Close all connections.  Workers notice, and go on without turns."""
        # Remove the path first: a worker that looks for an arbiter now must not find one that is about to exit.
        self._path.unlink(missing_ok=True)
        for connection in list(self._connections.values()):
            connection.socket.close()
        self._listener.close()
        os.close(self._spare)
        self._selector.close()
        self._lock.close()

    def _find_timeout_s(self) -> float | None:
        deadline_s = self._state.deadline_s
        return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse()
            return  # otherwise the client has disconnected already
        peer = find_peer(accepted)
        # If the kernel does not identify the peer, the folder's permissions have to suffice.
        if (peer is not None and peer.user != os.getuid()) or not self._make_room():
            accepted.close()
            return
        accepted.setblocking(False)
        self._numbers += 1
        connection = self._connections[self._numbers] = ArbiterConnection(self._numbers, accepted)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _make_room(self) -> bool:
        """Return whether one more fits.  If necessary, close the oldest connection that has sent nothing yet."""
        if len(self._connections) < MOST_CONNECTIONS:
            return True
        idle = find_surplus([each for each in self._connections.values() if not each.has_sent], most=1)
        if idle is not None:
            self._drop(idle)
        return idle is not None

    def _refuse(self) -> None:
        """Close a connection for which there is no descriptor: while it is pending, the selector returns at once."""
        os.close(self._spare)
        with contextlib.suppress(OSError):
            self._listener.accept()[0].close()
        self._spare = os.open(os.devnull, os.O_RDONLY)

    def _serve(self, connection: ArbiterConnection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                connection.flush()
                self._watch(connection)
            if events & selectors.EVENT_READ:
                self._read(connection)
        except (OSError, Garbled) as error:
            self._drop(connection, str(error))

    def _read(self, connection: ArbiterConnection) -> None:
        try:
            data = connection.socket.recv(messages.CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._drop(connection)
            return
        connection.has_sent = True
        for line in connection.lines.feed(data):
            if connection.number not in self._connections:
                return  # dropped because of an earlier line: a Hello now would add it again
            message = messages.to_arbiter.decode(line)
            now = time.monotonic()
            if isinstance(message, messages.Query):
                self._deliver([(connection.number, self._describe(now))])
            elif isinstance(message, messages.Stop):
                log.info("asked to stop")
                self.stop()
            else:
                self._deliver(self._state.handle(connection.number, message, now))

    def _deliver(self, outgoing: Outgoing) -> None:
        """Send in this order; then drop the connections that failed, and send what follows from that."""
        failed: list[tuple[ArbiterConnection, str]] = []
        for number, message in outgoing:
            connection = self._connections.get(number)
            if connection is None:
                continue
            if isinstance(message, messages.Notice) and message.text != self._logged:
                self._logged = message.text  # several workers get the same notice
                log.warning("%s", message.text)
            try:
                connection.send(message)
                self._watch(connection)
            except OSError as error:
                failed.append((connection, str(error)))
        for connection, reason in failed:
            self._drop(connection, reason)

    def _watch(self, connection: ArbiterConnection) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, connection)

    def _drop(self, connection: ArbiterConnection, reason: str = "") -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        if reason:
            log.warning("a connection was closed: %s", reason)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._deliver(self._state.remove(connection.number, time.monotonic()))

    def _describe(self, now: float) -> messages.Status:
        return messages.Status(
            pid=os.getpid(),
            lease_s=self._state.lease_s,
            up_s=now - self._began_s,
            devices=self._state.describe(now),
            notices=list(self._state.notices),
        )


def _claim(path: Path) -> IO[bytes]:
    """Lock this socket's path until the returned file is closed."""
    lock = path.with_name(f"{path.name}.lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"an arbiter is already up at {path}: see undertow share status") from None
    return lock


def _listen(path: Path) -> socket.socket:
    if path.is_socket():
        path.unlink()  # left by an arbiter that was killed: a running one would hold the lock
    mask = os.umask(0o177)
    try:
        return listen(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), str(path), MOST_CONNECTIONS)
    finally:
        os.umask(mask)


def main(arguments: list[str]) -> None:
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    arbiter = Arbiter(Path(arguments[0]), float(arguments[1]))
    log.info("the arbiter is up, process %d", os.getpid())
    # Exit at once: nothing that the arbiter does needs to be finished.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    arbiter.run()


if __name__ == "__main__":
    main(sys.argv[1:])
