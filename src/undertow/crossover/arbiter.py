"""The arbiter's body: a Unix socket that only its user may talk to, one per host.

    python -m undertow.crossover.arbiter SOCKET LEASE_S

In: connections of workers and of `undertow share`.  Out: what the `Office` says, in order.
A connection that ends has left; one that talks nonsense, or does not listen, is closed.  No job
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
import struct
import sys
import time
from pathlib import Path
from typing import IO

from undertow.crossover import messages
from undertow.crossover.messages import FromArbiter, Lines
from undertow.crossover.office import Letters, Office
from undertow.crossover.place import prepare_folder
from undertow.crossover.turns import LEASE_S
from undertow.errors import ConfigError, Garbled
from undertow.wire.strangers import find_surplus

log = logging.getLogger("undertow.share")

MOST_CONNECTIONS = 512
MOST_UNREAD_BYTES = 1 << 18
CHUNK_BYTES = 1 << 16
CREDENTIALS = struct.Struct("3i")


class Visitor:
    """One connection."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.connection = connection
        self.lines = Lines()
        self.unsent = b""
        self.has_spoken = False

    def send(self, message: FromArbiter) -> None:
        """Now, or when there is room; raises OSError for one that has not listened for long."""
        self.unsent += messages.encode(message)
        self.flush()
        if len(self.unsent) > MOST_UNREAD_BYTES:
            raise OSError("it does not read what it is told")

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                self.unsent = self.unsent[self.connection.send(self.unsent) :]


class Arbiter:
    """Made for one socket; `run` returns when it was told to stop."""

    def __init__(self, path: Path, lease_s: float = LEASE_S) -> None:
        self._office = Office(lease_s)
        self._path = path
        self._began_s = time.monotonic()
        self._visitors: dict[int, Visitor] = {}
        self._numbers = 0
        self._is_running = True
        self._logged = ""
        self._selector = selectors.DefaultSelector()
        prepare_folder(path)
        self._lock = _claim(path)
        self._door = _listen(path)
        self._spare = os.open(os.devnull, os.O_RDONLY)  # to turn somebody away when there is no file descriptor left
        self._selector.register(self._door, selectors.EVENT_READ, None)

    def run(self) -> None:
        try:
            while self._is_running:
                for key, events in self._selector.select(self._patience_s()):
                    if key.data is None:
                        self._admit()
                    else:
                        self._attend(key.data, events)
                self._deliver(self._office.tick(time.monotonic()))
        finally:
            self.close()

    def stop(self) -> None:
        self._is_running = False

    def close(self) -> None:
        """Workers notice, and go on by themselves."""
        # First the name: whoever looks for an arbiter now finds none rather than one that is leaving.
        self._path.unlink(missing_ok=True)
        for visitor in list(self._visitors.values()):
            visitor.connection.close()
        self._door.close()
        os.close(self._spare)
        self._selector.close()
        self._lock.close()

    def _patience_s(self) -> float | None:
        deadline_s = self._office.deadline_s
        return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())

    def _admit(self) -> None:
        try:
            connection, _ = self._door.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._turn_away()
            return  # else it has gone again
        if _user_of(connection) != os.getuid() or not self._make_room():
            connection.close()
            return
        connection.setblocking(False)
        self._numbers += 1
        visitor = self._visitors[self._numbers] = Visitor(self._numbers, connection)
        self._selector.register(connection, selectors.EVENT_READ, visitor)

    def _make_room(self) -> bool:
        """Whether there is room for one more: the oldest visitor that has never said anything makes some."""
        if len(self._visitors) < MOST_CONNECTIONS:
            return True
        silent = find_surplus([each for each in self._visitors.values() if not each.has_spoken], most=1)
        if silent is not None:
            self._dismiss(silent)
        return silent is not None

    def _turn_away(self) -> None:
        """Whoever is at the door: left there it would wait for ever, and we would look up all the time."""
        os.close(self._spare)
        with contextlib.suppress(OSError):
            self._door.accept()[0].close()
        self._spare = os.open(os.devnull, os.O_RDONLY)

    def _attend(self, visitor: Visitor, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                visitor.flush()
                self._watch(visitor)
            if events & selectors.EVENT_READ:
                self._read(visitor)
        except (OSError, Garbled) as error:
            self._dismiss(visitor, str(error))

    def _read(self, visitor: Visitor) -> None:
        try:
            data = visitor.connection.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._dismiss(visitor)
            return
        visitor.has_spoken = True
        for line in visitor.lines.feed(data):
            if visitor.number not in self._visitors:
                return  # dismissed for what came before: a Hello now would be of nobody
            message = messages.decode_to_arbiter(line)
            now = time.monotonic()
            if isinstance(message, messages.Query):
                self._deliver([(visitor.number, self._describe(now))])
            elif isinstance(message, messages.Stop):
                log.info("told to stop")
                self.stop()
            else:
                self._deliver(self._office.hear(visitor.number, message, now))

    def _deliver(self, letters: Letters) -> None:
        """In their order; what follows from a worker that cannot be reached comes after them."""
        failed: list[tuple[Visitor, str]] = []
        for number, message in letters:
            visitor = self._visitors.get(number)
            if visitor is None:
                continue
            if isinstance(message, messages.Notice) and message.text != self._logged:
                self._logged = message.text  # it goes to several
                log.warning("%s", message.text)
            try:
                visitor.send(message)
                self._watch(visitor)
            except OSError as error:
                failed.append((visitor, str(error)))
        for visitor, reason in failed:
            self._dismiss(visitor, reason)

    def _watch(self, visitor: Visitor) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if visitor.unsent else 0)
        if self._selector.get_key(visitor.connection).events != events:
            self._selector.modify(visitor.connection, events, visitor)

    def _dismiss(self, visitor: Visitor, reason: str = "") -> None:
        if self._visitors.pop(visitor.number, None) is None:
            return
        if reason:
            log.warning("a connection was closed: %s", reason)
        self._selector.unregister(visitor.connection)
        visitor.connection.close()
        self._deliver(self._office.gone(visitor.number, time.monotonic()))

    def _describe(self, now: float) -> messages.Status:
        return messages.Status(
            pid=os.getpid(),
            lease_s=self._office.lease_s,
            up_s=now - self._began_s,
            devices=self._office.describe(now),
            notices=list(self._office.notices),
        )


def _claim(path: Path) -> IO[bytes]:
    """Be the only one at this socket, for as long as the result is open."""
    lock = path.with_name(f"{path.name}.lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"there is an arbiter at {path} already: see undertow share status") from None
    return lock


def _listen(path: Path) -> socket.socket:
    if path.is_socket():
        path.unlink()  # of an arbiter that was killed: the lock says that nobody lives there
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        door.bind(str(path))
    finally:
        os.umask(mask)
    door.listen(MOST_CONNECTIONS)
    door.setblocking(False)
    return door


def _user_of(connection: socket.socket) -> int:
    """Whoever is at the other end; where the kernel does not tell, the folder's permissions must do."""
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getuid()
    _, user, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return int(user)


def main(arguments: list[str]) -> None:
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    arbiter = Arbiter(Path(arguments[0]), float(arguments[1]))
    log.info("the arbiter is up, process %d", os.getpid())
    # Wherever it is: nothing that it does needs to be finished.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    arbiter.run()


if __name__ == "__main__":
    main(sys.argv[1:])
