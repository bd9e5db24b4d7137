"""Client of the arbiter in a training process: `take` returns when the worker may compute.

In: calls of training threads before they compute and wait; messages from the arbiter.
Out: messages of the worker's `TurnState` to the arbiter.
It never fails or hangs because of an arbiter: without one, the worker computes at any time, and
looks for a new one every second.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from undertow.crossover import messages
from undertow.crossover.messages import FromArbiter, Hello, Relayed, ToArbiter, find_relayed, make_lines
from undertow.crossover.socket_path import check_folder
from undertow.crossover.turn_state import TurnTaker
from undertow.engine.wire.streams import Lines
from undertow.errors import ConfigError, Garbled
from undertow.tracing import events
from undertow.tracing.recorder import process_recorder

log = logging.getLogger("undertow")

LOOK_EVERY_S = 1.0
# An arbiter that does not answer for this long counts as gone.
ANSWER_S = 10.0
ASK_EVERY_S = 5.0
# Shorter waits for the turn are not recorded.
RECORDED_S = 0.00005


class TurnClient(TurnTaker):
    """Turns of one worker on one device.  Any thread may call it; all threads of the worker share the turn.

    `relay` is called with messages from the arbiter that other workers of the job need.
    """

    def __init__(
        self,
        hello: Hello,
        path: Path,
        *,
        relay: Callable[[Relayed], None] = lambda message: None,
        synchronise: Callable[[], None] = lambda: None,
        is_verbose: bool = True,
    ) -> None:
        super().__init__(time.monotonic)
        self._hello = hello
        self._path = path
        self._relay, self._synchronise = relay, synchronise
        self._changed = threading.Condition()  # guards the state and the connection
        self._connection: socket.socket | None = None
        self._closing = threading.Event()
        self._is_silent = not is_verbose
        self._taken_s = 0.0  # when this worker last began to compute
        self._received_s = 0.0  # when the arbiter's last message came

    def read_clock(self) -> float:
        """Return a clock that stands still while this worker waits for the turn, to time its own work."""
        return time.perf_counter() - self.state.waited_s

    # For training threads

    def start(self) -> None:
        """Look for the arbiter.  Raises `ConfigError` if it refuses this job."""
        lines = make_lines()
        try:
            self._connect(lines)
        except OSError:
            self._warn_of_no_turns("no arbiter is up on this host; undertow share up starts one")
        threading.Thread(target=self._listen, args=(lines,), name="undertow-turn", daemon=True).start()

    def take(self) -> None:
        """Return when this worker may compute."""
        with self._changed:
            was_computing, began_s = self.state.is_computing, time.monotonic()
            try:
                while True:
                    # Ask again each time: another thread may have given the turn back.
                    self._send(self.state.take(time.monotonic()))
                    if self.state.is_computing:
                        if not was_computing:
                            self._record_wait(began_s)
                        return
                    if not self._changed.wait(ASK_EVERY_S):
                        self._check_arbiter(began_s)
            except BaseException:  # interrupted: this thread will not use the turn
                self._send(self.state.give(time.monotonic()))
                self._changed.notify_all()  # the other threads ask again
                raise

    def give(self) -> None:
        if self.state.is_computing:
            self._finish()
            with self._changed:
                super().give()

    def end_step(self) -> None:
        self._finish()
        with self._changed:
            super().end_step()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Give the turn back while the block runs: the worker waits for the network."""
        wait = self.begin_wait()
        yield
        self.end_wait(wait)

    def handle_relayed(self, message: Relayed) -> None:
        with self._changed:
            super().handle_relayed(message)

    def close(self) -> None:
        """Leave the arbiter.  What is computed afterwards needs no turn."""
        self._closing.set()
        with self._changed:
            self._detach()

    def abandon(self) -> None:
        """Leave in a forked child: the connection belongs to the parent."""
        self._changed = threading.Condition()
        self._closing.set()
        self.state.detach(time.monotonic())
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _finish(self) -> None:
        """Wait until the device has finished its queued work, if another job may be waiting for the turn."""
        if self.state.is_granted:
            self._synchronise()
        if process_recorder.is_on and self.state.is_computing:
            process_recorder.record(events.TurnHeld(self._taken_s, time.monotonic()))

    def _record_wait(self, asked_s: float) -> None:
        self._taken_s = time.monotonic()
        if process_recorder.is_on and self._taken_s - asked_s > RECORDED_S:
            process_recorder.record(events.TurnAwaited(asked_s, self._taken_s))

    # Inside, with the lock

    def _check_arbiter(self, began_s: float) -> None:
        """Send an arbiter that is silent a `Query`; count it as gone after `ANSWER_S`."""
        if time.monotonic() - max(began_s, self._received_s) > ANSWER_S:
            self._detach()
        else:
            self._send([messages.Query()])

    def _send(self, outgoing: list[ToArbiter]) -> None:
        if self._connection is None or not outgoing:
            return
        data = b"".join(map(messages.encode, outgoing))
        try:
            # Never wait for an arbiter that does not read: a full buffer means that it has not read for minutes.
            is_sent = self._connection.send(data, socket.MSG_DONTWAIT) == len(data)
        except OSError:
            is_sent = False
        if not is_sent:
            self._detach()

    def _detach(self) -> None:
        """Go on without turns; the listening thread closes the connection."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # ends the listening thread's `recv`
        self.state.detach(time.monotonic())
        self._changed.notify_all()

    # The listening thread

    def _listen(self, lines: Lines) -> None:
        """Handle the arbiter's messages; when it is gone, look for the next one."""
        while not self._closing.is_set():
            if self._connection is not None:
                self._handle_all(self._connection, lines)
                self._disconnect()
            if self._closing.wait(LOOK_EVERY_S):
                return
            lines = make_lines()
            try:
                self._connect(lines)
            except OSError:
                continue
            except ConfigError as error:
                self._warn_of_no_turns(str(error))
                return
        self._disconnect()  # in case it connected while it was being closed

    def _handle_all(self, connection: socket.socket, lines: Lines) -> None:
        with contextlib.suppress(OSError, Garbled):
            while data := connection.recv(messages.CHUNK_BYTES):
                for line in lines.feed(data):
                    self._handle(messages.from_arbiter.decode(line))

    def _handle(self, message: FromArbiter) -> None:
        with self._changed:
            self._received_s = time.monotonic()
            self._send(self.state.handle(message, self._received_s))
            self._changed.notify_all()
        if (relayed := find_relayed(message)) is not None:
            self._relay(relayed)
        elif isinstance(message, messages.Notice):
            log.warning("%s", message.text)

    def _disconnect(self) -> None:
        with self._changed:
            self._detach()
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        if not self._closing.is_set():
            self._warn_of_no_turns("the arbiter of this host is gone")

    def _connect(self, lines: Lines) -> None:
        """Connect to the arbiter.  Raises OSError if there is none, `ConfigError` if it refuses the job."""
        check_folder(self._path)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(ANSWER_S)
            connection.connect(str(self._path))
            connection.sendall(messages.encode(self._hello))
            answers = messages.receive(connection, lines)
            connection.settimeout(None)
        except Garbled as error:
            connection.close()
            raise OSError(f"the process that listens there is not an arbiter: {error}") from None
        except BaseException:
            connection.close()
            raise
        if isinstance(answers[0], messages.Refusal):
            connection.close()
            raise ConfigError(f"this job cannot share {self._hello.device}: {answers[0].reason}")
        with self._changed:
            self._connection = connection
            self.state.attach()
        for message in answers:
            self._handle(message)

    def _warn_of_no_turns(self, why: str) -> None:
        """Log once, and on one worker of the host, that this job takes no turns."""
        if not self._is_silent:
            log.warning("this job does not take turns with others: %s", why)
        self._is_silent = True
