"""Real workers for tests: N fresh processes run one function, and tell how it ended.

In: the number of workers and a module-level function `body(rank, *args)`.
Out: what each rank returned, or the error it ended with.

Importing torch takes seconds, so a fork server imports it once (see preload) and every
worker is forked from there.  The test runs the rendezvous server, as `undertow run` does.
A worker that hangs dies with the stacks of all its threads in the outcome's text.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from undertow.engine.coordinator.rendezvous import RendezvousServer

HANG_S = 120.0  # nothing takes this long, not even compiling on a loaded machine: a hang must not block everybody
TOKEN = "only these workers know it"
RETURNED = "returned"
DIED = "died"

Body = Callable[..., Any]


@dataclass(frozen=True)
class Outcome:
    """How one rank ended: `kind` is RETURNED, the name of an exception, or DIED (killed, or hung)."""

    rank: int
    kind: str
    value: Any = None
    text: str = ""
    log: str = ""  # what it printed; a hung worker's stacks

    def __str__(self) -> str:
        return f"rank {self.rank} {self.kind}: {self.value if self.kind == RETURNED else self.text}\n{self.log}"


class Crew:
    """Workers that run.  `pids[rank]` is there as soon as they are started."""

    def __init__(self, workers: Mapping[int, tuple[Any, Connection]], folder: Path, point: RendezvousServer) -> None:
        self.pids = {rank: process.pid for rank, (process, _) in workers.items()}
        self._workers = workers
        self._folder = folder
        self._point = point

    def send_signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pids[rank], number)

    def heard(self, rank: int) -> Any:
        """What the worker said with `say`, once it did."""
        connection = self._workers[rank][1]
        assert connection.poll(HANG_S), f"rank {rank} says nothing\n{self._log(rank)}"
        return _receive(connection)

    def tell(self, rank: int, message: Any) -> None:
        """Answer a worker that waits in `hear`."""
        _send(self._workers[rank][1], message)

    def outcomes(self) -> list[Outcome]:
        """Wait for everyone; the order is that of the ranks."""
        try:
            return [self.outcome(rank) for rank in sorted(self._workers)]
        finally:
            self.end()

    def end(self) -> None:
        for process, connection in self._workers.values():
            process.kill()
            process.join()
            connection.close()
        self._point.close()
        shutil.rmtree(self._folder)

    def outcome(self, rank: int) -> Outcome:
        """Wait for one of them."""
        process, connection = self._workers[rank]
        told = (DIED, None, "it hangs")
        if connection.poll(HANG_S + 10):
            with suppress(EOFError, ConnectionError):
                told = _receive(connection)
        process.join(10)
        if told[0] == DIED and process.exitcode is not None:
            told = (DIED, None, f"exit code {process.exitcode}")
        return Outcome(rank, *told, log=self._log(rank))

    def _log(self, rank: int) -> str:
        path = self._folder / f"{rank}.log"
        return path.read_text(errors="replace") if path.exists() else "it did not start"


def start_workers(
    size: int,
    body: Body,
    *args: Any,
    init: bool = True,
    ranks: Sequence[int] | None = None,
    environment: Mapping[str, str] | None = None,
    over_tcp: bool = False,
) -> Crew:
    """Start ranks 0 to size - 1, or only the given ones; with `init`, undertow.init() comes first.

    Workers on one host talk over Unix sockets; with `over_tcp`, as if they were on several.
    """
    _ensure_fork_server()
    folder = Path(tempfile.mkdtemp(prefix="undertow-test-"))
    point = RendezvousServer("127.0.0.1", 0, TOKEN.encode())
    point.start()
    work = pickle.dumps((body, args))
    workers = {}
    for rank in range(size) if ranks is None else ranks:
        ours, theirs = multiprocessing.Pipe()
        given = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
        given |= {"UNDERTOW_RENDEZVOUS": point.address, "UNDERTOW_TOKEN": TOKEN, **(environment or {})}
        given |= {"UNDERTOW_ADDRESS": "127.0.0.1"} if over_tcp else {}
        task = _Task(rank, given, work, folder / f"{rank}.log", init=init)
        process = _context.Process(target=_work, args=(task, theirs))
        process.start()
        theirs.close()
        workers[rank] = process, ours
    return Crew(workers, folder, point)


def outcomes_of(size: int, body: Body, *args: Any, **options: Any) -> list[Outcome]:
    """Run to the end, whatever happens."""
    return start_workers(size, body, *args, **options).outcomes()


def run_workers(size: int, body: Body, *args: Any, **options: Any) -> list[Any]:
    """Run to the end; every rank must return.  Gives what they returned, rank 0's first."""
    outcomes = outcomes_of(size, body, *args, **options)
    failed = [outcome for outcome in outcomes if outcome.kind != RETURNED]
    assert not failed, "\n".join(map(str, failed))
    return [outcome.value for outcome in outcomes]


def on_workers(size: int, **options: Any) -> Callable[[Body], Callable[[], None]]:
    """Makes a test of a body: it passes if no rank raises."""

    def make_test(body: Body) -> Callable[[], None]:
        def test() -> None:
            run_workers(size, _Marked(body.__module__, body.__name__), **options)

        test.body = body  # type: ignore[attr-defined]
        test.__name__, test.__module__, test.__doc__ = body.__name__, body.__module__, body.__doc__
        return test

    return make_test


@dataclass(frozen=True)
class _Marked:
    """The body below an `on_workers`: its name alone means the test."""

    module: str
    name: str

    def __call__(self, rank: int) -> Any:
        return getattr(importlib.import_module(self.module), self.name).body(rank)


# Plain pickles: those of multiprocessing hand over torch's tensors in shared memory, which dies with the worker.


def _send(pipe: Connection, message: Any) -> None:
    pipe.send_bytes(pickle.dumps(message))


def _receive(pipe: Connection) -> Any:
    return pickle.loads(pipe.recv_bytes())  # noqa: S301  # the test's own


# In the worker


@dataclass(frozen=True)
class _Task:
    rank: int
    environment: Mapping[str, str]  # an empty value takes the variable away
    work: bytes  # the body and its arguments
    log: Path
    init: bool


_pipe: Connection | None = None


def say(message: Any) -> None:
    """From a body: tell the test something."""
    assert _pipe is not None
    _send(_pipe, message)


def hear() -> Any:
    """From a body: wait for what the test tells."""
    assert _pipe is not None
    return _receive(_pipe)


def _work(task: _Task, pipe: Connection) -> None:
    global _pipe
    import torch

    from undertow.runtime import process

    _pipe = pipe
    log = _redirect_output(task.log)
    faulthandler.dump_traceback_later(HANG_S, exit=True, file=log)
    warnings.simplefilter("error")
    os.environ.update({name: value for name, value in task.environment.items() if value})
    for name in (name for name, value in task.environment.items() if not value):
        os.environ.pop(name, None)
    torch.set_num_threads(1)
    try:
        body, args = pickle.loads(task.work)  # noqa: S301  # the test's own
        if task.init:
            importlib.import_module("undertow").init()  # not by a name of ours: a body may stand for a script
        told = (RETURNED, body(task.rank, *args), "")
    except BaseException as error:
        traceback.print_exc()
        sys.last_value = error  # as the interpreter does, for whoever looks at exit
        told = (type(error).__name__, None, str(error))
    process._at_exit()  # a forked worker leaves without the interpreter's own
    _send(pipe, told)


def _redirect_output(path: Path) -> int:
    target = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(target, standard)
    sys.stdout = os.fdopen(1, "w", closefd=False, buffering=1)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1)
    return target


# Once per test session

_context = multiprocessing.get_context("forkserver")
_OUTER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _ensure_fork_server() -> None:
    _context.set_forkserver_preload(["tests.support.preload"])
    before = dict(os.environ)
    # The server finds modules as this process does, and inherits nothing of an outer job.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for name in [name for name in os.environ if name in _OUTER or name.startswith("UNDERTOW_")]:
        del os.environ[name]
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
