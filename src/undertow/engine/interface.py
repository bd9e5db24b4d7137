"""The interface between frontends and the engine: everything a frontend can do with the group of workers.

A frontend (torch, Horovod's names, the key-value store, sync) is written against these protocols and makes only values
of the engine, such as `Contribution` and `Ticket`.  The protocols are implemented by the group over sockets, by the
fault driver's group and by the tests' fake; the simulator's engine implements `Rounds`.  tests/contract/test_group.py
checks every implementation.

Threads: the methods can be called from any thread but the engine thread.  Callbacks run in the engine thread unless
documented otherwise; they must be short and must not wait.  Only the methods under "Waiting" and "All ranks together",
`Group.register` and the methods of `UnevenInputs` block.  A blocking method raises the group's error, such as
`PeerLost`, if the group fails meanwhile, and `UndertowError` after the stall timeout.  A non-blocking method never
raises because of a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from undertow.engine.client.calls import NamedCall, RunningOut
from undertow.engine.client.helper import OpenWork
from undertow.engine.client.waiting import Pausing, Ticket
from undertow.engine.coordinator.messages import DeviceTime, Lift
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rate import Rate
from undertow.engine.core.rounds import Op
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Slice, TensorSpec
from undertow.engine.server.gathering import RankBytes
from undertow.errors import UndertowError


class Rounds(Protocol):
    """Rounds of slices: contributions go out, results come back.  Nothing here blocks."""

    def learn(self, slices: Sequence[Slice], *, label: str = "", tensors: Sequence[TensorSpec] = ()) -> None:
        """Make these slices, whose keys `register` has reserved, known to this rank.

        The caller must ensure that no rank contributes to them before all ranks have learned them.  The label and the
        tensors in the slices are for traces.
        """

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        """Contribute to one round of each of these keys.

        Contributions to the same key are answered in order: the key's next round begins when the previous one has been
        answered.  `on_result` is called once for each contribution; until then its source and target belong to the
        engine.  `is_ready`, for copies from a device, returns whether the bytes of the sources are in place; the
        engine thread polls it.
        """

    def release(self, gathered: Sequence[RankBytes]) -> None:
        """Return the memory of other ranks' contributions to a gathered round to the engine."""

    def resize(self, slice_bytes: int) -> None:
        """Adapt the credit to slices of this size, which fit the links."""


class Group(Rounds, Protocol):
    """One worker's view of the group of workers that train together."""

    # Properties

    @property
    def rank(self) -> int:
        """Rank of this worker in the group."""

    @property
    def size(self) -> int:
        """Number of workers."""

    @property
    def shape(self) -> Shape:
        """Hosts, sizes of slices, plan and options, as settled when the group was formed."""

    @property
    def rate(self) -> Rate:
        """Measured rate at which peers receive this worker's slices."""

    # Tables of tensors

    def register(
        self, label: str, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0
    ) -> list[Slice]:
        """Agree with all ranks on these tensors; return their slices, ready for contributions.

        Reserves at least `keys` consecutive keys, starting with the first slice's.  Blocks until all ranks have
        called it.  Raises `MismatchError`, on every rank, if the ranks do not hold the same tensors, and
        `ConfigError`, before any message is sent, if the operation is not possible.
        """

    def discard(self, keys: range) -> None:
        """Stop using a table's keys.  They are forgotten once all ranks have discarded them."""

    # Waiting

    @property
    def error(self) -> UndertowError | None:
        """First error, which has ended the group; None while the group is alive."""

    def check(self) -> None:
        """Raise the group's error, if it has failed.  Does not wait."""

    def wait_for(self, ticket: Ticket, reason: str = "", *, tensor: str = "") -> None:
        """Wait until all answers of the ticket have arrived.

        A shared device is free for other jobs meanwhile.  The reason, or the name of the tensor whose gate waits, is
        for traces.
        """

    # All ranks together

    def agree(self, matter: str, payload: bytes = b"") -> bytes:
        """Wait for all ranks; return the coordinator's decision about their payloads.

        All ranks must make the same calls in the same order.  Raises `MismatchError`, on every rank, if they do not, or
        if their payloads contradict each other; the group does not recover from that.
        """

    def barrier(self) -> None:
        """Wait until all ranks have called it."""

    # Work beside the engine

    def aside(self, work: Callable[[], None]) -> None:
        """Run work in a helper thread, in the order of the calls.  An error in it fails the group.

        The worker does not leave the group before the work has ended.
        """

    def start_helper(self) -> None:
        """Start the thread of `aside`.  Needed if `aside` may be called after the script has ended."""

    @property
    def open_work(self) -> OpenWork:
        """Count of work outside the engine that other workers need: the worker stays in the group until it is zero."""

    def suspect(self, error: UndertowError) -> None:
        """Fail with this error, unless the loss of a worker that explains it is noticed within two seconds."""

    # For some frontends only

    @property
    def calls(self) -> NamedCalls:
        """Calls that ranks make by name, in any order."""

    @property
    def uneven(self) -> UnevenInputs:
        """Rounds with ranks that have run out of input."""

    @property
    def turns(self) -> TurnChannel:
        """Messages between the workers about turns on shared devices."""


class NamedCalls(Protocol):
    """Calls that all ranks make under the same name, in any order and several at once."""

    def begin(self, call: NamedCall) -> None:
        """Begin a call, which ends with `wait_for`.  A rank can make one call of a name at a time."""

    def wait_for(self, call: NamedCall) -> None:
        """Wait until the call has ended; raise `MismatchError` if the ranks made it with different arguments."""

    def run_out(self) -> RunningOut:
        """Announce that this worker has no more input: calls continue without it until no rank has any."""

    def wait_until_out(self, waiting: RunningOut) -> int:
        """Wait until no worker has any input left; return the rank that was the last."""


class UnevenInputs(Protocol):
    """Rounds that continue without workers that have run out of input."""

    def leave(self, slices: Sequence[Slice], *, divide_by_active: bool) -> None:
        """Leave the rounds of these slices.

        Means are then divided by the number of workers left if `divide_by_active`, else by the number of all workers.
        """

    def settle(self, tables: Sequence[Sequence[Slice]]) -> tuple[int, bool]:
        """Resume the rounds of these tables with all ranks, after the last round of any rank.

        To be called by all ranks once they have left.  Returns the rank that stopped last, and whether all stopped
        at the same round.
        """

    def knows(self, slices: Sequence[Slice]) -> bool:
        """Whether some rank has not discarded these slices yet."""


class TurnChannel(Protocol):
    """Messages between the workers of a job that shares its devices with other jobs."""

    def on_message(self, handler: Callable[[int, DeviceTime | Lift], None]) -> None:
        """Call the handler, in the engine thread, with the rank of each sender and its message.  Blocks briefly."""

    def send(self, message: DeviceTime | Lift) -> None:
        """Send a message from the first rank to all other ranks, or from another rank to the first."""

    def free_while_waiting(self, turn: Pausing) -> None:
        """Free the device during every wait for the network."""
