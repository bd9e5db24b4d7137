"""Stage 1, the hooks: which backward passes are synchronised, when each begins and ends.

In: forward passes that want synchronisation, autograd's own hooks.
Out: "begin", "this gradient is ready" and "finish" for the gradients.

The forward decides (as torch has it): its outputs carry a hook that opens the pass when
backward reaches them.  Autograd's end-of-backward callback closes it.  Reducing a
gradient that is the same everywhere gives the same again, so whatever was accumulated
before (`no_sync`, an earlier pass) comes out right.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any, ClassVar

import torch

from undertow.crossover.client import Turn
from undertow.errors import UndertowError
from undertow.torch.accumulators import Added, follow_accumulation
from undertow.torch.claims import Claim, Entry, forget_strays, note_stray, note_synchronised
from undertow.torch.gradients import Gradients
from undertow.torch.hooks import never_compiled
from undertow.torch.noting import PassNoting
from undertow.torch.overlap import Overlap
from undertow.torch.planning import Planning
from undertow.torch.profiling import Profiling
from undertow.torch.sources import Ask

_NOTHING = nullcontext()


class Passes:
    """The backward passes over one wrapper's parameters.  `on_end(absent)` follows each.

    `is_joining` tells whether ranks may run out of input, and take no part, at any time.
    """

    # All that are open in this process, the first one first.  Weak, because a pass that an exception breaks off never
    # ends: a model that is discarded then would stay for good.
    _open: ClassVar[weakref.WeakKeyDictionary[Passes, None]] = weakref.WeakKeyDictionary()

    def __init__(
        self,
        on_end: Callable[[bool], None],
        *,
        wait_free: bool = True,
        is_joining: Callable[[], bool] = lambda: False,
        claim: Claim | None = None,
    ) -> None:
        self._on_end = on_end
        self._is_joining = is_joining
        self._claim = claim  # None: there is nobody to synchronise with
        self._entries: list[list[Entry]] = []  # as the gradients, if there is a claim
        self._planning: Planning | Profiling | None = None
        self._overlap: Overlap | None = None
        self._turn: Turn | None = None
        self._wait_free = wait_free  # else nothing leaves before the end of backward
        self._gradients: list[Gradients] = []
        self._parameters: set[torch.Tensor] = set()
        self._nodes: list[Any] = []  # autograd's own, held so that the hooks on them stay
        self._is_armed = False  # the last forward asked for synchronisation
        self._arms_all = False  # every backward is synchronised, whatever forward came before
        self._saw_forward = False  # since the last pass
        self._is_asked_for = False  # the next pass, by somebody else than a forward
        self._outer: int | None = None  # autograd's number of the backward that has reached an output
        self._leaving: weakref.ref[Any] | None = None  # what that calls at its end, and holds until then
        self._task: int | None = None  # the same, once a gradient comes of it: the pass is open
        self._is_late = False  # another open pass sends these gradients: ours follow at the end
        self.noting = PassNoting()
        if claim is not None:
            claim.follow(self)

    def watch(self, gradients: Gradients) -> None:
        """From now on these gradients take part."""
        self._gradients.append(gradients)
        self._parameters.update(gradients.parameters)
        ref = weakref.ref(self)  # a wrapper that is gone leaves dead hooks behind, not a live self
        table = len(self._gradients) - 1
        gradients.asks = _ask(ref, table)
        if self._claim is not None:
            named = zip(gradients.parameters, gradients.names.values(), strict=True)
            self._entries.append([self._claim.claim(parameter, name) for parameter, name in named])
        for index, parameter in enumerate(gradients.parameters):
            # On the node, not on the parameter: it comes after all hooks that users put there.
            node = find_accumulator(parameter)
            follow_accumulation(node, _hook(ref, table, index))
            self._nodes.append(node)
        if self._overlap is not None:
            self._overlap.gates.watch(gradients, self._nodes[-len(gradients.parameters) :])
        if self._planning is not None:
            self._planning.adopt(gradients)

    def overlap_with(self, overlap: Overlap) -> None:
        """From now on a pass ends without waiting for its results; whoever needs one waits."""
        self._overlap = overlap
        nodes = iter(self._nodes)
        for gradients in self._gradients:
            overlap.gates.watch(gradients, list(itertools.islice(nodes, len(gradients.parameters))))

    def share(self, turn: Turn) -> None:
        """From now on other jobs compute while a pass waits for its results."""
        self._turn = turn

    def plan_with(self, planning: Planning | Profiling) -> None:
        """From now on somebody else decides how gradients travel."""
        self._planning = planning

    @property
    def has_synchronised(self) -> bool:
        """Whether any gradient was, if there is anybody to synchronise with."""
        return self._claim is None or self._claim.has_synchronised

    def synchronise_all(self) -> None:
        """From now on every backward pass is one, also without any forward that could be seen."""
        self._is_armed = self._arms_all = True

    def ignore_all(self) -> None:
        """From now on none is, unless a forward asks for it."""
        self._is_armed = self._arms_all = False
        if self._claim is not None:
            self._claim.release()

    def expect(self, outputs: Any, *, synchronise: bool) -> None:
        """A forward has ended.  If it wants synchronisation, its backward will be one pass."""
        self._is_armed = synchronise
        if self._claim is not None and not synchronise and torch.is_grad_enabled():
            self._claim.is_local = True
        self._outer = None  # of a backward that was broken off before any gradient
        if synchronise:
            for tensor in find_tensors(outputs):
                if tensor.grad_fn is not None:
                    tensor.register_hook(self._reached)  # type: ignore[no-untyped-call]

    def ask_for(self, outputs: Any) -> None:
        """Let the next backward be a pass, whatever forward came before."""
        self._is_asked_for = True
        self.expect(outputs, synchronise=True)

    def start_forward(self) -> None:
        """A forward that wants synchronisation begins."""
        self._saw_forward = True
        if self._claim is not None:
            self._claim.note_forward()
        self.noting.start_forward()
        if self._planning is None or self._is_joining():
            return
        if self._planning.start_forward() and self._overlap is not None:
            self._overlap.gates.flush()

    @property
    def computes_again(self) -> bool:
        """Whether a forward that runs now belongs to the very backward that is followed, as in a checkpoint.

        The forward before has said all that there is to say.
        """
        return self._outer is not None and self._is_inside()

    @never_compiled
    def _is_inside(self) -> bool:
        # Some backward runs here, perhaps one nested in ours, and autograd has not let go of ours after an exception.
        is_running = self._leaving is not None and self._leaving() is not None
        return is_running and runs_backward()

    def check_closed(self) -> None:
        if self._task is not None:
            raise UndertowError(
                "the backward pass before this forward was broken off by an exception: its gradients are incomplete on "
                "this rank, and the other ranks wait for them. End the run and start it again from a checkpoint"
            )

    def _reached(self, gradient: torch.Tensor) -> None:
        self._reach()

    @never_compiled  # where backward runs in compiled code
    def _reach(self) -> None:
        self._follow()
        if self._task is None and any(will_run(node) for node in self._nodes):
            self._begin()

    def ready(self, table: int, index: int, added: Added = None, fresh: Added = None) -> None:
        """A parameter's gradient of this backward is complete; `added` is what autograd added last.

        So is `fresh`, unless hooks of others have seen it.
        """
        if self._task is None:
            if self._outer is None and not self._is_armed:
                self._gradients[table].accumulated(index, added)
                self._note_stray(table, index)
                return
            # Either all outputs are out of sight, or the first gradient comes of a nested pass.
            self._follow()
            self._begin()
        if self._claim is not None:
            note_synchronised(self._entries[table][index], self._claim)
        if self._planning is not None:
            self._planning.ready(self._gradients[table].parameters[index])
        if torch._C._current_graph_task_id() != self._task:
            # Inside a nested pass (reentrant checkpoints) more may be added to this gradient
            # before the outer one ends: it is sent then.
            self._gradients[table].check_unsent(index)
        elif self._wait_free and not self._is_late:
            with torch.no_grad() if torch.is_grad_enabled() else _NOTHING:  # it is where a graph of the graph is made
                self._gradients[table].send(index, fresh)
        if self._turn is not None:
            self._turn.make_way()

    def _note_stray(self, table: int, index: int) -> None:
        """Unless the pass of another wrapper takes care of it."""
        parameter = self._gradients[table].parameters[index]
        if self._claim is not None and not any(parameter in other._parameters for other in list(self._open)):
            note_stray(parameter, self._entries[table][index])

    def ask(self, table: int, index: int) -> Ask:
        """What the backward that runs now wants of a layer that could hand over parts of this gradient."""
        gradients = self._gradients[table]
        if not will_run(self._node_of(table, index)):
            return Ask.GRADIENT
        if self._task is not None:
            # Inside a nested pass, and where another pass sends this gradient, it must be a real one.
            is_ours = torch._C._current_graph_task_id() == self._task and not self._is_late
            return Ask.PARTS if is_ours and gradients.gathers(index, now=True) else Ask.GRADIENT
        only_accumulates = self._outer is None and not self._is_armed
        return Ask.BOTH if only_accumulates and gradients.gathers(index, now=False) else Ask.GRADIENT

    def _node_of(self, table: int, index: int) -> Any:
        return self._nodes[sum(len(one.parameters) for one in self._gradients[:table]) + index]

    def _follow(self) -> None:
        """Be called when this backward ends, and not already when one nested in it does."""
        if self._outer is None:
            self._outer = torch._C._current_graph_task_id()
            leave = functools.partial(self._leave)
            self._leaving = weakref.ref(leave)
            torch.autograd.Variable._execution_engine.queue_callback(leave)

    @never_compiled
    def _leave(self) -> None:
        self._outer = None
        if self._task is not None:
            self._end()

    def _begin(self) -> None:
        self._task = self._outer
        self.noting.begin()
        self._is_late = any(not self._parameters.isdisjoint(other._parameters) for other in list(self._open))
        self._open[self] = None
        if self._overlap is not None:
            self._overlap.begin()
        # Ranks that have run out of input know no other slices than the first.
        is_joining = self._is_joining()
        if self._planning is not None and (is_joining or self._is_unforeseen):
            self._planning.stand_by()
        elif self._planning is not None:
            self._planning.begin(has_gates=self._overlap is not None)
        for gradients in self._gradients:
            told = None if self._overlap is None else self._overlap.expect(gradients)
            gradients.begin(told, as_at_first=is_joining)

    @torch.no_grad()
    def _end(self) -> None:
        self.noting.end()
        try:
            # All that this backward went through: another rank may have met them in another order.
            # And all results before any lands: gradients may share memory with ones still to be sent.
            together = [self] if self._is_late else [passes for passes in list(self._open) if passes._is_beside(self)]
            gradients = [gradients for passes in together for gradients in passes._gradients]
            if self._planning is not None and not self._is_unforeseen and not self._is_joining():
                self._planning.end()
            for one in gradients:
                one.send_rest()
            if self._turn is not None:
                self._turn.end_step()
            for passes in together:
                passes._wait()
            absent = False
            if self._defers is not None:
                self._defers.end(self._gradients)
            else:
                landed = [one.land() for one in self._gradients]  # all of them
                absent = any(landed)
        finally:
            self._task = None
            self._is_armed = self._arms_all
            self._saw_forward = self._is_asked_for = False
            del self._open[self]
            forget_strays(self._parameters)
        self._on_end(absent)

    @property
    def _is_unforeseen(self) -> bool:
        """No forward of this module said so: parts of it are called by themselves, or somebody asked for a pass."""
        return (self._arms_all or self._is_asked_for) and not self._saw_forward

    @property
    def _defers(self) -> Overlap | None:
        """Who lets this pass end before its results are there, if it may."""
        # Whether somebody has run out of input is known when the results are there.
        return None if self._is_joining() or self._is_late else self._overlap

    def _wait(self) -> None:
        """Return when all results are there that must be before any lands."""
        if self._defers is not None:
            self._defers.wait_for_exposed(self._gradients)
        else:
            for one in self._gradients:
                one.wait()

    def _is_beside(self, other: Passes) -> bool:
        return self._task == other._task and not self._is_late


def _hook(ref: weakref.ref[Passes], table: int, index: int) -> Callable[[Added, Added], None]:
    def ready(added: Added, fresh: Added) -> None:
        passes = ref()
        if passes is not None:
            passes.ready(table, index, added, fresh)

    return ready


def _ask(ref: weakref.ref[Passes], table: int) -> Callable[[int], Ask]:
    def ask(index: int) -> Ask:
        passes = ref()
        return Ask.GRADIENT if passes is None else passes.ask(table, index)

    return ask


def runs_backward() -> bool:
    """Whether autograd has called what runs now."""
    return torch._C._current_graph_task_id() != -1


def find_accumulator(parameter: torch.Tensor) -> Any:
    """Autograd's node that adds to this parameter's gradient."""
    with torch.enable_grad():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def will_run(node: Any) -> bool:
    """Whether this backward adds to the parameter's gradient; `torch.autograd.grad` does not."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        return False  # torch's answer where `torch.autograd.grad` asks for this very parameter


def find_tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """All tensors in a module's output, however nested."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        yield from _find_in(outputs.values())
    elif isinstance(outputs, (list, tuple, set)):
        yield from _find_in(outputs)
    elif hasattr(outputs, "__dataclass_fields__"):
        yield from _find_in(vars(outputs).values() if hasattr(outputs, "__dict__") else ())


def _find_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        yield from find_tensors(value)
