"""A worker's side of crossover: when it may compute.

In: "I compute now", "I wait now", from the training threads; words of the arbiter.
Out: the calling thread returns when its job has the turn.

Never fails and never hangs because of an arbiter: without one, or when it goes away, the worker
computes when it likes, and looks for a new one from time to time.  While there is no other job on the
device it need not ask, and says what it did in a word or two per second.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from undertow.crossover import messages
from undertow.crossover.messages import FromArbiter, Hello, Lines, ToArbiter
from undertow.crossover.place import check_folder
from undertow.crossover.standing import Standings
from undertow.crossover.turns import Place
from undertow.errors import ConfigError

log = logging.getLogger("undertow")

LOOK_EVERY_S = 1.0
# An arbiter that says nothing for so long, although it is asked, is as good as gone.
ANSWER_S = 10.0
ASK_EVERY_S = 5.0
WORD_EVERY_S = 0.3
CHUNK_BYTES = 1 << 16

Clock = Callable[[], float]


class Mode(enum.Enum):
    LOOSE = "there is no arbiter"
    ALONE = "there is no other job"
    SHARED = "every turn is asked for"


class Turn:
    """The turn of one device.  Any thread of the worker may use it; the worker holds it as a whole.

    `tell` is called with the job's standing in the first worker, `lift` with how far it is behind in any.
    """

    def __init__(
        self,
        hello: Hello,
        path: Path,
        *,
        tell: Callable[[int, Place], None] = lambda step, place: None,
        lift: Callable[[float], None] = lambda by_s: None,
        synchronise: Callable[[], None] = lambda: None,
        speaks: bool = True,
        clock: Clock = time.monotonic,
    ) -> None:
        self.waited_s = 0.0  # for the turn, so far
        self.standings = Standings()
        self._hello = hello
        self._path = path
        self._tell, self._lift, self._synchronise, self._clock = tell, lift, synchronise, clock
        self._changed = threading.Condition()
        self._mode = Mode.LOOSE
        self._is_computing = False
        self._is_granted = False
        self._is_recalled = False
        self._since_s = 0.0  # when it began to compute
        self._step = 0
        # Since the last word about steps.
        self._steps = 0
        self._compute_s = 0.0
        self._network_s = 0.0
        self._word_s = 0.0
        self._connection: socket.socket | None = None
        self._closing = threading.Event()
        self._is_silent = not speaks
        self._heard_s = 0.0  # when the arbiter last said something

    @property
    def mode(self) -> Mode:
        return self._mode

    # For training threads

    def start(self) -> None:
        """Look for the arbiter.  Raises `ConfigError` if it does not want this job."""
        lines = Lines()
        rest: list[FromArbiter] = []
        try:
            rest = self._meet(lines)
        except OSError:
            self._say_that_it_is_loose("no arbiter is up on this host: start one with undertow share up")
        for message in rest:
            self._hear(message)
        threading.Thread(target=self._listen, args=(lines,), name="undertow-turn", daemon=True).start()

    def take(self) -> None:
        """Return when this worker may compute."""
        with self._changed:
            if self._is_computing:
                return
            if self._mode is Mode.SHARED:
                self._ask()
            self._is_computing = True
            self._since_s = self._clock()

    def give(self) -> None:
        """This worker does not compute any more."""
        if not self._is_computing:
            return
        self._finish()
        with self._changed:
            self._stop_computing()
            if self._is_granted:
                self._is_granted = False
                self._send(messages.Give())

    def end_step(self) -> None:
        """Give back: a step has ended."""
        self._finish()
        with self._changed:
            self._stop_computing()
            self._step += 1
            self._steps += 1
            now = self._clock()
            if self._mode is Mode.SHARED or now - self._word_s > WORD_EVERY_S:
                gives = [messages.Give()] if self._is_granted else []
                self._is_granted = False
                word = messages.EndStep(
                    self._step, self._steps, self._compute_s, self._network_s, self._mode is not Mode.SHARED
                )
                self._send(*gives, word)
                self._steps, self._compute_s, self._network_s, self._word_s = 0, 0.0, 0.0, now

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside of the block the worker waits for the network; afterwards it goes on with what it did."""
        was_computing = self._is_computing
        self.give()
        began_s = self._clock()
        try:
            yield
        finally:
            with self._changed:
                self._network_s += self._clock() - began_s
        if was_computing:
            self.take()

    def make_way(self) -> None:
        """Between two layers: let somebody in who goes first."""
        if self._is_recalled:
            self.give()
            self.take()

    def hear_standing(self, step: int, place: Place) -> None:
        """From the job's first worker."""
        with self._changed:
            self.standings.hear(step, place)

    def raise_standing(self, by_s: float) -> None:
        """In the first worker: on another host the job is behind by so much."""
        with self._changed:
            self._send(messages.Lift(by_s))

    def close(self) -> None:
        """Leave.  What is computed from now on needs no turn."""
        self._closing.set()
        with self._changed:
            self._lose_arbiter()

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._changed = threading.Condition()
        self._closing.set()
        self._mode = Mode.LOOSE
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _finish(self) -> None:
        """The device may still work off what it was given; nobody cares as long as nobody waits for it."""
        if self._is_granted:
            self._synchronise()

    # Inside, with the lock

    def _ask(self) -> None:
        place = self.standings.place_for(self._step + 1)
        began_s = self._clock()
        self._send(messages.Ask() if place is None else messages.Ask(place.virtual_s, place.cost_s))
        try:
            while self._mode is Mode.SHARED and not self._is_granted:
                if not self._changed.wait(ASK_EVERY_S):
                    self._ask_for_a_sign(began_s)
        except BaseException:  # interrupted: nobody will use the turn
            self._is_granted = False
            self._send(messages.Give())
            raise
        finally:
            self.waited_s += self._clock() - began_s

    def _ask_for_a_sign(self, began_s: float) -> None:
        """Somebody else may compute for long; but is there an arbiter that knows it?"""
        if self._clock() - max(began_s, self._heard_s) > ANSWER_S:
            self._lose_arbiter()
        else:
            self._send(messages.Query())

    def _stop_computing(self) -> None:
        if self._is_computing:
            self._is_computing = self._is_recalled = False
            self._compute_s += self._clock() - self._since_s

    def _send(self, *said: ToArbiter) -> None:
        if self._connection is None:
            return
        try:
            self._connection.sendall(b"".join(map(messages.encode, said)))
        except OSError:
            self._lose_arbiter()

    def _lose_arbiter(self) -> None:
        """Whoever waits for the turn goes on without it."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that listens
        self._mode = Mode.LOOSE
        self._is_granted = self._is_recalled = False
        self.standings.forget()
        self._changed.notify_all()

    def _hear(self, message: FromArbiter) -> None:
        """In the listening thread."""
        self._heard_s = self._clock()
        match message:
            case messages.Grant(lift_s):
                if lift_s > 0:
                    self._lift(lift_s)
                with self._changed:
                    self._is_granted = True
                    self._changed.notify_all()
            case messages.Recall():
                self._is_recalled = self._is_granted
            case messages.Company():
                with self._changed:
                    self._mode, self._is_granted = Mode.SHARED, self._is_computing
                    if not self._is_computing:
                        self._send(messages.Give())
            case messages.Solitude():
                with self._changed:
                    self._mode, self._is_granted, self._is_recalled = Mode.ALONE, False, False
                    self.standings.forget()
                    self._changed.notify_all()
            case messages.Standing(step, virtual_s, cost_s):
                place = Place(virtual_s, cost_s)
                self.hear_standing(step, place)
                self._tell(step, place)
            case messages.Notice(text):
                log.warning("%s", text)

    # The connection

    def _listen(self, lines: Lines) -> None:
        """The thread: hear what the arbiter says, and find the next one when it is gone."""
        while not self._closing.is_set():
            if self._connection is not None:
                self._hear_all(self._connection, lines)
                with self._changed:
                    self._lose_arbiter()
                    self._connection.close()
                    self._connection = None
                if not self._closing.is_set():
                    self._say_that_it_is_loose("the arbiter of this host is gone")
            if self._closing.wait(LOOK_EVERY_S):
                return
            lines = Lines()
            try:
                for message in self._meet(lines):
                    self._hear(message)
            except OSError:
                continue
            except ConfigError as error:
                self._say_that_it_is_loose(str(error))
                return

    def _hear_all(self, connection: socket.socket, lines: Lines) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := connection.recv(CHUNK_BYTES):
                for line in lines.feed(data):
                    self._hear(messages.decode_from_arbiter(line))

    def _meet(self, lines: Lines) -> list[FromArbiter]:
        """Introduce this worker; returns what the arbiter said after its welcome."""
        check_folder(self._path)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(ANSWER_S)
            connection.connect(str(self._path))
            connection.sendall(messages.encode(self._hello))
            heard: list[bytes] = []
            while not heard:
                data = connection.recv(CHUNK_BYTES)
                if not data:
                    raise OSError("the arbiter has closed the connection")
                heard = lines.feed(data)
            first, *rest = map(messages.decode_from_arbiter, heard)
            if isinstance(first, messages.Refusal):
                raise ConfigError(f"this job cannot share {self._hello.device}: {first.reason}")
            if not isinstance(first, messages.Welcome):
                raise OSError("what listens there is no arbiter")
            connection.settimeout(None)
        except ValueError as error:
            connection.close()
            raise error if isinstance(error, ConfigError) else OSError(str(error)) from None
        except BaseException:
            connection.close()
            raise
        with self._changed:
            # Somebody else may be here: ask, unless the arbiter says that there is no need.
            self._connection, self._mode, self._is_granted = connection, Mode.SHARED, False
        return rest

    def _say_that_it_is_loose(self, why: str) -> None:
        """Once, and by one worker of the host."""
        if not self._is_silent:
            log.warning("this job does not take turns with others: %s", why)
        self._is_silent = True
