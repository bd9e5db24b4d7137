"""Worker of a virtual job that takes turns: what `TurnClient` is in a training process, without sockets and threads.

In: what the worker does, messages from its arbiter and the job's other workers.  Out: its messages; when it continues.
`TurnTaker` decides when the turn is taken and given back.  As in `TurnClient`, an arbiter that is silent receives a
`Query`, counts as gone after `ANSWER_S`, and the worker looks for the next one.
"""

from __future__ import annotations

from collections.abc import Callable

from undertow.crossover import messages
from undertow.crossover.client import ANSWER_S, ASK_EVERY_S, LOOK_EVERY_S
from undertow.crossover.messages import FromArbiter, Hello, Lift, Relayed, ToArbiter, find_relayed
from undertow.crossover.turn_state import NetworkWait, TurnTaker
from undertow.engine.client.waiting import KEEP_TURN_S
from undertow.errors import ConfigError
from undertow.tools.virtual.arbiter import Connection, Host
from undertow.tools.virtual.world import Channel, Process, World


class JobWorkers:
    """Workers of one virtual job, by rank.  Messages between two of them take some time and stay in order."""

    def __init__(self, world: World, draw_delay_s: Callable[[], float]) -> None:
        self._world, self._draw_delay_s = world, draw_delay_s
        self._workers: list[VirtualWorker] = []
        self._channels: dict[tuple[int, int], Channel] = {}

    def join(self, worker: VirtualWorker) -> None:
        self._workers.append(worker)

    def relay(self, sender: VirtualWorker, message: Relayed) -> None:
        """Relay a device time to all workers but the first, which counts it, and a lift to the first."""
        for receiver in self._workers[:1] if isinstance(message, Lift) else self._workers[1:]:
            if receiver is sender:
                receiver.handle_relayed(message)
            else:
                self._find_channel(sender, receiver).carry(receiver.handle_relayed, message)

    def _find_channel(self, sender: VirtualWorker, receiver: VirtualWorker) -> Channel:
        link = sender.rank, receiver.rank
        if link not in self._channels:
            self._channels[link] = Channel(self._world, receiver, self._draw_delay_s)
        return self._channels[link]


class VirtualWorker(TurnTaker, Process):
    """Worker of a virtual job that takes turns."""

    def __init__(self, world: World, home: Host, hello: Hello, job_workers: JobWorkers) -> None:
        TurnTaker.__init__(self, world)
        Process.__init__(self, f"{hello.name}{hello.rank}", home.number)
        self.world, self.home, self.rank = world, home, hello.rank
        self.connection: Connection | None = None
        self.is_done = False
        self.has_looked = False  # an arbiter has accepted it, or it knows that there is none
        self._hello = hello
        self._job_workers = job_workers
        self._is_accepted = False
        self._received_s = 0.0  # when the arbiter's last message came
        self._asked_s = 0.0
        self._pauses = 0  # counts starts and ends
        self._wait: NetworkWait | None = None
        self._waits_for: tuple[Callable[[], bool], Callable[[], None]] | None = None
        job_workers.join(self)

    # Actions of the worker

    def connect(self) -> None:
        """Connect to the arbiter; if there is none, or it does not answer, try again later."""
        if self.is_done:
            return
        if self.home.arbiter is None:
            self._look_later()
            return
        connection = self.connection = self.home.arbiter.accept(self)
        self._is_accepted = False
        connection.send(self._hello)
        self.world.later(self, ANSWER_S, self._check_accepted, connection)

    def when(self, condition: Callable[[], bool], then: Callable[[], None]) -> None:
        """Call `then` as soon as the condition holds."""
        if condition():
            then()
        else:
            self._waits_for = condition, then

    def check_condition(self) -> None:
        """Continue if the condition of `when` holds: something has happened to the worker."""
        if self._waits_for is not None and self._waits_for[0]():
            (_, then), self._waits_for = self._waits_for, None
            then()

    def has_turn(self) -> bool:
        """Return whether the worker need not wait for the turn: it has the turn, or has not asked for it."""
        return not self.state.is_waiting

    def take(self) -> None:
        """Ask for the turn: the worker may continue when `has_turn`."""
        self._send(self.state.take(self.world.now_s))
        if self.state.is_waiting:
            self._asked_s = self.world.now_s
            self.world.later(self, ASK_EVERY_S, self._check_arbiter, self._asked_s)

    def begin_pause(self) -> None:
        """Start to wait for the network.  As in `Waiters`, the worker keeps its turn during a short wait."""
        self._pauses += 1
        self.world.later(self, KEEP_TURN_S, self._give_in_pause, self._pauses)

    def end_pause(self) -> None:
        """End the wait: the worker may continue when `has_turn`."""
        self._pauses += 1
        if self._wait is not None:
            self.end_wait(self._wait)
            self._wait = None

    def close(self) -> None:
        """Leave the arbiter for good: the process ends."""
        self.is_done = True
        self.state.detach(self.world.now_s)
        self.state.give(self.world.now_s)
        self._disconnect()

    # Events from outside

    def receive(self, connection: Connection, message: FromArbiter) -> None:
        if connection is not self.connection:
            return
        self._received_s = self.world.now_s
        if isinstance(message, messages.Refusal):
            raise ConfigError(f"{self.name} cannot share {self._hello.device}: {message.reason}")
        if isinstance(message, messages.Welcome):
            self.has_looked = self._is_accepted = True
        self._send(self.state.handle(message, self.world.now_s))
        if (relayed := find_relayed(message)) is not None:
            self._job_workers.relay(self, relayed)
        self.check_condition()

    def lose(self, connection: Connection) -> None:
        """Continue without an arbiter that is gone, and look for the next one."""
        if connection is self.connection:
            self.world.note(f"{self.name} has lost its arbiter")
            self._disconnect()
            self.state.detach(self.world.now_s)
            self._look_later()
            self.check_condition()

    # Inside

    def _send(self, outgoing: list[ToArbiter]) -> None:
        if self.connection is not None and self._is_accepted:
            for message in outgoing:
                self.connection.send(message)

    def _disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _look_later(self) -> None:
        self.has_looked = True
        self.world.later(self, LOOK_EVERY_S, self.connect)

    def _check_accepted(self, connection: Connection) -> None:
        if not self._is_accepted:
            self.lose(connection)

    def _check_arbiter(self, asked_s: float) -> None:
        """Send an arbiter that is silent a `Query`; count it as gone after `ANSWER_S`."""
        if self.connection is None or self._asked_s != asked_s or not self.state.is_waiting:
            return
        if self.world.now_s - max(asked_s, self._received_s) > ANSWER_S:
            self.lose(self.connection)
        else:
            self._send([messages.Query()])
            self.world.later(self, ASK_EVERY_S, self._check_arbiter, asked_s)

    def _give_in_pause(self, pause: int) -> None:
        """Give the turn back if this pause still lasts."""
        if self._pauses == pause:
            self._wait = self.begin_wait()
