"""Stage 1, the hooks: decide which backward passes are synchronised, and when each begins and ends.

In: forward passes that request synchronisation, and autograd's hooks.
Out: calls that begin a pass, send a gradient, and end the pass.

The forward decides, as in torch: its outputs carry a hook that opens the pass when backward reaches them.  Autograd's
end-of-backward callback closes it.  A state table decides what happens to each gradient (see `sync.pass_state`).
Averaging a gradient that is the same on all ranks does not change it, so gradients that were accumulated before
(under `no_sync`, or by an earlier pass) come out right.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from undertow.crossover.client import TurnClient
from undertow.errors import UndertowError
from undertow.sync.pass_state import PassEvent, PassState, PassTracker
from undertow.torch.claims.claims import Claim, ClaimedParameter, forget_strays, note_stray, note_synchronised
from undertow.torch.factors.collector import Wanted
from undertow.torch.gates.overlap import Overlap
from undertow.torch.gradient.gradients import Gradients
from undertow.torch.modules.forwards import find_tensors
from undertow.torch.modules.hooks import never_compiled
from undertow.torch.passes.backward import Added, FollowedBackward, follow_gradients, runs_backward, will_run
from undertow.torch.passes.open_passes import OpenPasses
from undertow.torch.passes.pass_events import PassRecorder
from undertow.torch.planning.planning import TorchPlanning
from undertow.torch.planning.probe import Profiling

_NOTHING = nullcontext()
_open_passes = OpenPasses()  # of this process


class WatchedTable(NamedTuple):
    """The gradients of one table, with autograd's nodes and the claims on them."""

    gradients: Gradients
    nodes: list[Any]  # autograd's nodes that accumulate the gradients; kept here so that their hooks stay
    entries: list[ClaimedParameter]  # of each parameter; empty without a claim


class Passes:
    """The backward passes over one wrapper's parameters.

    `on_end(absent)` is called after each; `absent` means that some rank took no part.  `is_joining` returns whether
    that may happen because ranks may run out of input at any time.  `planning` is called in every pass, and chooses the
    schemes of gradients.  With a `turn`, other jobs compute while a pass waits for its results.
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
        self._claim = claim  # None if there is only one worker
        self._planning = planning
        self._overlap: Overlap | None = None
        self._turn = turn
        self._wait_free = wait_free  # if not, nothing is sent before the end of backward
        self._tables: list[WatchedTable] = []
        self._gradients: list[Gradients] = []  # those of all tables
        self.members: set[torch.Tensor] = set()  # the parameters of all tables
        self._tracker = PassTracker()
        self._followed: FollowedBackward | None = None  # set in the states that follow a backward
        self.recorder = PassRecorder()
        if claim is not None:
            claim.follow(self)

    # Members

    def watch(self, gradients: Gradients) -> None:
        """Add these gradients to all later passes."""
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
        """End passes without waiting for their results; instead, reads of a gradient or a weight wait."""
        self._overlap = overlap
        for table in self._tables:
            overlap.gates.watch(table.gradients, table.nodes)

    # Requests for passes

    def synchronise_all(self) -> None:
        """Make every later backward a pass, even if no forward is seen."""
        self._tracker.advance(PassEvent.ALL_SYNCHRONISED)

    def ignore_all(self) -> None:
        """Make no later backward a pass, unless a forward requests it."""
        self._tracker.advance(PassEvent.NONE_SYNCHRONISED)
        if self._claim is not None:
            self._claim.release()

    def start_forward(self) -> None:
        """Begin a forward that requests synchronisation."""
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
        """End a forward.  With `synchronise`, its backward will be a pass."""
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
        """Make the next backward a pass, whatever the forward requested."""
        self._tracker.is_requested = True
        self.expect(outputs, synchronise=True)

    # State

    @property
    def has_synchronised(self) -> bool:
        """Whether any gradient has been synchronised; always true for a single worker."""
        return self._claim is None or self._claim.has_synchronised

    @property
    def computes_again(self) -> bool:
        """Whether a forward that runs now is a recomputation inside the followed backward, as in checkpointing.

        Such a forward requests nothing: the original one has done so.
        """
        return self._followed is not None and self._is_inside()

    @never_compiled
    def _is_inside(self) -> bool:
        # Some backward runs here, perhaps nested in the followed one, which no exception has stopped.
        return self._followed is not None and not self._followed.is_gone and runs_backward()

    @never_compiled  # compiled code would depend on the state
    def check_closed(self) -> None:
        if self._tracker.is_open:
            raise UndertowError(
                "the backward pass before this forward was interrupted by an exception: its gradients are incomplete "
                "on this rank, and the other ranks wait for them. End the run and restart it from a checkpoint"
            )

    # Calls of autograd

    def _reached(self, gradient: torch.Tensor) -> None:
        self._reach()

    @never_compiled  # backward may run in compiled code
    def _reach(self) -> None:
        self._follow()
        if not self._tracker.is_open and any(will_run(node) for table in self._tables for node in table.nodes):
            self._begin()

    def ready(self, table: int, index: int, added: Added = None, fresh: Added = None) -> None:
        """Handle a gradient that is complete in this backward; see `follow_gradients` for `added` and `fresh`."""
        watched = self._tables[table]
        if not self._tracker.is_open:
            self._forget_interrupted()
            if self._tracker.state is PassState.LOCAL:
                watched.gradients.accumulated(index, added)
                if self._claim is not None and not _open_passes.covers(watched.gradients.parameters[index]):
                    # It stays on this worker: no other wrapper's pass sends it.
                    note_stray(watched.gradients.parameters[index], watched.entries[index])
                return
            # Either no hook was on an output, or the first gradient comes from a nested pass.
            self._follow()
            self._begin()
        if self._claim is not None:
            note_synchronised(watched.entries[index], self._claim)
        if self._planning is not None:
            self._planning.ready(watched.gradients.parameters[index])
        assert self._followed is not None
        if torch._C._current_graph_task_id() != self._followed.number:
            # After a nested pass (reentrant checkpoints), the outer one may still add to this gradient.  So it is sent
            # at the end.
            watched.gradients.check_unsent(index)
        elif self._wait_free and self._tracker.state is PassState.OPEN:
            with torch.no_grad() if torch.is_grad_enabled() else _NOTHING:  # enabled by `create_graph`
                watched.gradients.send(index, fresh)
        if self._turn is not None:
            self._turn.make_way()

    def find_wanted(self, table: int, index: int) -> Wanted:
        """Return what the running backward wants from a layer that could hand over factors of this gradient."""
        gradients, nodes, _ = self._tables[table]
        state = self._tracker.state
        if not will_run(nodes[index]):
            return Wanted.GRADIENT
        if state is PassState.OPEN and self._followed is not None:
            # A nested pass needs the gradient itself.
            is_ours = torch._C._current_graph_task_id() == self._followed.number
            return Wanted.FACTORS if is_ours and gradients.takes_factors(index, now=True) else Wanted.GRADIENT
        # If another pass sends this gradient, it also needs the gradient itself.
        is_kept = state is PassState.LOCAL and gradients.takes_factors(index, now=False)
        return Wanted.BOTH if is_kept else Wanted.GRADIENT

    def _forget_interrupted(self) -> None:
        """Stop following a backward that an exception stopped before any gradient."""
        if self._followed is not None and self._followed.is_gone and not self._tracker.is_open:
            self._stop_following()

    def _follow(self) -> None:
        """Have `_on_backward_end` called when this backward ends, not when one nested in it does."""
        self._forget_interrupted()
        if self._followed is None:
            self._followed = FollowedBackward(self._on_backward_end)
        self._tracker.advance(PassEvent.OUTPUT_REACHED)

    @never_compiled
    def _on_backward_end(self, backward: FollowedBackward) -> None:
        if backward is not self._followed:
            return  # in the meantime, a forward has ended in another thread
        if self._tracker.is_open:
            self._end()
        else:
            self._stop_following()

    def _stop_following(self) -> None:
        self._followed = None
        self._tracker.advance(PassEvent.BACKWARD_OVER)

    def _begin(self) -> None:
        assert self._followed is not None
        is_late = _open_passes.add(self, self._followed.number)
        self._tracker.advance(PassEvent.SHARED_GRADIENT_FOUND if is_late else PassEvent.GRADIENT_FOUND)
        self.recorder.begin()
        if self._overlap is not None:
            self._overlap.begin()
        # Ranks that have run out of input know only the first layout's slices.
        is_joining = self._is_joining()
        if self._planning is not None and (is_joining or self._tracker.is_unforeseen):
            self._planning.skip()
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
            self._stop_following()
            _open_passes.remove(self)
            forget_strays(self.members)
        self._on_end(absent)

    def _finish(self) -> bool:
        """Send the remaining gradients, wait, and put results in place; return whether a worker took no part."""
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
        landed = [gradients.land() for gradients in self._gradients]  # a list, because all of them must land
        return any(landed)

    @property
    def _deferring(self) -> Overlap | None:
        """The overlap, if it lets this pass end before its results have arrived."""
        # During a join only the results tell whether a rank has run out of input.
        return None if self._is_joining() or self._tracker.state is PassState.OPEN_LATE else self._overlap

    def _wait(self) -> None:
        """Wait for all results that must have arrived before any lands."""
        overlap = self._deferring
        for gradients in self._gradients:
            if overlap is None:
                gradients.wait()
            else:
                overlap.gates.wait_for_exposed(gradients)
