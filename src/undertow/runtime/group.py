"""A group: the workers that sum together, as one of them sees it.

In: contributions and agreements of the training threads; frames of the peers.
Out: results in the training thread's own memory, or one error that names its cause.
The engine thread does the work (see exchange and steward); the training threads only
post and wait.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from undertow.coordinator import messages
from undertow.core import frames
from undertow.core.decoding import Decoder
from undertow.core.flow import Contribution
from undertow.core.frames import SLICE_KINDS, Header, Kind
from undertow.core.rate import Rate
from undertow.core.rounds import Op
from undertow.errors import ConfigError, Garbled, MismatchError, UndertowError
from undertow.plan.placement import Placement
from undertow.plan.slicing import Cut, Slice, TensorSpec, cut
from undertow.runtime.calls import NamedCall, RunningOut
from undertow.runtime.exchange import Exchange
from undertow.runtime.guarding import guarded
from undertow.runtime.helper import Helper
from undertow.runtime.shape import COORDINATOR, Shape
from undertow.runtime.steward import GOODBYE_TIMEOUT_S, Steward
from undertow.runtime.waiting import Waiters
from undertow.store.gathering import Piece
from undertow.store.shard import Unexpected
from undertow.trace import notes
from undertow.trace.recorder import Recorder, here
from undertow.wire.loop import Loop
from undertow.wire.transport import Transport

log = logging.getLogger("undertow")
_cuts: Decoder[Cut] = Decoder(Cut, "the agreement on tensors")

DEVICE_POLL_S = 0.0002
SUSPICION_S = 2.0
HELPER_TIMEOUT_S = 1.0


class Group:
    def __init__(
        self,
        shape: Shape,
        loop: Loop,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        recorder: Recorder = here,
    ) -> None:
        self.rank = shape.rank
        self.size = shape.size
        self.hosts = shape.hosts  # of every rank
        self.sizes = shape.sizes  # what slices may be
        self.address = shape.address
        self.names = shape.names or tuple(range(shape.size))  # of every rank: its rank in the whole job
        self.wait_free = shape.wait_free
        self.plan = shape.plan
        self.profile = shape.profile
        self.identity = shape.identity
        self.sharing = shape.sharing
        self.priority = shape.priority
        self.dropped: Counter[str] = Counter()  # frames that made no sense, by kind
        self.never_connected = sorted(shape.peers)
        self.all_connected = threading.Event()  # each of them was, once: who was faster may have left again
        self.recorder = recorder
        self.waiters = Waiters(shape.stall_timeout_s, self._stalled, recorder)
        self._shape = shape
        self._loop = loop
        self._transport = transport
        self._exchange = Exchange(shape, transport, clock=clock, recorder=recorder)
        self._steward = Steward(shape, loop, transport, self._exchange, self.waiters, clock, recorder)
        self._placement = Placement(shape.size)
        self._agreement_lock = threading.RLock()
        self._agreement_count = 0
        self._closed = threading.Event()
        self._helper = Helper()
        self.owed = self._exchange.owed  # what is under way elsewhere: nobody leaves before it has ended
        if self.size == 1:
            self.all_connected.set()

    # For training threads

    def register(
        self, label: str, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0
    ) -> list[Slice]:
        """Agree with all ranks on these tensors; returns the slices they are cut into.

        So many keys are set aside for them at least, from the first slice's on.

        Raises `MismatchError`, on every rank, if they do not hold the same.
        """
        for tensor in tensors:
            if op is Op.MEAN and not tensor.dtype.is_float:
                raise ConfigError(f"{tensor} in {label}: there is no exact mean of whole numbers")
        table = messages.Table(label, list(tensors), op, keep, keys)
        with self._agreement_lock:  # all ranks place their slices in the order of the agreements
            how = _cuts.decode(self.agree("tensors", msgspec.msgpack.encode(table)))
            slices = cut(tensors, how, op=op, keep=keep, placement=self._placement)
            self.note_names(label, tensors, slices)
        self._call(lambda: self._exchange.learn(slices))
        self.barrier()  # nobody pushes before everybody knows the keys
        return slices

    def learn(self, slices: Sequence[Slice]) -> None:
        """Know these slices, of keys that were set aside, from now on.

        For who is sure that nobody pushes one before everybody has come here.
        """
        self._loop.post(self._run, functools.partial(self._exchange.learn, slices), threading.Event())

    def discard(self, keys: range) -> None:
        """Use a table's keys no more: they are forgotten once all ranks have discarded them.  Never blocks."""
        self._loop.post(
            self._run, functools.partial(self._steward.discarding.begin_with_table, keys), threading.Event()
        )

    def note_names(self, label: str, tensors: Sequence[TensorSpec], slices: Sequence[Slice]) -> None:
        """For those who look on: which tensors these slices carry."""
        if self.recorder.is_on and slices:
            names = {item.spec.key: tuple(tensors[part.tensor].name for part in item.parts) for item in slices}
            self.recorder.note(notes.Named(self.recorder.clock(), label, slices[0].spec.op.name.lower(), names))

    def resize(self, slice_bytes: int) -> None:
        """Slices that fit the links have this size from now on: the credit follows."""
        self._loop.post(self._run, functools.partial(self._exchange.resize, slice_bytes), threading.Event())

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        """Hand over contributions; each one's `on_result` is called in the engine thread.

        `is_ready` tells whether their bytes are in place yet, for copies from a device.
        """
        if is_ready is not None:
            self.owed.begin()
        self._loop.post(self._contribute, contributions, is_ready)

    def aside(self, work: Callable[[], None]) -> None:
        """Run this beside the engine and the training, one after the other; what goes wrong fails the group."""
        self.owed.begin()
        self._helper.submit(functools.partial(self._run_aside, work))

    def start_helper(self) -> None:
        """Be ready for `aside`, also when the script has ended."""
        self._helper.start()

    def _run_aside(self, work: Callable[[], None]) -> None:
        self._run(work, threading.Event())
        self._loop.post(self.owed.end)  # after what the work itself has posted

    def suspect(self, error: UndertowError) -> None:
        """Something beside the engine went wrong: fail with this, unless soon a better reason is known."""
        self._loop.post(self._loop.later, SUSPICION_S, functools.partial(self.waiters.fail, error))

    def release(self, pieces: Sequence[Piece]) -> None:
        """Give back the memory of what was gathered from others."""
        self._loop.post(self._exchange.release, pieces)

    def agree(self, matter: str, payload: bytes = b"") -> bytes:
        """Come together with all ranks; returns what the coordinator has decided."""
        with self._agreement_lock:
            self.waiters.check()
            self._agreement_count += 1
            self._steward.agreed.clear()
            self._loop.post(self._arrive, messages.Arrive(self._agreement_count, matter, payload))
            verdict = self._wait_for_verdict(self._agreement_count, matter)
        if verdict.error:
            raise MismatchError(verdict.error)
        return verdict.payload

    def _wait_for_verdict(self, sequence: int, matter: str) -> messages.Verdict:
        """What was decided counts on all ranks, also if one of them is lost right afterwards."""
        try:
            self.waiters.wait(self._steward.agreed, matter)
        except UndertowError:
            verdict = self._steward.verdict
            if verdict is None or verdict.sequence != sequence:
                raise
            return verdict
        assert self._steward.verdict is not None
        return self._steward.verdict

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.agree("barrier")

    def call(self, call: NamedCall) -> None:
        """Begin a call that all ranks make under its name, in any order; `wait_for_call` ends it.

        No two calls of one name may be under way on a rank.
        """
        self.waiters.check()
        self._loop.post(self._make_call, call)

    def wait_for_call(self, call: NamedCall) -> None:
        """Return when the call has ended; raise `MismatchError` if the ranks differ in it."""
        self.waiters.wait(call.done, call.name)
        if call.refusal:
            raise MismatchError(call.refusal)

    def run_out(self) -> RunningOut:
        """This worker has no more input: calls go on without it until all have none; `wait_until_out` waits for it."""
        self.waiters.check()
        waiting = RunningOut()
        self._loop.post(self._run, lambda: self._steward.calls.run_out(waiting), threading.Event())
        return waiting

    def wait_until_out(self, waiting: RunningOut) -> int:
        """Wait until no worker has input any more; returns the last one that had some."""
        self.waiters.wait(waiting.done, "others have more input")
        return waiting.last

    def share(self, hear: Callable[[int, messages.Standing | messages.Behind], None]) -> None:
        """From now on `hear` is told, in the engine thread, what peers say of turns on devices."""
        self._call(lambda: setattr(self._steward, "on_turns", hear))

    def tell(self, message: messages.Standing | messages.Behind) -> None:
        """Say something of turns: the first rank to all others, the others to the first."""
        say = self._steward.tell_all if self.rank == 0 else functools.partial(self._steward.tell, COORDINATOR)
        self._loop.post(self._run, functools.partial(say, message), threading.Event())

    def hear_pulses(self, hear: Callable[[bytes], None]) -> None:
        """From now on `hear` is told, in the engine thread, what other ranks show those who watch the job."""
        self._steward.on_pulse = hear

    def send_pulse(self, body: bytes) -> None:
        """Show this to those who watch the job at rank 0."""
        if self.rank != COORDINATOR:
            tell = functools.partial(self._steward.tell, COORDINATOR, messages.Pulse(body))
            self._loop.post(self._run, tell, threading.Event())

    def join(self, slices: Sequence[Slice], *, divide_by_active: bool) -> None:
        """This worker has no more input: rounds of these slices go on without it."""
        keys = [item.spec.key for item in slices]

        def leave_the_rounds() -> None:
            step = self.rounds_done(slices)
            self._steward.tell_all(messages.Joined(keys, step, divide_by_active))
            self._exchange.join(self.rank, keys, step, divide_by_active=divide_by_active)

        self._call(leave_the_rounds)

    def knows(self, slices: Sequence[Slice]) -> bool:
        """Whether some rank has not discarded these slices yet."""
        return bool(slices) and self._exchange.knows(slices[0].spec.key)

    def rounds_done(self, slices: Sequence[Slice]) -> int:
        """How many rounds these slices have gone through together."""
        return self._exchange.round_of(slices[0].spec.key) if slices else 0

    def resume(self, slices: Sequence[Slice], rounds_done: int) -> None:
        """All have joined: go on together after this many rounds.  A barrier must follow."""
        self._call(lambda: self._exchange.resume([item.spec.key for item in slices], rounds_done))

    @property
    def rate(self) -> Rate:
        """How fast slices of this worker are received."""
        return self._exchange.rate

    @property
    def bytes_sent(self) -> int:
        """Bytes handed to the network so far, headers included."""
        return self._transport.bytes_sent

    def leave(self, error: str = "") -> None:
        """Begin to leave: once no living worker needs this one any more, or at once because of an error."""
        self._loop.post(self._leave, error)

    def close(self, error: str = "") -> None:
        """Leave and wait until that is done.  Never hangs; raises nothing but an interrupt of the user's."""
        self.leave(error)
        shape = self._shape
        try:
            self._closed.wait(shape.stall_timeout_s + shape.silence_timeout_s + GOODBYE_TIMEOUT_S + 1)
        except BaseException as interrupt:
            self.leave(f"it was interrupted at its end ({type(interrupt).__name__}), while others still needed it")
            self._closed.wait(GOODBYE_TIMEOUT_S + 1)
            raise
        self._helper.join(HELPER_TIMEOUT_S)

    def abandon(self) -> None:
        """In a forked child: let go of the connections without a word; the parent has them."""
        self._transport.abandon()
        self.waiters.abandon(
            UndertowError(
                "this process was forked from a worker and has no engine: it cannot wait for gradients or weights"
            )
        )

    def _call(self, work: Callable[[], None]) -> None:
        """Run something in the engine thread and wait until it is done."""
        done = threading.Event()
        self._loop.post(self._run, work, done)
        self.waiters.wait(done, "the engine")

    def _stalled(self, waited_s: float) -> None:
        ask = functools.partial(self._steward.ask_who_is_missing, waited_s)
        self._loop.post(self._run, ask, threading.Event())

    # Engine thread: what the training threads asked for

    @guarded
    def _run(self, work: Callable[[], None], done: threading.Event) -> None:
        work()
        done.set()

    @guarded
    def _contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None) -> None:
        if self.waiters.error is not None:
            return
        if is_ready is not None and not is_ready():
            self._loop.later(DEVICE_POLL_S, lambda: self._contribute(contributions, is_ready))
            return
        if is_ready is not None:
            self.owed.end()
        self._exchange.contribute(contributions)
        self._steward.check_departed()

    @guarded
    def _arrive(self, arrival: messages.Arrive) -> None:
        self._steward.arrive(arrival)

    @guarded
    def _make_call(self, call: NamedCall) -> None:
        self._steward.calls.make(call)
        self._steward.check_departed()

    @guarded
    def _leave(self, error: str) -> None:
        self._steward.leave(error, self.end)

    def _fail(self, error: Exception) -> None:
        self.waiters.fail(UndertowError(f"the engine failed: {type(error).__name__}: {error}"))

    def _die(self, error: Exception) -> None:
        self._fail(error)
        self._closed.set()  # or who leaves would wait for an engine that is not there

    def end(self) -> None:
        """Let go of everything at once, without a word; in the engine thread."""
        self._loop.no_tick(self._tick)
        self._loop.no_failure(self._die)
        self._transport.close()
        self.recorder.give_back()
        self._helper.stop()
        self.waiters.fail(UndertowError("undertow is shut down: call undertow.init() again before you go on"))
        self._closed.set()

    # Engine thread: what the transport brings (the Receiver)

    def start(self) -> None:
        """From now on this group hears its peers."""
        self._loop.every_tick(self._tick)
        self._loop.on_failure(self._die)

    @guarded
    def _tick(self, now: float) -> None:
        self._steward.tick(now)

    @guarded
    def connected(self, peer: int) -> None:
        self._steward.greet(peer)
        self.never_connected.remove(peer)
        if not self.never_connected:
            self.all_connected.set()

    @guarded
    def lost(self, peer: int, reason: str) -> None:
        self._steward.lose(peer, reason)

    def sink(self, peer: int, header: Header) -> Any | None:
        try:
            self._check_sender(peer, header)
            if header.kind in SLICE_KINDS:
                return self._exchange.sink(peer, header)
            if header.kind is Kind.CONTROL and header.length <= frames.MAX_CONTROL_BYTES:
                return bytearray(header.length)
            raise Unexpected(f"a {header.kind.name} of {header.length} bytes")
        except (Unexpected, MemoryError) as error:
            self._drop(peer, header, str(error) or f"there is no memory for its {header.length} bytes")
            return None

    @guarded
    def arrived(self, peer: int, header: Header, body: Any | None) -> None:
        self._steward.heard(peer)
        if header.kind is Kind.HEARTBEAT:
            return
        try:
            self._check_sender(peer, header)
            if header.kind is Kind.CONTROL:
                self._steward.obey(peer, messages.decode(body or b""))
            else:
                self._exchange.handle(peer, header, body)
                self._steward.check_departed()
        except (Unexpected, Garbled) as error:
            self._drop(peer, header, str(error))

    def _check_sender(self, peer: int, header: Header) -> None:
        if header.job != self._shape.job or header.rank != peer:
            raise Unexpected(f"a frame of job {header.job} and rank {header.rank} on the link to rank {peer}")

    def _drop(self, peer: int, header: Header, reason: str) -> None:
        self.dropped[header.kind.name] += 1
        if self.dropped.total() == 1:
            log.warning("dropped a frame from rank %d: %s (further ones are counted only)", peer, reason)
