"""Stage 1, the hooks: which backward passes are synchronised, when each begins and ends.

In: forward passes that want synchronisation, autograd's own hooks.
Out: "begin", "this gradient is ready" and "finish" for the gradients.

The forward decides, as in torch: its outputs carry a hook that opens the pass when
backward reaches them.  Autograd's end-of-backward callback closes it.  What becomes of a
gradient is decided by a table of states, see `sync.pass_state`.  Reducing a gradient that
is the same everywhere gives the same again, so whatever was accumulated before (`no_sync`,
an earlier pass) comes out right.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from undertow.crossover.client import TurnClient
from undertow.errors import UndertowError
from undertow.sync.open_passes import OpenPasses
from undertow.sync.pass_state import PassEvent, PassState, PassTracker
from undertow.torch.claims.claims import Claim, ClaimedParameter, forget_strays, note_stray, note_synchronised
from undertow.torch.factors.collector import Wanted
from undertow.torch.forwards import find_tensors
from undertow.torch.gates.overlap import Overlap
from undertow.torch.gradient.gradients import Gradients
from undertow.torch.hooks import never_compiled
from undertow.torch.passes.backward import Added, FollowedBackward, follow_gradients, runs_backward, will_run
from undertow.torch.passes.pass_events import PassRecorder
from undertow.torch.planning.planning import TorchPlanning
from undertow.torch.planning.probe import Profiling

_NOTHING = nullcontext()
_open_passes: OpenPasses[Passes] = OpenPasses()  # of this process


class WatchedTable(NamedTuple):
    """The gradients of one table, with what tells of them."""

    gradients: Gradients
    nodes: list[Any]  # autograd's, which add to the gradients; held so that the hooks on them stay
    entries: list[ClaimedParameter]  # what claims know of each parameter; empty without a claim


class Passes:
    """The backward passes over one wrapper's parameters.

    `on_end(absent)` is called after each; `absent` means that some rank took no part.  `is_joining` returns whether
    that may happen, because ranks may run out of input at any time.  `planning` is told of every pass: it decides how
    gradients travel.  With a `turn` other jobs compute while a pass waits for its results.
    """

    def __init__(
        self,
        on_end: Callable[[bool], None],
        *,
        wait_free: bool = True,
        is_joining: Callable[[], bool] = lambda: False,
        claim: Claim | None = None,
        planning: TorchPlanning | Profiling | None = None,
        turn: TurnClient | None = None,
    ) -> None:
        self._on_end = on_end
        self._is_joining = is_joining
        self._claim = claim  # None: this worker is alone
        self._planning = planning
        self._overlap: Overlap | None = None
        self._turn = turn
        self._wait_free = wait_free  # else nothing leaves before the end of backward
        self._tables: list[WatchedTable] = []
        self._gradients: list[Gradients] = []  # of these tables
        self.members: set[torch.Tensor] = set()  # the parameters of all tables
        self._tracker = PassTracker()
        self._followed: FollowedBackward | None = None  # in the states that follow one
        self.recorder = PassRecorder()
        if claim is not None:
            claim.follow(self)

    # What takes part

    def watch(self, gradients: Gradients) -> None:
        """Let these gradients take part from now on."""
        number, ref = len(self._tables), weakref.ref(self)

        def find_wanted(index: int) -> Wanted:
            passes = ref()
            return Wanted.GRADIENT if passes is None else passes.find_wanted(number, index)

        gradients.wants = find_wanted
        entries = []
        if self._claim is not None:
            entries = [self._claim.claim(parameter, name) for parameter, name in gradients.names.items()]
        table = WatchedTable(gradients, follow_gradients(gradients.parameters, self, table=number), entries)
        self._tables.append(table)
        self._gradients.append(gradients)
        self.members.update(gradients.parameters)
        if self._overlap is not None:
            self._overlap.gates.watch(gradients, table.nodes)
        if self._planning is not None:
            self._planning.adopt(gradients)

    def overlap_with(self, overlap: Overlap) -> None:
        """End passes without waiting for their results from now on: reads of a gradient or a weight wait."""
        self._overlap = overlap
        for table in self._tables:
            overlap.gates.watch(table.gradients, table.nodes)

    # What asks for passes

    def synchronise_all(self) -> None:
        """Make every backward a pass from now on, also without any forward that could be seen."""
        self._tracker.advance(PassEvent.ALL_SYNCHRONISED)

    def ignore_all(self) -> None:
        """Make no backward a pass from now on, unless a forward asks for it."""
        self._tracker.advance(PassEvent.NONE_SYNCHRONISED)
        if self._claim is not None:
            self._claim.release()

    def start_forward(self) -> None:
        """Begin a forward that wants synchronisation."""
        self._tracker.saw_forward = True
        if self._claim is not None:
            self._claim.note_forward()
        self.recorder.start_forward()
        if self._planning is None or self._is_joining():
            return
        if self._planning.start_forward() and self._overlap is not None:
            self._overlap.gates.wait_for_updates()

    @never_compiled  # compiled code would depend on the state
    def expect(self, outputs: Any, *, synchronise: bool) -> None:
        """End a forward.  If it wants synchronisation, its backward will be one pass."""
        self._tracker.advance(PassEvent.FORWARD_SYNCHRONISED if synchronise else PassEvent.FORWARD_LOCAL)
        if not self._tracker.is_open:
            self._followed = None
        if self._claim is not None and not synchronise and torch.is_grad_enabled():
            self._claim.is_local = True
        if synchronise:
            for tensor in find_tensors(outputs):
                if tensor.grad_fn is not None:
                    tensor.register_hook(self._reached)  # type: ignore[no-untyped-call]

    def request(self, outputs: Any) -> None:
        """Let the next backward be a pass, whatever forward came before."""
        self._tracker.is_requested = True
        self.expect(outputs, synchronise=True)

    # What is known of passes

    @property
    def has_synchronised(self) -> bool:
        """Whether any gradient was synchronised, if there is another worker."""
        return self._claim is None or self._claim.has_synchronised

    @property
    def computes_again(self) -> bool:
        """Whether a forward that runs now belongs to the very backward that is followed, as in a checkpoint.

        The forward before has said all that there is to say.
        """
        return self._followed is not None and self._is_inside()

    @never_compiled
    def _is_inside(self) -> bool:
        # Some backward runs here, perhaps one nested in ours, and autograd has not let go of ours after an exception.
        return self._followed is not None and not self._followed.is_gone and runs_backward()

    @never_compiled  # compiled code would depend on the state
    def check_closed(self) -> None:
        if self._tracker.is_open:
            raise UndertowError(
                "the backward pass before this forward was broken off by an exception: its gradients are incomplete on "
                "this rank, and the other ranks wait for them. End the run and start it again from a checkpoint"
            )

    # What autograd says

    def _reached(self, gradient: torch.Tensor) -> None:
        self._reach()

    @never_compiled  # where backward runs in compiled code
    def _reach(self) -> None:
        self._follow()
        if not self._tracker.is_open and any(will_run(node) for table in self._tables for node in table.nodes):
            self._begin()

    def ready(self, table: int, index: int, added: Added = None, fresh: Added = None) -> None:
        """Take up a parameter's gradient, which is complete in this backward; `added` is what autograd added last.

        So is `fresh`, unless hooks of others have seen it.
        """
        watched = self._tables[table]
        state = self._tracker.state
        if state is not PassState.OPEN and state is not PassState.OPEN_LATE:
            self._forget_broken_off()
            if self._tracker.state is PassState.LOCAL:
                watched.gradients.accumulated(index, added)
                if self._claim is not None and not _open_passes.covers(watched.gradients.parameters[index]):
                    # It stays on this worker: no other wrapper's pass sends it.
                    note_stray(watched.gradients.parameters[index], watched.entries[index])
                return
            # Either all outputs are out of sight, or the first gradient comes of a nested pass.
            self._follow()
            self._begin()
            state = self._tracker.state
        if self._claim is not None:
            note_synchronised(watched.entries[index], self._claim)
        if self._planning is not None:
            self._planning.ready(watched.gradients.parameters[index])
        assert self._followed is not None
        if torch._C._current_graph_task_id() != self._followed.number:
            # Inside a nested pass (reentrant checkpoints) more may be added to this gradient
            # before the outer one ends: it is sent then.
            watched.gradients.check_unsent(index)
        elif self._wait_free and state is PassState.OPEN:
            with torch.no_grad() if torch.is_grad_enabled() else _NOTHING:  # it is where a graph of the graph is made
                watched.gradients.send(index, fresh)
        if self._turn is not None:
            self._turn.make_way()

    def find_wanted(self, table: int, index: int) -> Wanted:
        """Return what the running backward wants of a layer that could hand over factors of this gradient."""
        gradients, nodes, _ = self._tables[table]
        state = self._tracker.state
        if not will_run(nodes[index]):
            return Wanted.GRADIENT
        if state is PassState.OPEN and self._followed is not None:
            # Inside a nested pass it must be a real one.
            is_ours = torch._C._current_graph_task_id() == self._followed.number
            return Wanted.FACTORS if is_ours and gradients.takes_factors(index, now=True) else Wanted.GRADIENT
        # Where another pass sends this gradient it must be a real one, too.
        is_kept = state is PassState.LOCAL and gradients.takes_factors(index, now=False)
        return Wanted.BOTH if is_kept else Wanted.GRADIENT

    def _forget_broken_off(self) -> None:
        """Let go of a backward that an exception broke off before any gradient."""
        if self._followed is not None and self._followed.is_gone and not self._tracker.is_open:
            self._let_go()

    def _follow(self) -> None:
        """Have `_leave` called when this backward ends, and not when one nested in it does."""
        self._forget_broken_off()
        if self._followed is None:
            self._followed = FollowedBackward(self._leave)
        self._tracker.advance(PassEvent.OUTPUT_REACHED)

    @never_compiled
    def _leave(self, backward: FollowedBackward) -> None:
        if backward is not self._followed:
            return  # a forward has ended since, in another thread
        if self._tracker.is_open:
            self._end()
        else:
            self._let_go()

    def _let_go(self) -> None:
        self._followed = None
        self._tracker.advance(PassEvent.BACKWARD_OVER)

    def _begin(self) -> None:
        assert self._followed is not None
        is_late = _open_passes.add(self, self._followed.number)
        self._tracker.advance(PassEvent.SHARED_GRADIENT_FOUND if is_late else PassEvent.GRADIENT_FOUND)
        self.recorder.begin()
        if self._overlap is not None:
            self._overlap.begin()
        # Ranks that have run out of input know no other slices than the first.
        is_joining = self._is_joining()
        if self._planning is not None and (is_joining or self._tracker.is_unforeseen):
            self._planning.stand_by()
        elif self._planning is not None:
            self._planning.begin(has_gates=self._overlap is not None)
        for gradients in self._gradients:
            arrivals = None if self._overlap is None else self._overlap.expect(gradients)
            gradients.begin(arrivals, as_at_first=is_joining)

    @torch.no_grad()
    def _end(self) -> None:
        self.recorder.end()
        try:
            absent = self._finish()
        finally:
            self._let_go()
            _open_passes.remove(self)
            forget_strays(self.members)
        self._on_end(absent)

    def _finish(self) -> bool:
        """Send what is left, wait, and put results in place.  Return whether a worker took no part."""
        together = _open_passes.find_together(self)
        if self._planning is not None and not self._tracker.is_unforeseen and not self._is_joining():
            self._planning.end()
        for passes in together:
            for gradients in passes._gradients:
                gradients.send_rest()
        if self._turn is not None:
            self._turn.end_step()
        for passes in together:
            passes._wait()
        if (overlap := self._deferring) is not None:
            overlap.end(self._gradients)
            return False
        landed = [gradients.land() for gradients in self._gradients]  # all of them
        return any(landed)

    @property
    def _deferring(self) -> Overlap | None:
        """The overlap, if it lets this pass end before its results are here."""
        # Whether a rank has run out of input is known when the results are here.
        return None if self._is_joining() or self._tracker.state is PassState.OPEN_LATE else self._overlap

    def _wait(self) -> None:
        """Return when all results are here that must be before any lands."""
        overlap = self._deferring
        for gradients in self._gradients:
            if overlap is None:
                gradients.wait()
            else:
                overlap.gates.wait_for_exposed(gradients)
