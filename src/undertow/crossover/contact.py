"""Requests of commands to the arbiter: its status, and to stop.

In: the socket's path.  Out: its `Status`, or None where there is no arbiter; after `stop` it is gone.
An arbiter that does not answer, and one that belongs to another user, are errors.
Imports no torch, starts no thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from undertow.crossover import messages
from undertow.crossover.messages import Status, ToArbiter, make_lines
from undertow.crossover.socket_path import check_folder, find_peer
from undertow.errors import ConfigError, Garbled, UndertowError

ANSWER_S = 5.0


class _HungUp(UndertowError):
    """Error: the arbiter has closed the connection."""


def ask_status(path: Path, timeout_s: float = ANSWER_S) -> Status | None:
    """Return the status; None if there is no arbiter.  Raises `UndertowError` if it cannot be reached."""
    return _talk(path, timeout_s, _ask)


def stop(path: Path, timeout_s: float = ANSWER_S) -> Status | None:
    """End the arbiter, wait until it is gone, and return its last status; None if there was no arbiter."""
    return _talk(path, timeout_s, _stop)


def _talk(path: Path, timeout_s: float, ask: Callable[[socket.socket], Status]) -> Status | None:
    for is_last in (False, True):
        try:
            with _call(path, timeout_s) as connection:
                return None if connection is None else ask(connection)
        except _HungUp:
            # One that ends removes its socket before it hangs up: a second call finds none.
            if is_last:
                raise
    raise AssertionError("the last one returns or raises")


@contextlib.contextmanager
def _call(path: Path, timeout_s: float) -> Iterator[socket.socket | None]:
    """Connect to the arbiter; yields None if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            check_folder(path)
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):  # the latter: it was killed, and its socket is left
            yield None
            return
        except PermissionError:
            raise ConfigError(f"{path} belongs to another user, who alone may talk to the arbiter there") from None
        except OSError as error:
            raise UndertowError(f"the arbiter at {path} cannot be reached: {error}") from None
        try:
            yield connection
        except TimeoutError:
            pid = _pid_of(connection)
            raise UndertowError(
                f"the arbiter at {path} (pid {pid}) has not answered for {timeout_s:g} s: if it is stopped, wake it "
                f"with kill -CONT {pid}, or end it with kill -9 {pid}"
            ) from None


def _ask(connection: socket.socket) -> Status:
    _send(connection, messages.Query())
    try:
        answer = messages.receive(connection, make_lines())[0]
    except ConnectionError:
        raise _HungUp("the arbiter has hung up: it has too many connections, or does not want this user's") from None
    except Garbled:
        raise UndertowError("what listens there is no arbiter: choose another path for the socket") from None
    if not isinstance(answer, Status):
        raise UndertowError(f"the arbiter answered with a {type(answer).__name__}: is it of another version?")
    return answer


def _stop(connection: socket.socket) -> Status:
    status = _ask(connection)
    pid = _pid_of(connection) or status.pid
    with _watch(pid) as ended:
        _send(connection, messages.Stop())
        if ended is not None and not select.select([ended], [], [], connection.gettimeout())[0]:
            raise UndertowError(f"the arbiter has been told to stop and does not: end it with kill -9 {pid}")
    return status


def _send(connection: socket.socket, message: ToArbiter) -> None:
    # If it is gone by now, that is seen when its answer, or its end, is waited for.
    with contextlib.suppress(ConnectionError):
        connection.sendall(messages.encode(message))


def _pid_of(connection: socket.socket) -> int:
    """Return the arbiter's process, 0 if it is not known."""
    peer = find_peer(connection)
    return 0 if peer is None else peer.pid


@contextlib.contextmanager
def _watch(pid: int) -> Iterator[int | None]:
    """Yield a file that is readable once the process has ended; None if it is gone already."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)
