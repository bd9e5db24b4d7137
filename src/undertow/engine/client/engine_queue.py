"""Work that other threads pass to the engine thread, including the calls for some frontends only.

In: calls from any thread.  Out: the same calls, in order, in the engine thread.  An error never ends that thread: it
is kept and raised by the next call of a training thread.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from undertow.engine.client.calls import NamedCall, RunningOut
from undertow.engine.client.control import GroupControl
from undertow.engine.client.exchange import Exchange
from undertow.engine.client.waiting import Pausing, Waiters
from undertow.engine.coordinator import messages
from undertow.engine.coordinator.agreement import LATEST
from undertow.engine.core.shape import COORDINATOR
from undertow.engine.core.slicing import Slice
from undertow.engine.wire.loop import Loop
from undertow.errors import UndertowError

log = logging.getLogger("undertow")

_Call = TypeVar("_Call", bound=Callable[..., Any])


def guarded(method: _Call) -> _Call:
    """Decorate a method of an object with `waiters`: an error fails the waiters instead of being raised."""

    @functools.wraps(method)
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return method(self, *arguments, **options)
        except UndertowError as error:
            self.waiters.fail(error)
        except Exception as error:  # a defect in undertow: logged in full, never swallowed
            log.exception("the engine failed")
            fail_by_defect(self.waiters, error)
        return None

    return run  # type: ignore[return-value]


def fail_by_defect(waiters: Waiters, error: Exception) -> None:
    """Fail a group because of an exception that only a defect can raise."""
    waiters.fail(UndertowError(f"the engine failed: {type(error).__name__}: {error}"))


class EngineQueue:
    """Queue of one group's work for the engine thread."""

    def __init__(self, loop: Loop, waiters: Waiters) -> None:
        self.waiters = waiters
        self._loop = loop

    def post(self, work: Callable[[], object]) -> None:
        """Run `work` in the engine thread, soon.  Can be called from any thread."""
        self._loop.post(self.run, work)

    def call(self, work: Callable[[], object]) -> None:
        """Run `work` in the engine thread and wait until it is done or the group has failed."""
        done = threading.Event()

        def run() -> None:
            work()
            done.set()

        self.post(run)
        self.waiters.wait(done, "the engine")

    @guarded
    def run(self, work: Callable[[], object]) -> None:
        """Run `work` now, in the calling thread.  An error fails the group."""
        work()


@dataclass(frozen=True, eq=False)
class QueuedCalls:
    """Implementation of `NamedCalls` over the engine of one group."""

    _queue: EngineQueue
    _control: GroupControl

    def begin(self, call: NamedCall) -> None:
        self._queue.waiters.check()
        self._queue.post(lambda: self._make(call))

    def _make(self, call: NamedCall) -> None:
        self._control.calls.make(call)
        self._control.check_departed()

    def wait_for(self, call: NamedCall) -> None:
        self._queue.waiters.wait(call.done, call.name)
        if call.mismatch:
            raise call.mismatch.make_error()

    def run_out(self) -> RunningOut:
        self._queue.waiters.check()
        waiting = RunningOut()
        self._queue.post(lambda: self._control.calls.run_out(waiting))
        return waiting

    def wait_until_out(self, waiting: RunningOut) -> int:
        self._queue.waiters.wait(waiting.done, "others have more input")
        return waiting.last


@dataclass(frozen=True, eq=False)
class UnevenRounds:
    """Implementation of `UnevenInputs` over the engine of one group."""

    _rank: int
    _queue: EngineQueue
    _exchange: Exchange
    _control: GroupControl
    _agree: Callable[[str, bytes], bytes]

    def leave(self, slices: Sequence[Slice], *, divide_by_active: bool) -> None:
        keys = [item.spec.key for item in slices]

        def leave_the_rounds() -> None:
            step = self.rounds_done(slices)
            self._control.send_all(messages.Joined(keys, step, divide_by_active))
            self._exchange.join(self._rank, keys, step, divide_by_active=divide_by_active)

        self._queue.call(leave_the_rounds)

    def settle(self, tables: Sequence[Sequence[Slice]]) -> tuple[int, bool]:
        own = [self.rounds_done(slices) for slices in tables]
        last, steps, is_even = LATEST.decode(self._agree("join", msgspec.msgpack.encode(own)))
        for slices, step in zip(tables, steps, strict=True):
            self.resume(slices, step)
        self._agree("barrier", b"")  # no rank contributes before all ranks have resumed at the same round
        return last, is_even

    def knows(self, slices: Sequence[Slice]) -> bool:
        return bool(slices) and self._exchange.knows(slices[0].spec.key)

    def rounds_done(self, slices: Sequence[Slice]) -> int:
        """Return the number of rounds that these slices have completed."""
        return self._exchange.worker.flow.step(slices[0].spec.key) if slices else 0

    def resume(self, slices: Sequence[Slice], rounds_done: int) -> None:
        """Continue together with the other ranks after this many rounds."""
        self._queue.call(lambda: self._exchange.resume([item.spec.key for item in slices], rounds_done))


@dataclass(frozen=True, eq=False)
class GroupTurnChannel:
    """Implementation of `TurnChannel` over the control messages of one group."""

    _rank: int
    _queue: EngineQueue
    _control: GroupControl

    def on_message(self, handler: Callable[[int, messages.DeviceTime | messages.Lift], None]) -> None:
        self._queue.call(lambda: setattr(self._control, "on_turns", handler))

    def send(self, message: messages.DeviceTime | messages.Lift) -> None:
        if self._rank == COORDINATOR:
            self._queue.post(lambda: self._control.send_all(message))
        else:
            self._queue.post(lambda: self._control.send(COORDINATOR, message))

    def free_while_waiting(self, turn: Pausing) -> None:
        self._queue.waiters.share(turn)
