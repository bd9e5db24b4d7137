"""Facade of a group for training threads, which post work to the engine thread and wait for it.

In: contributions and agreements of training threads.
Out: results in the memory of the training threads, or one error that names its cause.
The engine thread's side is in receiver.py (frames), exchange.py (rounds) and control.py (membership, agreements).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from undertow.decoding import Decoder
from undertow.engine.client.control import GOODBYE_TIMEOUT_S, GroupControl, PendingAgreement
from undertow.engine.client.engine_queue import (
    EngineQueue,
    GroupTurnChannel,
    QueuedCalls,
    UnevenRounds,
    fail_by_defect,
)
from undertow.engine.client.exchange import Exchange
from undertow.engine.client.helper import Helper, OpenWork
from undertow.engine.client.receiver import GroupReceiver
from undertow.engine.client.waiting import Ticket, Waiters
from undertow.engine.coordinator import messages
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rate import Rate
from undertow.engine.core.rounds import Op
from undertow.engine.core.shape import COORDINATOR, Shape
from undertow.engine.core.slicing import Cut, Placement, Slice, TensorSpec, cut
from undertow.engine.server.gathering import RankBytes
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.transport import Transport
from undertow.errors import UndertowError
from undertow.tracing import events
from undertow.tracing.recorder import Recorder, process_recorder

_cuts: Decoder[Cut] = Decoder(Cut, "the agreement on tensors")

SUSPICION_S = 2.0
HELPER_TIMEOUT_S = 1.0


class ConnectedGroup:
    """Group over a transport.  Implements `engine.interface.Group`, which documents the methods."""

    def __init__(
        self,
        shape: Shape,
        loop: Loop,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        recorder: Recorder = process_recorder,
    ) -> None:
        self.shape = shape
        self.rank = shape.rank
        self.size = shape.workers
        self.waiters = Waiters(shape.stall_timeout_s, self._on_stall, recorder)
        self._recorder = recorder
        self._loop = loop
        self._transport = transport
        self._exchange = Exchange(shape, transport, clock=clock, recorder=recorder)
        self._control = GroupControl(shape, loop, transport, self._exchange, self.waiters, clock, recorder)
        self.receiver = GroupReceiver(shape, loop, self._exchange, self._control, self.waiters)
        self._queue = EngineQueue(loop, self.waiters)
        self._placement = Placement(shape.owners)
        self._agreement_lock = threading.RLock()
        self._agreement_count = 0
        self._closed = threading.Event()
        self._helper = Helper()
        self.open_work: OpenWork = self._exchange.worker.open_work
        self.calls = QueuedCalls(self._queue, self._control)
        self.uneven = UnevenRounds(shape.rank, self._queue, self._exchange, self._control, self.agree)
        self.turns = GroupTurnChannel(shape.rank, self._queue, self._control)

    @property
    def rate(self) -> Rate:
        return self._exchange.sender.rate

    @property
    def bytes_sent(self) -> int:
        """Bytes handed to the network so far, headers included."""
        return self._transport.bytes_sent

    # Tables of tensors

    def register(
        self, label: str, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0
    ) -> list[Slice]:
        proposal = messages.TableProposal(label, list(tensors), op, keep, keys)
        proposal.check()
        with self._agreement_lock:  # all ranks place their slices in the order of the agreements
            reply = self.agree("tensors", msgspec.msgpack.encode(proposal))
            slices = self.cut_as_agreed(proposal, reply)
        self._queue.call(lambda: self._exchange.learn(slices))
        self.barrier()  # no rank pushes before all ranks know the keys
        return slices

    def cut_as_agreed(self, proposal: messages.TableProposal, reply: bytes) -> list[Slice]:
        """Return the slices of a table as the coordinator decided.  All ranks must call this in the same order."""
        how = _cuts.decode(reply)
        slices = cut(proposal.tensors, how, op=proposal.op, keep=proposal.keep, placement=self._placement)
        self._note_names(slices, proposal.label, proposal.tensors)
        return slices

    def learn(self, slices: Sequence[Slice], *, label: str = "", tensors: Sequence[TensorSpec] = ()) -> None:
        if tensors:
            self._note_names(slices, label, tensors)
        self._queue.post(lambda: self._exchange.learn(slices))

    def discard(self, keys: range) -> None:
        self._queue.post(lambda: self._control.discarding.begin_with_table(keys))

    def resize(self, slice_bytes: int) -> None:
        self._queue.post(lambda: self._exchange.sender.resize(slice_bytes))

    def _note_names(self, slices: Sequence[Slice], label: str, tensors: Sequence[TensorSpec]) -> None:
        """Record, for traces, which tensors these slices carry."""
        if self._recorder.is_on and slices:
            names = {item.spec.key: tuple(tensors[each.tensor].name for each in item.ranges) for item in slices}
            self._recorder.record(events.Named(self._recorder.clock(), label, slices[0].spec.op.name.lower(), names))

    # Rounds

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        if is_ready is not None:
            self.open_work.begin()
        self._loop.post(self.receiver.contribute, contributions, is_ready)

    def release(self, gathered: Sequence[RankBytes]) -> None:
        self._loop.post(self._exchange.worker.release, gathered)

    # Waiting

    @property
    def error(self) -> UndertowError | None:
        return self.waiters.error

    def check(self) -> None:
        self.waiters.check()

    def wait_for(self, ticket: Ticket, reason: str = "", *, tensor: str = "") -> None:
        self.waiters.wait_for(ticket, reason, tensor=tensor)

    def _on_stall(self, waited_s: float) -> None:
        self._queue.post(lambda: self._control.ask_who_is_missing(waited_s))

    # All ranks together

    def agree(self, matter: str, payload: bytes = b"") -> bytes:
        with self._agreement_lock:
            self.waiters.check()
            pending = self.begin_agreement(matter, payload)
            try:
                self.waiters.wait(pending.done, matter)
            except UndertowError:
                # A decision is valid on all ranks, even if one of them is lost right afterwards.
                if pending.result is None:
                    raise
        return pending.take()

    def begin_agreement(self, matter: str, payload: bytes = b"") -> PendingAgreement:
        """Begin an agreement without waiting for it.  Only one can be under way at a time."""
        self._agreement_count += 1
        pending = PendingAgreement(self._agreement_count, matter)
        self._queue.post(lambda: self._control.arrive(pending, payload))
        return pending

    def barrier(self) -> None:
        self.agree("barrier")

    # Work beside the engine

    def aside(self, work: Callable[[], None]) -> None:
        self.open_work.begin()
        self._helper.submit(functools.partial(self._run_aside, work))

    def _run_aside(self, work: Callable[[], None]) -> None:
        self._queue.run(work)
        self._loop.post(self.open_work.end)  # after everything that the work has posted

    def start_helper(self) -> None:
        self._helper.start()

    def suspect(self, error: UndertowError) -> None:
        self._loop.post(self._loop.later, SUSPICION_S, functools.partial(self.waiters.fail, error))

    # Bytes for rank 0, which the engine does not read

    def on_side_message(self, call: Callable[[bytes], None]) -> None:
        """Set the handler on rank 0 for the bytes from other ranks.  It is called in the engine thread."""
        self._control.on_side_message = call

    def send_to_first(self, body: bytes) -> None:
        """Send bytes to the handler on rank 0; do nothing on rank 0."""
        if self.rank != COORDINATOR:
            self._queue.post(lambda: self._control.send(COORDINATOR, messages.SideMessage(body)))

    # Leaving

    def leave(self, error: str = "", exit_code: int | None = None) -> None:
        """Begin to leave the group: as soon as no living worker needs this one, or at once because of an error.

        `exit_code` is the exit code of this process, if its script failed.
        """
        goodbye = messages.Goodbye(error, exit_code)
        self._queue.post(lambda: self._control.leave(goodbye, self._end))

    def close(self, error: str = "", exit_code: int | None = None) -> None:
        """Leave the group and wait until that is done.  Never hangs; raises only an interrupt by the user."""
        self.leave(error, exit_code)
        shape = self.shape
        try:
            self._closed.wait(shape.stall_timeout_s + shape.silence_timeout_s + GOODBYE_TIMEOUT_S + 1)
        except BaseException as interrupt:
            self.leave(f"it was interrupted at its end ({type(interrupt).__name__}) while others still needed it")
            self._closed.wait(GOODBYE_TIMEOUT_S + 1)
            raise
        self._helper.join(HELPER_TIMEOUT_S)

    def abandon(self) -> None:
        """Close the copies of the connections in a forked child; the parent's connections stay open."""
        self._transport.abandon()
        self.waiters.abandon(
            UndertowError(
                "this process was forked from a worker and has no engine: it cannot wait for gradients or weights"
            )
        )

    # In the engine thread

    def start(self) -> None:
        """Begin to receive the ticks of the loop."""
        self._loop.every_tick(self.receiver.tick)
        self._loop.on_failure(self._on_loop_failure)

    def _on_loop_failure(self, error: Exception) -> None:
        fail_by_defect(self.waiters, error)
        self._closed.set()  # otherwise `close` would wait for a thread that has ended

    def _end(self) -> None:
        """Release everything at once, without a message to the peers."""
        self._loop.no_tick(self.receiver.tick)
        self._loop.no_failure(self._on_loop_failure)
        self._transport.close()
        self._recorder.give_back()
        self._helper.stop()
        self.waiters.fail(UndertowError("undertow is shut down: call undertow.init() again to continue"))
        self._closed.set()
