"""Process of the arbiter: a Unix socket that only its user may talk to, one per host.

    python -m undertow.crossover.arbiter SOCKET LEASE_S

In: connections of workers and of `undertow share`.  Out: what the `ArbiterState` says, in order.
A connection that ends has left; one that sends nonsense, or does not read, is closed.  No job
depends on it: workers whose arbiter is gone compute without turns until there is one again.
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
        """Send now, or when there is room.  Raises OSError if the other end has not read for long."""
        self.unsent += messages.encode(message)
        self.flush()
        if len(self.unsent) > MOST_UNREAD_BYTES:
            raise OSError("it does not read what it is sent")

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]


class Arbiter:
    """Server at one socket; `run` returns when it was told to stop."""

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
        self._spare = os.open(os.devnull, os.O_RDONLY)  # closed to refuse a connection when there is no other
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def run(self) -> None:
        try:
            while self._is_running:
                for key, events in self._selector.select(self._find_timeout_s()):
                    if key.data is None:
                        self._admit()
                    else:
                        self._serve(key.data, events)
                self._deliver(self._state.tick(time.monotonic()))
        finally:
            self.close()

    def stop(self) -> None:
        self._is_running = False

    def close(self) -> None:
        """Close all connections; workers notice, and go on without turns."""
        # First the name: a worker that looks for an arbiter now finds none rather than one that is leaving.
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

    def _admit(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse()
            return  # else it has gone again
        peer = find_peer(accepted)
        # Where the kernel does not name the peer, the folder's permissions must do.
        if (peer is not None and peer.user != os.getuid()) or not self._make_room():
            accepted.close()
            return
        accepted.setblocking(False)
        self._numbers += 1
        connection = self._connections[self._numbers] = ArbiterConnection(self._numbers, accepted)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _make_room(self) -> bool:
        """Return whether one more fits; if need be, close the oldest connection that has sent nothing yet."""
        if len(self._connections) < MOST_CONNECTIONS:
            return True
        idle = find_surplus([each for each in self._connections.values() if not each.has_sent], most=1)
        if idle is not None:
            self._drop(idle)
        return idle is not None

    def _refuse(self) -> None:
        """Close a connection that cannot be accepted: left alone it would wake the selector all the time."""
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
                return  # dropped for what came before: a Hello now would be of an unknown member
            message = messages.to_arbiter.decode(line)
            now = time.monotonic()
            if isinstance(message, messages.Query):
                self._deliver([(connection.number, self._describe(now))])
            elif isinstance(message, messages.Stop):
                log.info("told to stop")
                self.stop()
            else:
                self._deliver(self._state.handle(connection.number, message, now))

    def _deliver(self, outgoing: Outgoing) -> None:
        """Send in this order; then drop the connections that cannot be reached, with what follows from that."""
        failed: list[tuple[ArbiterConnection, str]] = []
        for number, message in outgoing:
            connection = self._connections.get(number)
            if connection is None:
                continue
            if isinstance(message, messages.Notice) and message.text != self._logged:
                self._logged = message.text  # it goes to several
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
    """Lock this socket's path for as long as the result is open."""
    lock = path.with_name(f"{path.name}.lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"there is an arbiter at {path} already: see undertow share status") from None
    return lock


def _listen(path: Path) -> socket.socket:
    if path.is_socket():
        path.unlink()  # of an arbiter that was killed: the lock shows that it is gone
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen(MOST_CONNECTIONS)
    listener.setblocking(False)
    return listener


def main(arguments: list[str]) -> None:
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    arbiter = Arbiter(Path(arguments[0]), float(arguments[1]))
    log.info("the arbiter is up, process %d", os.getpid())
    # At once: nothing that it does needs to be finished.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    arbiter.run()


if __name__ == "__main__":
    main(sys.argv[1:])
