"""Arbiters for tests: a real one in a thread, one that a test scripts, and clients of both.

In: a socket's path, in a folder of the test.  Out: the messages that each side has received.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from undertow.crossover import messages
from undertow.crossover.arbiter import Arbiter
from undertow.crossover.client import TurnClient
from undertow.crossover.messages import FromArbiter, Hello, Status, ToArbiter, make_lines
from undertow.crossover.turn_state import TurnMode

PATIENCE_S = 30.0  # nothing here takes this long
DEVICE = "cpu"
WAITS = "waits for its turn"  # the state of a worker, as `undertow share status` shows it


def eventually(condition: Callable[[], Any]) -> Any:
    """Return the condition's value once it is true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline_s, "the condition never became true"
        time.sleep(0.002)
    return value


def words_in(caplog: pytest.LogCaptureFixture, text: str) -> int:
    """Return the number of log messages that contain this text."""
    return sum(text in record.getMessage() for record in caplog.records)


def hello_of(job: str, rank: int = 0, **options: Any) -> Hello:
    given = {"version": messages.VERSION, "world_size": 1, "pid": rank + 1, "device": DEVICE, **options}
    return Hello(job=job, name=f"{job}.py", rank=rank, **given)


@contextlib.contextmanager
def arbiter_at(path: Path, lease_s: float = 30.0) -> Iterator[threading.Thread]:
    """Run a real arbiter while the block runs, then stop it in order."""
    arbiter = Arbiter(path, lease_s)
    thread = threading.Thread(target=arbiter.run)
    thread.start()
    try:
        yield thread
    finally:
        stop(path)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def stop(path: Path) -> None:
    with contextlib.suppress(OSError), Caller(path) as caller:
        caller.say(messages.Stop())
        caller.hear_end()


class Caller:
    """Connection to an arbiter that sends and receives what a test wants."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lines = make_lines()
        self._heard: list[FromArbiter] = []
        try:
            self.socket.connect(str(path))  # waits if many connect at once; with a timeout it would not
        except OSError:
            self.socket.close()
            raise
        self.socket.settimeout(PATIENCE_S)

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *failure: object) -> None:
        self.socket.close()

    def say(self, *said: ToArbiter) -> None:
        self.socket.sendall(b"".join(map(messages.encode, said)))

    def hear(self) -> FromArbiter:
        """Return the next message; raise ConnectionError at the end."""
        while not self._heard:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the arbiter has closed the connection")
            self._heard += map(messages.from_arbiter.decode, self._lines.feed(data))
        return self._heard.pop(0)

    def hear_a(self, kind: Any) -> Any:
        """Return the next message of this kind."""
        while not isinstance(message := self.hear(), kind):
            pass
        return message

    def hear_end(self) -> None:
        """Return when the arbiter has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while True:
                self.hear()


def status_at(path: Path) -> Status:
    with Caller(path) as caller:
        caller.say(messages.Query())
        status: Status = caller.hear_a(Status)
        return status


def states_at(path: Path) -> dict[str, str]:
    """Return the states of all jobs."""
    return {job.job: job.state for device in status_at(path).devices for job in device.jobs}


@contextlib.contextmanager
def turn_at(path: Path, job: str, rank: int = 0, **options: Any) -> Iterator[TurnClient]:
    """Yield a worker of this job that has looked for the arbiter; further options are those of `Hello`."""
    turn = TurnClient(hello_of(job, rank, **options), path)
    turn.start()
    try:
        yield turn
    finally:
        turn.close()


@contextlib.contextmanager
def two_jobs_at(path: Path) -> Iterator[tuple[TurnClient, TurnClient]]:
    """Yield two jobs that know of each other, neither of which computes."""
    with turn_at(path, "a") as first, turn_at(path, "b") as second:
        eventually(lambda: first.state.mode is second.state.mode is TurnMode.SHARED)
        first.take()
        first.give()
        second.take()
        second.give()
        yield first, second


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ends(thread: threading.Thread) -> bool:
    """Return whether the thread ends."""
    thread.join(PATIENCE_S)
    return not thread.is_alive()


class Puppet:
    """Listener in place of an arbiter, which sends and receives what a test wants, on one connection at a time."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._listener.settimeout(PATIENCE_S)
        self.connection: socket.socket | None = None

    def __enter__(self) -> Puppet:
        return self

    def __exit__(self, *failure: object) -> None:
        self._listener.close()
        if self.connection is not None:
            self.connection.close()

    def accept(self) -> None:
        self.connection, _ = self._listener.accept()
        self.connection.settimeout(PATIENCE_S)
        self._lines = make_lines()
        self._heard: list[ToArbiter] = []

    def say(self, *said: FromArbiter) -> None:
        assert self.connection is not None
        self.connection.sendall(b"".join(map(messages.encode, said)))

    def hear(self) -> ToArbiter | None:
        """Return the next message; None at the end."""
        assert self.connection is not None
        while not self._heard:
            data = self.connection.recv(1 << 16)
            if not data:
                return None
            self._heard += map(messages.to_arbiter.decode, self._lines.feed(data))
        return self._heard.pop(0)

    def hear_all(self) -> list[ToArbiter]:
        """Return all messages until the worker closes the connection."""
        return list(iter(self.hear, None))

    def welcome(self, *further: FromArbiter) -> threading.Thread:
        """Accept the next worker in a thread; the caller starts the worker."""

        def accept_worker() -> None:
            self.accept()
            assert isinstance(self.hear(), Hello)
            self.say(messages.Welcome(30.0), *further)

        return in_thread(accept_worker)
