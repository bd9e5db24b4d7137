"""Requests that commands send to the arbiter: for its status, and to stop.

In: the socket's path.  Out: the arbiter's `Status`, or None if there is no arbiter; after `stop` it has exited.
It is an error if the arbiter does not answer, or belongs to another user.
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
    return _request(path, timeout_s, _ask)


def stop(path: Path, timeout_s: float = ANSWER_S) -> Status | None:
    """Stop the arbiter, wait until it has exited, and return its last status; None if there was no arbiter."""
    return _request(path, timeout_s, _stop)


def _request(path: Path, timeout_s: float, request: Callable[[socket.socket], Status]) -> Status | None:
    for is_last in (False, True):
        try:
            with _connect(path, timeout_s) as connection:
                return None if connection is None else request(connection)
        except _HungUp:
            # An arbiter that exits removes its socket before it closes connections: a second attempt finds none.
            if is_last:
                raise
    raise AssertionError("the last one returns or raises")


@contextlib.contextmanager
def _connect(path: Path, timeout_s: float) -> Iterator[socket.socket | None]:
    """Connect to the arbiter; yields None if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            check_folder(path)
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):  # the latter: it was killed and has left its socket behind
            yield None
            return
        except PermissionError:
            raise ConfigError(f"{path} belongs to another user: no one else can reach the arbiter there") from None
        except OSError as error:
            raise UndertowError(f"the arbiter at {path} cannot be reached: {error}") from None
        try:
            yield connection
        except TimeoutError:
            pid = _pid_of(connection)
            raise UndertowError(
                f"the arbiter at {path} (pid {pid}) has not answered for {timeout_s:g} s: if it is stopped, resume it "
                f"with kill -CONT {pid}, or end it with kill -9 {pid}"
            ) from None


def _ask(connection: socket.socket) -> Status:
    _send(connection, messages.Query())
    try:
        answer = messages.receive(connection, make_lines())[0]
    except ConnectionError:
        raise _HungUp(
            "the arbiter has closed the connection: it has too many of them, or belongs to another user"
        ) from None
    except Garbled:
        raise UndertowError("the process that listens there is not an arbiter: choose another socket path") from None
    if not isinstance(answer, Status):
        raise UndertowError(f"the arbiter answered with a {type(answer).__name__}: does it have another version?")
    return answer


def _stop(connection: socket.socket) -> Status:
    status = _ask(connection)
    pid = _pid_of(connection) or status.pid
    with _watch(pid) as ended:
        _send(connection, messages.Stop())
        if ended is not None and not select.select([ended], [], [], connection.gettimeout())[0]:
            raise UndertowError(f"the arbiter was asked to stop and still runs: end it with kill -9 {pid}")
    return status


def _send(connection: socket.socket, message: ToArbiter) -> None:
    # An arbiter that is gone by now is noticed by the wait for its answer or its exit.
    with contextlib.suppress(ConnectionError):
        connection.sendall(messages.encode(message))


def _pid_of(connection: socket.socket) -> int:
    """Return the arbiter's process id, 0 if it is not known."""
    peer = find_peer(connection)
    return 0 if peer is None else peer.pid


@contextlib.contextmanager
def _watch(pid: int) -> Iterator[int | None]:
    """Yield a descriptor that is readable once the process has exited; None if it has already."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)
