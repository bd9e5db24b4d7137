"""A worker's side of crossover: the calling thread returns when its job has the turn.

In: "I compute now", "I wait now", from the training threads; words of the arbiter.
Out: the same for its `Part`, and the words of that to the arbiter.
Never fails and never hangs because of an arbiter: without one, or when it goes away, the worker
computes when it likes, and looks for a new one from time to time.
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
from undertow.crossover.messages import FromArbiter, Hello, Lines, ToArbiter
from undertow.crossover.part import Mode, Part
from undertow.crossover.place import check_folder
from undertow.crossover.turns import Place
from undertow.errors import ConfigError, Garbled
from undertow.trace import notes
from undertow.trace.recorder import here

log = logging.getLogger("undertow")

LOOK_EVERY_S = 1.0
# An arbiter that says nothing for so long, although it is asked, is as good as gone.
ANSWER_S = 10.0
ASK_EVERY_S = 5.0
CHUNK_BYTES = 1 << 16
# Who gets the turn sooner has not waited for it.
NOTED_S = 0.00005


class Turn:
    """The turn of one device.  Any thread of the worker may use it; the worker holds it as a whole.

    `tell` is called with the job's standing in the first worker, `lift` with what it should have had by now in any.
    """

    def __init__(
        self,
        hello: Hello,
        path: Path,
        *,
        tell: Callable[[int, Place], None] = lambda step, place: None,
        lift: Callable[[float], None] = lambda to_s: None,
        synchronise: Callable[[], None] = lambda: None,
        speaks: bool = True,
    ) -> None:
        self._part = Part()
        self._hello = hello
        self._path = path
        self._tell, self._lift, self._synchronise = tell, lift, synchronise
        self._changed = threading.Condition()  # held by whoever uses the part or the connection
        self._connection: socket.socket | None = None
        self._closing = threading.Event()
        self._is_silent = not speaks
        self._taken_s = 0.0  # since when this worker computes
        self._heard_s = 0.0  # when the arbiter last said something

    @property
    def mode(self) -> Mode:
        return self._part.mode

    @property
    def is_held(self) -> bool:
        """Whether this worker computes."""
        return self._part.is_computing

    @property
    def waited_s(self) -> float:
        """How long this worker has waited for the turn so far."""
        return self._part.waited_s

    def read_clock(self) -> float:
        """Seconds that pass while this worker does not wait for the turn: how long its own work takes."""
        return time.perf_counter() - self.waited_s

    # For training threads

    def start(self) -> None:
        """Look for the arbiter.  Raises `ConfigError` if it does not want this job."""
        lines = Lines()
        try:
            self._meet(lines)
        except OSError:
            self._say_that_it_is_loose("no arbiter is up on this host; undertow share up starts one")
        threading.Thread(target=self._listen, args=(lines,), name="undertow-turn", daemon=True).start()

    def take(self) -> None:
        """Return when this worker may compute."""
        with self._changed:
            was_computing, began_s = self._part.is_computing, time.monotonic()
            try:
                while True:
                    # Again each time: another thread may have given back what this one waited for.
                    self._send(self._part.take(time.monotonic()))
                    if self._part.is_computing:
                        if not was_computing:
                            self._note_taken(began_s)
                        return
                    if not self._changed.wait(ASK_EVERY_S):
                        self._ask_for_a_sign(began_s)
            except BaseException:  # interrupted: nobody will use the turn
                self._send(self._part.give(time.monotonic()))
                self._changed.notify_all()  # other threads ask for themselves
                raise

    def give(self) -> None:
        """This worker does not compute any more."""
        if self._part.is_computing:
            self._finish()
            self._note_given()
            with self._changed:
                self._send(self._part.give(time.monotonic()))

    def end_step(self) -> None:
        """Give back: a step has ended."""
        self._finish()
        self._note_given()
        with self._changed:
            self._send(self._part.end_step(time.monotonic()))

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside of the block the worker waits for the network; afterwards it goes on with what it did."""
        was_computing = self._part.is_computing
        self.give()
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._part.note_network(time.monotonic() - began_s)
        if was_computing:
            self.take()

    def make_way(self) -> None:
        """Between two layers: let somebody in who goes first."""
        if self._part.is_recalled:
            self.give()
            self.take()

    def hear_standing(self, step: int, place: Place) -> None:
        """From the job's first worker."""
        with self._changed:
            self._part.standings.hear(step, place)

    def raise_standing(self, to_s: float) -> None:
        """In the first worker: on another host the job is far behind, and should count as having had so much."""
        with self._changed:
            self._send([messages.Lift(to_s)])

    def close(self) -> None:
        """Leave.  What is computed from now on needs no turn."""
        self._closing.set()
        with self._changed:
            self._lose_arbiter()

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._changed = threading.Condition()
        self._closing.set()
        self._part.lose(time.monotonic())
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _finish(self) -> None:
        """The device may still work off what it was given; nobody cares as long as nobody waits for it."""
        if self._part.is_granted:
            self._synchronise()

    def _note_taken(self, asked_s: float) -> None:
        self._taken_s = time.monotonic()
        if here.is_on and self._taken_s - asked_s > NOTED_S:
            here.note(notes.TurnAwaited(asked_s, self._taken_s))

    def _note_given(self) -> None:
        if here.is_on and self._part.is_computing:
            here.note(notes.TurnHeld(self._taken_s, time.monotonic()))

    # Inside, with the lock

    def _ask_for_a_sign(self, began_s: float) -> None:
        """Somebody else may compute for long; but is there an arbiter that knows it?"""
        if time.monotonic() - max(began_s, self._heard_s) > ANSWER_S:
            self._lose_arbiter()
        else:
            self._send([messages.Query()])

    def _send(self, said: list[ToArbiter]) -> None:
        if self._connection is None or not said:
            return
        words = b"".join(map(messages.encode, said))
        try:
            # Never wait for one that does not read: some kilobytes unread are minutes of silence.
            is_sent = self._connection.send(words, socket.MSG_DONTWAIT) == len(words)
        except OSError:
            is_sent = False
        if not is_sent:
            self._lose_arbiter()

    def _lose_arbiter(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that listens
        self._part.lose(time.monotonic())
        self._changed.notify_all()

    # The listening thread

    def _listen(self, lines: Lines) -> None:
        """Hear what the arbiter says, and find the next one when it is gone."""
        while not self._closing.is_set():
            if self._connection is not None:
                self._hear_all(self._connection, lines)
                self._part_with_arbiter()
            if self._closing.wait(LOOK_EVERY_S):
                return
            lines = Lines()
            try:
                self._meet(lines)
            except OSError:
                continue
            except ConfigError as error:
                self._say_that_it_is_loose(str(error))
                return
        self._part_with_arbiter()  # that was met when it had just been closed

    def _hear_all(self, connection: socket.socket, lines: Lines) -> None:
        with contextlib.suppress(OSError, Garbled):
            while data := connection.recv(CHUNK_BYTES):
                for line in lines.feed(data):
                    self._hear(messages.decode_from_arbiter(line))

    def _hear(self, message: FromArbiter) -> None:
        with self._changed:
            self._heard_s = time.monotonic()
            self._send(self._part.hear(message, self._heard_s))
            self._changed.notify_all()
        match message:
            case messages.Grant(lift_s) if lift_s > 0:
                self._lift(lift_s)
            case messages.Standing(step, virtual_s, cost_s):
                self._tell(step, Place(virtual_s, cost_s))
            case messages.Notice(text):
                log.warning("%s", text)

    def _part_with_arbiter(self) -> None:
        with self._changed:
            self._lose_arbiter()
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        if not self._closing.is_set():
            self._say_that_it_is_loose("the arbiter of this host is gone")

    def _meet(self, lines: Lines) -> None:
        """Introduce this worker.  Raises OSError if there is no arbiter, `ConfigError` if it does not want the job."""
        check_folder(self._path)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(ANSWER_S)
            connection.connect(str(self._path))
            connection.sendall(messages.encode(self._hello))
            heard = _receive(connection, lines)
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        if isinstance(heard[0], messages.Refusal):
            connection.close()
            raise ConfigError(f"this job cannot share {self._hello.device}: {heard[0].reason}")
        with self._changed:
            self._connection = connection
            self._part.meet()
        for message in heard:
            self._hear(message)

    def _say_that_it_is_loose(self, why: str) -> None:
        """Once, and by one worker of the host."""
        if not self._is_silent:
            log.warning("this job does not take turns with others: %s", why)
        self._is_silent = True


def _receive(connection: socket.socket, lines: Lines) -> list[FromArbiter]:
    """What is said next; OSError if it makes no sense, or nothing comes."""
    try:
        while data := connection.recv(CHUNK_BYTES):
            if heard := lines.feed(data):
                return [messages.decode_from_arbiter(line) for line in heard]
    except Garbled as error:
        raise OSError(f"what listens there is no arbiter: {error}") from None
    raise OSError("the arbiter has closed the connection")
