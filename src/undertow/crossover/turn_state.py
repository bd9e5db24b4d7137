"""Turn state of one worker on a shared device: when it may compute, what it sends the arbiter, when it takes turns.

In: what the worker does (take, give, end a step), messages from the arbiter and the job's other workers, the time.
Out: messages to the arbiter; whether the worker computes.  Uses no sockets, no threads and no clock.

Without an arbiter the worker computes at any time.  While no other job is on the device it need not ask, and reports
its steps two or three times per second.
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from undertow.crossover import messages
from undertow.crossover.messages import DeviceTime, FromArbiter, Relayed, ToArbiter
from undertow.crossover.turns import JobPosition

REPORT_EVERY_S = 0.3
# A position is computed from the device time of this many steps before: that of a step has reached all hosts by the end
# of the next step.
LAG = 2
KEPT = 4  # steps whose device time is remembered


class DeviceTimes:
    """Device times of one job after each of its latest steps, as counted on the first worker's host.

    They give the job's position in the order of all jobs, which is the same on every host.
    """

    def __init__(self) -> None:
        self._counts: dict[int, DeviceTime] = {}

    def add(self, count: DeviceTime) -> None:
        self._counts[count.step] = count
        for old in sorted(self._counts)[:-KEPT]:
            del self._counts[old]

    def find_position(self, step: int) -> JobPosition | None:
        """Return the position for a step that begins now; None as long as no device time is known for it."""
        known = [counted for counted in self._counts if counted <= step - LAG]
        if not known:
            return None
        count = self._counts[max(known)]
        return JobPosition(count.virtual_s + count.cost_s * (step - 1 - count.step), count.cost_s)


class TurnMode(enum.Enum):
    NO_ARBITER = "there is no arbiter"
    ALONE = "there is no other job"
    SHARED = "every turn is asked for"


class TurnState:
    """Turn state of one worker on a shared device."""

    def __init__(self) -> None:
        self.mode = TurnMode.NO_ARBITER
        self.is_computing = False
        self.is_granted = False  # by an arbiter that counts the time
        self.is_recalled = False  # another job goes first: give back between two layers
        self.waited_s = 0.0  # for the turn, so far
        self._device_times = DeviceTimes()
        self._asked_s: float | None = None  # when it asked for the turn, if it waits for it
        self._since_s = 0.0  # when it began to compute
        self._step = 0
        # Since the last report of steps:
        self._steps = 0
        self._compute_s = 0.0
        self._network_s = 0.0
        self._reported_s = -math.inf  # the first step is always reported

    @property
    def is_waiting(self) -> bool:
        """Whether it has asked for the turn."""
        return self._asked_s is not None

    # Actions of the worker

    def take(self, now: float) -> list[ToArbiter]:
        """Compute if the worker may; otherwise ask for the turn and wait for it."""
        if self.is_computing or self.is_waiting:
            return []
        if self.mode is not TurnMode.SHARED:
            self._compute(now)
            return []
        self._asked_s = now
        position = self._device_times.find_position(self._step + 1)
        return [messages.Ask() if position is None else messages.Ask(position.virtual_s, position.cost_s)]

    def give(self, now: float) -> list[ToArbiter]:
        """Stop computing, or waiting for the turn."""
        is_known = self.is_granted or self.is_waiting
        self._stop(now)
        return [messages.Give()] if is_known else []

    def end_step(self, now: float) -> list[ToArbiter]:
        """Give the turn back at the end of a step."""
        outgoing = self.give(now)
        self._step += 1
        self._steps += 1
        if self.mode is TurnMode.SHARED or now - self._reported_s > REPORT_EVERY_S:
            outgoing += self._report_steps(now)
        return outgoing

    def note_network(self, seconds: float) -> None:
        self._network_s += seconds

    # Events from outside

    def attach(self) -> None:
        """Start to take turns: an arbiter has accepted this worker."""
        # Another job may be on the device: ask until the arbiter sends `NowAlone`.
        self.mode, self.is_granted = TurnMode.SHARED, False

    def detach(self, now: float) -> None:
        """Go on without turns: the arbiter is gone."""
        self._stop_sharing(TurnMode.NO_ARBITER, now)

    def handle(self, message: FromArbiter, now: float) -> list[ToArbiter]:
        match message:
            case messages.Welcome():
                self.attach()
            case messages.Grant():
                if self.is_waiting:
                    self.is_granted = True
                    self._compute(now)
            case messages.Recall():
                self.is_recalled = self.is_granted
            case messages.NowShared():
                outgoing = self._report_steps(now) if self._steps else []  # whose device time no arbiter counted
                self.mode, self.is_granted = TurnMode.SHARED, self.is_computing
                return outgoing if self.is_computing else [*outgoing, messages.Give()]
            case messages.NowAlone():
                self._stop_sharing(TurnMode.ALONE, now)
            case messages.DeviceTime():
                self._device_times.add(message)
        return []

    def handle_relayed(self, message: messages.Relayed) -> list[ToArbiter]:
        """Handle what another worker of the job relays: see `find_relayed`."""
        if isinstance(message, messages.Lift):
            return [message]
        self._device_times.add(message)
        return []

    def _report_steps(self, now: float) -> list[ToArbiter]:
        is_uncounted = self.mode is not TurnMode.SHARED
        report = messages.EndStep(self._step, self._steps, self._compute_s, self._network_s, is_uncounted)
        self._steps, self._compute_s, self._network_s, self._reported_s = 0, 0.0, 0.0, now
        return [report]

    def _stop_sharing(self, mode: TurnMode, now: float) -> None:
        self.mode = mode
        self.is_granted = self.is_recalled = False
        self._device_times = DeviceTimes()  # another arbiter counts from zero
        if self.is_waiting:
            self._compute(now)

    def _compute(self, now: float) -> None:
        if self._asked_s is not None:
            self.waited_s += now - self._asked_s
            self._asked_s = None
        self.is_computing = True
        self._since_s = now

    def _stop(self, now: float) -> None:
        if self.is_computing:
            self._compute_s += now - self._since_s
        if self._asked_s is not None:
            self.waited_s += now - self._asked_s
        self._asked_s = None
        self.is_computing = self.is_granted = self.is_recalled = False


@dataclass(frozen=True)
class NetworkWait:
    """Wait for the network that has begun."""

    since_s: float
    was_computing: bool


class TurnTaker(ABC):
    """Rules by which a worker takes and gives the turn of its device.

    Training processes, the simulator's workers and the fault driver's follow them.  Only `take` differs: in a training
    process it returns when the worker may compute; in a virtual worker it asks for the turn and returns at once.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.state = TurnState()
        self._clock = clock
        self._is_updating = False  # it has taken the turn for an optimizer's step

    @abstractmethod
    def take(self) -> None:
        """Take the turn: before the first layer of a pass, or to go on after a wait."""

    @abstractmethod
    def _send(self, outgoing: list[ToArbiter]) -> None:
        """Send these messages, if there is an arbiter."""

    def give(self) -> None:
        """Give the turn back: this worker no longer computes."""
        if self.state.is_computing:
            self._send(self.state.give(self._clock()))

    def end_step(self) -> None:
        """Give the turn back at the end of a step's backward pass."""
        self._send(self.state.end_step(self._clock()))

    def make_way(self) -> None:
        """Give a recalled turn back between two layers, and ask for it again."""
        if self.state.is_recalled:
            self.give()
            self.take()

    def begin_wait(self) -> NetworkWait:
        """Give the turn back while this worker waits for the network."""
        was_computing = self.state.is_computing
        self.give()
        return NetworkWait(self._clock(), was_computing)

    def end_wait(self, wait: NetworkWait) -> None:
        """Take the turn again if the worker had it before the wait."""
        self.state.note_network(self._clock() - wait.since_s)
        if wait.was_computing:
            self.take()

    def begin_update(self) -> None:
        """Take the turn for an optimizer's step, unless the worker has it already for a pass, which gives it back."""
        if not self.state.is_computing:
            self.take()
            self._is_updating = True

    def end_update(self) -> None:
        if self._is_updating:
            self._is_updating = False
            self.give()

    def handle_relayed(self, message: Relayed) -> None:
        self._send(self.state.handle_relayed(message))
