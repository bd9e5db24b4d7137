"""Arbiters for tests: a real one in a thread, one that says only what the test lets it say, and who talks to them.

In: a socket's path, in a folder of the test's own.  Out: what each side has heard.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from undertow.crossover import messages
from undertow.crossover.arbiter import Arbiter
from undertow.crossover.client import TurnClient
from undertow.crossover.messages import FromArbiter, Hello, Status, ToArbiter, make_lines
from undertow.crossover.turn_state import TurnMode

PATIENCE_S = 30.0  # nothing here takes this long
DEVICE = "cpu"


def eventually(condition: Callable[[], Any]) -> Any:
    """What the condition says once it says something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (told := condition()):
        assert time.monotonic() < deadline_s, "it never came to pass"
        time.sleep(0.002)
    return told


def hello_of(job: str, rank: int = 0, **options: Any) -> Hello:
    given = {"version": messages.VERSION, "world_size": 1, "pid": rank + 1, "device": DEVICE, **options}
    return Hello(job=job, name=f"{job}.py", rank=rank, **given)


@contextlib.contextmanager
def arbiter_at(path: Path, lease_s: float = 30.0) -> Iterator[threading.Thread]:
    """A real one; it is gone at the end of the block, in order."""
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
    """A bare connection: says what it likes, and reads when it likes."""

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
        """What comes next; ConnectionError at the end."""
        while not self._heard:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("it has closed the connection")
            self._heard += map(messages.from_arbiter.decode, self._lines.feed(data))
        return self._heard.pop(0)

    def hear_a(self, kind: Any) -> Any:
        """The next one of this kind."""
        while not isinstance(message := self.hear(), kind):
            pass
        return message

    def hear_end(self) -> None:
        """Return when the other side has hung up."""
        with contextlib.suppress(ConnectionError):
            while True:
                self.hear()


def status_at(path: Path) -> Status:
    with Caller(path) as caller:
        caller.say(messages.Query())
        status: Status = caller.hear_a(Status)
        return status


def states_at(path: Path) -> dict[str, str]:
    """What the jobs of the device do."""
    return {job.job: job.state for device in status_at(path).devices for job in device.jobs}


@contextlib.contextmanager
def turn_at(path: Path, job: str, rank: int = 0, **options: Any) -> Iterator[TurnClient]:
    """A worker of this job that has looked for the arbiter; further options are those of `Hello`."""
    turn = TurnClient(hello_of(job, rank, **options), path)
    turn.start()
    try:
        yield turn
    finally:
        turn.close()


@contextlib.contextmanager
def two_jobs_at(path: Path) -> Iterator[tuple[TurnClient, TurnClient]]:
    """Both know of each other; nobody computes."""
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
    """Whether it comes to its end."""
    thread.join(PATIENCE_S)
    return not thread.is_alive()


class Puppet:
    """Listens where an arbiter would, takes one connection after the other, and does what the test says."""

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
        """What comes next; None at the end."""
        assert self.connection is not None
        while not self._heard:
            data = self.connection.recv(1 << 16)
            if not data:
                return None
            self._heard += map(messages.to_arbiter.decode, self._lines.feed(data))
        return self._heard.pop(0)

    def hear_all(self) -> list[ToArbiter]:
        """Until the other side hangs up."""
        return list(iter(self.hear, None))

    def welcome(self, *further: FromArbiter) -> threading.Thread:
        """Take the next worker in, beside the caller, who starts it."""

        def take_in() -> None:
            self.accept()
            assert isinstance(self.hear(), Hello)
            self.say(messages.Welcome(30.0), *further)

        return in_thread(take_in)
