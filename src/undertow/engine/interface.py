"""The interface between frontends and the engine: all that a frontend may ask of the workers that train together.

A frontend (torch, Horovod's names, the key-value store, sync) is written against these protocols and constructs
nothing of the engine.  The group over sockets implements them, and so do the group of the fault driver and the tests'
fake; the simulator's engine implements `Rounds`.  tests/contract/test_group.py holds all of them to what is said here.

Threads: any thread but the engine's may call.  Callbacks come in the engine thread unless it is said otherwise: they
must be short and must not wait.  Only the methods under "Waiting" and "All ranks together", `Group.register` and the
calls of `UnevenInputs` block.  What blocks raises the group's error, such as `PeerLost`, if the group fails meanwhile,
and `UndertowError` after the stall timeout.  What does not block never raises because of a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from undertow.engine.client.calls import NamedCall, RunningOut
from undertow.engine.client.helper import Owed
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

        For callers who are sure that no rank contributes to them before all ranks have learned them.  The label and
        the tensors that the slices carry are for traces.
        """

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        """Take part in one round of each of these keys.

        Contributions to one key are answered in their order: its next round begins when the last one is answered.
        `on_result` is called once for each.  Source and target belong to the engine until then.  `is_ready`, for
        copies from a device, tells whether the source's bytes are in place yet; the engine thread polls it.
        """

    def release(self, gathered: Sequence[RankBytes]) -> None:
        """Give back the memory of what other ranks contributed to a gathered round."""

    def resize(self, slice_bytes: int) -> None:
        """Adapt the credit to slices of this size, which fit the links."""


class Group(Rounds, Protocol):
    """The workers that train together, as one of them sees them."""

    # What it is

    @property
    def rank(self) -> int:
        """Number of this worker among the workers of the group."""

    @property
    def size(self) -> int:
        """Number of workers."""

    @property
    def shape(self) -> Shape:
        """Hosts, sizes of slices, plan and options, as settled when the group was formed."""

    @property
    def rate(self) -> Rate:
        """Rate at which peers receive this worker's slices, as far as it is known."""

    # Tables of tensors

    def register(
        self, label: str, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0
    ) -> list[Slice]:
        """Agree with all ranks on these tensors; return the slices that they are cut into, ready for contributions.

        Reserves at least `keys` consecutive keys, starting with the first slice's.  Blocks until all ranks have
        come.  Raises `MismatchError`, on every rank, if they do not hold the same tensors, and `ConfigError`, before
        any rank is asked, if the operation is not possible.
        """

    def discard(self, keys: range) -> None:
        """Stop using a table's keys.  They are forgotten once all ranks have discarded them."""

    # Waiting

    @property
    def error(self) -> UndertowError | None:
        """First error, which has ended the group; None while it is alive."""

    def check(self) -> None:
        """Raise the group's error, if it has failed.  Does not wait."""

    def wait_for(self, ticket: Ticket, reason: str = "", *, tensor: str = "") -> None:
        """Return when all answers of the ticket are here.

        A shared device is free for other jobs meanwhile.  The reason, or the tensor at whose gate this is, is for
        traces.
        """

    # All ranks together

    def agree(self, matter: str, payload: bytes = b"") -> bytes:
        """Meet all ranks; return what the coordinator has decided from their payloads.

        All ranks make the same calls in the same order.  Raises `MismatchError`, on every rank, if they do not, or if
        their payloads exclude each other; the group does not recover from that.
        """

    def barrier(self) -> None:
        """Wait until all ranks have come."""

    # Work beside the engine

    def aside(self, work: Callable[[], None]) -> None:
        """Run work in a helper thread, in the order of the calls; an error of it fails the group.

        The group is not left before the work has ended.
        """

    def start_helper(self) -> None:
        """Start the thread of `aside`.  Needed if `aside` may be called after the script has ended."""

    @property
    def owed(self) -> Owed:
        """Count of work outside of the engine that other workers need: the group is not left before it is zero."""

    def suspect(self, error: UndertowError) -> None:
        """Fail with this error, unless a loss of a worker that explains it is noticed within two seconds."""

    # What only some frontends need

    @property
    def calls(self) -> NamedCalls:
        """Calls that ranks make under names, in any order."""

    @property
    def uneven(self) -> UnevenInputs:
        """Ranks that run out of input before the others."""

    @property
    def turns(self) -> TurnChannel:
        """Messages of the workers about turns on shared devices."""


class NamedCalls(Protocol):
    """Calls that all ranks make under the same name, in any order and several at once."""

    def begin(self, call: NamedCall) -> None:
        """Begin a call; `wait_for` ends it.  A rank has one call of a name under way at a time."""

    def wait_for(self, call: NamedCall) -> None:
        """Return when the call has ended; raise `MismatchError` if the ranks differ in it."""

    def run_out(self) -> RunningOut:
        """Announce that this worker has no more input: calls go on without it until no rank has any."""

    def wait_until_out(self, waiting: RunningOut) -> int:
        """Wait until no worker has input any more; return the rank that was the last."""


class UnevenInputs(Protocol):
    """Rounds that go on without workers that ran out of input."""

    def leave(self, slices: Sequence[Slice], *, divide_by_active: bool) -> None:
        """Leave the rounds of these slices: means are divided by the number of workers left, or by that of all."""

    def settle(self, tables: Sequence[Sequence[Slice]]) -> tuple[int, bool]:
        """Go on together after the last round of any rank.

        Called by all ranks once they have left.  Returns the rank that stopped last, and whether all stopped there.
        """

    def knows(self, slices: Sequence[Slice]) -> bool:
        """Whether some rank has not discarded these slices yet."""


class TurnChannel(Protocol):
    """Messages between the workers of a job that shares its devices with other jobs."""

    def on_message(self, handler: Callable[[int, DeviceTime | Lift], None]) -> None:
        """Call the handler, in the engine thread, with each sender's rank and message.  Blocks for a moment."""

    def send(self, message: DeviceTime | Lift) -> None:
        """Send this to all other ranks if this is the first rank, else to the first rank."""

    def free_while_waiting(self, turn: Pausing) -> None:
        """Let every wait for the network free the device meanwhile."""
