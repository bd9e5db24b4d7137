"""Group of workers: one worker of a system on every host, started and run together.

In: the number of steps to train.  Out: every host's lap.
If a worker ends or does not answer, the error has its last lines of output, and the other workers are ended.
"""

from __future__ import annotations

import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TypeVar

import msgspec

from undertow.decoding import Decoder, Format
from undertow.engine.wire.streams import Lines
from undertow.errors import Garbled, LabError
from undertow.tools.lab.bench.messages import Assignment, Lap, Order, Ready
from undertow.tools.lab.network import Host, Network
from undertow.tools.lab.systems import System
from undertow.tools.lab.worker_environments import open_rendezvous

START_TIMEOUT_S = 180.0
MOST_OUTPUT_LINES = 12
CHUNK_BYTES = 1 << 16
MOST_LINE_BYTES = 1 << 20
# How long a worker may take to exit after a run without errors.
EXIT_TIMEOUT_S = 10.0
# A rough step time with real compute, used for timeouts only.
REAL_STEP_S = 3.0

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)

Message = TypeVar("Message", bound=msgspec.Struct)


def find_timeout_s(expected_s: float) -> float:
    """Return how long to wait for a lap that should take this long: a loaded machine may be far slower."""
    return 60.0 + 20.0 * expected_s


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay interrupts to the end of the block, so that a worker that is being started is recorded first.

    Uses handlers instead of a mask, which the worker would inherit.  Only the main thread is ever interrupted.
    """
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in _INTERRUPTS}
    is_main = threading.current_thread() is threading.main_thread()
    held = [number for number in _INTERRUPTS if is_main and callable(before[number])]
    for number in held:
        signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number in held:
            signal.signal(number, before[number])
    if received:
        signal.raise_signal(received[0])


class _WorkerProcess:
    def __init__(self, host: Host, environment: Mapping[str, str], log: IO[bytes]) -> None:
        self.host = host
        self.lines = Lines(MOST_LINE_BYTES, refuses=True)
        self._log = log
        command = [sys.executable, "-m", "undertow.tools.lab.bench.worker"]
        with host.entered():
            self.process = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    def send(self, message: msgspec.Struct) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):  # it has ended: `_receive` reports why
            self.process.stdin.write(msgspec.json.encode(message) + b"\n")
            self.process.stdin.flush()

    def describe_end(self) -> str:
        """Describe how it ended.  It has closed its output, so it ends now if it has not already."""
        try:
            code = self.process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "closed its output but is still running"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    def last_lines(self) -> list[str]:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").splitlines()[-MOST_OUTPUT_LINES:]


class WorkerGroup:
    """Workers of one system, one on every host; a context manager that starts and ends them.

    `by_host` has further environment variables for each host.
    """

    def __init__(
        self,
        network: Network,
        system: System,
        assignment: Assignment,
        environ: Mapping[str, str],
        *,
        by_host: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.name = assignment.system
        self.warm_up_steps = system.warm_up_steps
        self._system = system
        self._environ = environ
        self._by_host = by_host or [{}] * len(network.hosts)
        self._network = network
        self._assignment = assignment
        self._workers: list[_WorkerProcess] = []
        self._stack = ExitStack()
        self._is_healthy = True
        self._steps = 0  # of the lap

    def __enter__(self) -> WorkerGroup:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._is_healthy = self._is_healthy and error is None
        self._end()

    def wait_until_ready(self) -> Ready:
        """Return the report of the first worker when all are connected."""
        ready = self._receive(Ready, START_TIMEOUT_S)[0]
        self._signal_restless(signal.SIGSTOP)
        return ready

    def run(self, steps: int, *, timeout_s: float) -> list[Lap]:
        """Train a lap, and return it for every host, in order."""
        self.begin_lap(steps)
        return self.end_lap(timeout_s=timeout_s)

    def begin_lap(self, steps: int) -> None:
        """Start a lap without waiting for it; other groups may train at the same time."""
        self._steps = steps
        self._signal_restless(signal.SIGCONT)
        for worker in self._workers:
            worker.send(Order(steps))

    def end_lap(self, *, timeout_s: float) -> list[Lap]:
        """Wait for the lap, and return it for every host, in order."""
        laps = self._receive(Lap, timeout_s)
        self._signal_restless(signal.SIGSTOP)
        if self.name != "local" and len({lap.digest for lap in laps}) > 1:
            raise self._fail(
                f"{self._title}: the replicas differ after {self._steps} steps, so its figures are meaningless"
            )
        return laps

    @property
    def _title(self) -> str:
        return f"{self.name} with {self._assignment.model}"

    def _signal_restless(self, signum: signal.Signals) -> None:
        """Stop or continue the workers if they would disturb other systems between their laps."""
        if self._system.is_restless:
            for worker in self._workers:
                worker.process.send_signal(signum)

    def _start(self) -> None:
        variables = self._system.variables(scale=self._assignment.scale, slowdown=self._assignment.slowdown)
        environments = self._stack.enter_context(open_rendezvous(self._network, self._environ))
        for host, environment, own in zip(self._network.hosts, environments, self._by_host, strict=True):
            log = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            with _uninterrupted():
                self._workers.append(_WorkerProcess(host, {**environment, **variables, **own}, log))
        for worker in self._workers:
            worker.send(self._assignment)

    def _receive(self, kind: type[Message], timeout_s: float) -> list[Message]:
        """Return one message from every worker."""
        deadline_s = time.monotonic() + timeout_s
        answers: dict[int, Message] = {}
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                assert worker.process.stdout
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            while len(answers) < len(self._workers):
                ready = selector.select(max(0.0, deadline_s - time.monotonic()))
                if not ready:
                    silent = [worker.host.name for worker in self._workers if worker.host.index not in answers]
                    raise self._fail(f"{self._title}: no answer from {', '.join(silent)} in {timeout_s:.0f} s")
                for key, _ in ready:
                    line = self._read(key.data)
                    if line is not None:
                        answers[key.data.host.index] = self._decode(key.data, line, kind)
                        selector.unregister(key.fileobj)
        return [answers[host.index] for host in self._network.hosts]

    def _read(self, worker: _WorkerProcess) -> bytes | None:
        """Return a worker's message if it is complete."""
        assert worker.process.stdout
        data: bytes = worker.process.stdout.read1(CHUNK_BYTES)  # type: ignore[attr-defined]
        if not data:
            raise self._fail(
                f"{self._title}: the worker on {worker.host.name} {worker.describe_end()}", *worker.last_lines()
            )
        try:
            lines = worker.lines.feed(data)
        except Garbled:
            return data  # too long for a message: `_decode` reports it
        return b"\n".join(lines) if lines else None

    def _decode(self, worker: _WorkerProcess, line: bytes, kind: type[Message]) -> Message:
        try:
            return Decoder[Message](kind, format=Format.JSON).decode(line)
        except Garbled:
            text = line[:80].decode(errors="replace")
            raise self._fail(
                f"{self._title}: the worker on {worker.host.name} sent {text!r} instead of a lap"
            ) from None

    def _fail(self, *lines: str) -> LabError:
        self._is_healthy = False
        return LabError("\n".join(lines))

    def _end(self) -> None:
        self._signal_restless(signal.SIGCONT)
        for worker in self._workers:
            assert worker.process.stdin
            with suppress(BrokenPipeError):
                worker.process.stdin.close()
        deadline_s = time.monotonic() + (EXIT_TIMEOUT_S if self._is_healthy else 0.0)
        for worker in self._workers:
            assert worker.process.stdout
            try:
                worker.process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.process.stdout.close()
        self._workers.clear()
        self._stack.close()
