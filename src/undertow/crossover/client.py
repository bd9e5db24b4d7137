"""Client of the arbiter in a training process: `take` returns when the worker may compute.

In: calls of training threads before they compute and wait; messages of the arbiter.
Out: messages of the worker's `TurnState` to the arbiter.
Never fails and never hangs because of an arbiter: without one, or when it goes away, the worker
computes at any time, and looks for a new one every second.
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
# A worker that gets the turn sooner has not waited for it.
RECORDED_S = 0.00005


class TurnClient(TurnTaker):
    """Turns of one worker on one device.  Any thread may call it; the worker holds the turn as a whole.

    `relay` is called with what this worker learns from the arbiter and other workers of its job must know.
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
        self._taken_s = 0.0  # since when this worker computes
        self._heard_s = 0.0  # when the arbiter last said something

    def read_clock(self) -> float:
        """Seconds that pass while this worker does not wait for the turn: how long its own work takes."""
        return time.perf_counter() - self.state.waited_s

    # For training threads

    def start(self) -> None:
        """Look for the arbiter.  Raises `ConfigError` if it does not want this job."""
        lines = make_lines()
        try:
            self._meet(lines)
        except OSError:
            self._warn_that_it_is_loose("no arbiter is up on this host; undertow share up starts one")
        threading.Thread(target=self._listen, args=(lines,), name="undertow-turn", daemon=True).start()

    def take(self) -> None:
        """Return when this worker may compute."""
        with self._changed:
            was_computing, began_s = self.state.is_computing, time.monotonic()
            try:
                while True:
                    # Again each time: another thread may have given back what this one waited for.
                    self._send(self.state.take(time.monotonic()))
                    if self.state.is_computing:
                        if not was_computing:
                            self._record_wait(began_s)
                        return
                    if not self._changed.wait(ASK_EVERY_S):
                        self._check_arbiter(began_s)
            except BaseException:  # interrupted: this thread will not use the turn
                self._send(self.state.give(time.monotonic()))
                self._changed.notify_all()  # other threads ask for themselves
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
        """Give the turn back for as long as the block lasts: the worker waits for the network."""
        wait = self.begin_wait()
        yield
        self.end_wait(wait)

    def handle_relayed(self, message: Relayed) -> None:
        with self._changed:
            super().handle_relayed(message)

    def close(self) -> None:
        """Leave.  What is computed from now on needs no turn."""
        self._closing.set()
        with self._changed:
            self._lose_arbiter()

    def abandon(self) -> None:
        """Leave in a forked child: the connection is the parent's."""
        self._changed = threading.Condition()
        self._closing.set()
        self.state.lose(time.monotonic())
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _finish(self) -> None:
        """Wait until the device has done what it was given, if the turn matters to another job."""
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
        """Ask an arbiter that has been silent for a while whether it is there; give it up after a longer while."""
        if time.monotonic() - max(began_s, self._heard_s) > ANSWER_S:
            self._lose_arbiter()
        else:
            self._send([messages.Query()])

    def _send(self, said: list[ToArbiter]) -> None:
        if self._connection is None or not said:
            return
        data = b"".join(map(messages.encode, said))
        try:
            # Never wait for one that does not read: some kilobytes unread are minutes of silence.
            is_sent = self._connection.send(data, socket.MSG_DONTWAIT) == len(data)
        except OSError:
            is_sent = False
        if not is_sent:
            self._lose_arbiter()

    def _lose_arbiter(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that listens
        self.state.lose(time.monotonic())
        self._changed.notify_all()

    # The listening thread

    def _listen(self, lines: Lines) -> None:
        """Handle what the arbiter says, and find the next one when it is gone."""
        while not self._closing.is_set():
            if self._connection is not None:
                self._handle_all(self._connection, lines)
                self._leave_arbiter()
            if self._closing.wait(LOOK_EVERY_S):
                return
            lines = make_lines()
            try:
                self._meet(lines)
            except OSError:
                continue
            except ConfigError as error:
                self._warn_that_it_is_loose(str(error))
                return
        self._leave_arbiter()  # one that was met when this had just been closed

    def _handle_all(self, connection: socket.socket, lines: Lines) -> None:
        with contextlib.suppress(OSError, Garbled):
            while data := connection.recv(messages.CHUNK_BYTES):
                for line in lines.feed(data):
                    self._handle(messages.from_arbiter.decode(line))

    def _handle(self, message: FromArbiter) -> None:
        with self._changed:
            self._heard_s = time.monotonic()
            self._send(self.state.handle(message, self._heard_s))
            self._changed.notify_all()
        if (relayed := find_relayed(message)) is not None:
            self._relay(relayed)
        elif isinstance(message, messages.Notice):
            log.warning("%s", message.text)

    def _leave_arbiter(self) -> None:
        with self._changed:
            self._lose_arbiter()
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        if not self._closing.is_set():
            self._warn_that_it_is_loose("the arbiter of this host is gone")

    def _meet(self, lines: Lines) -> None:
        """Introduce this worker.  Raises OSError if there is no arbiter, `ConfigError` if it does not want the job."""
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
            raise OSError(f"what listens there is no arbiter: {error}") from None
        except BaseException:
            connection.close()
            raise
        if isinstance(answers[0], messages.Refusal):
            connection.close()
            raise ConfigError(f"this job cannot share {self._hello.device}: {answers[0].reason}")
        with self._changed:
            self._connection = connection
            self.state.meet()
        for message in answers:
            self._handle(message)

    def _warn_that_it_is_loose(self, why: str) -> None:
        """Log this once, and on one worker of the host."""
        if not self._is_silent:
            log.warning("this job does not take turns with others: %s", why)
        self._is_silent = True
