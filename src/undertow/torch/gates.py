"""Stage 9, the gate: a parameter whose update is still on its way makes every reader wait.

In: parameters whose gradients travel, updates that are due.  Out: whoever reads a gradient or
a value, from Python, gets the right one: first the result is waited for and the update made.

The parameter itself is the gate (see `closed`), and so is its gradient, which may be held from
before (see `pending`).  While the gradient travels the parameter's class is a subclass whose
`grad` waits; once the optimizer's step is due, a subclass on which everything
waits that torch can do with it.  Then it is an ordinary parameter again.  Autograd adds to
gradients without asking Python, so a hook in front of that waits as well.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from undertow.errors import UndertowError
from undertow.torch.closed import can_close, close_gradient, close_value, passing, restore
from undertow.torch.gradients import Gradients
from undertow.torch.hooks import never_compiled, never_looked_into
from undertow.torch.pending import close_gradient_itself, release
from undertow.trace import notes
from undertow.trace.recorder import here


class Update(Protocol):
    """The optimizer's step of some parameters, kept for later."""

    def make(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Step these now: their gradients are in place."""


class Gate:
    """One parameter of one table.  Closed from the end of backward until the update is made."""

    def __init__(self, gates: Gates, gradients: Gradients, index: int) -> None:
        self.parameter = gradients.parameters[index]
        self.is_closed = False
        self.is_forgotten = False  # the user has set the gradient to None: it is there for the update only
        self.update: Update | None = None  # due: the value waits, too
        self._gates = gates
        self._gradients = gradients
        self._index = index
        self._kind = type(self.parameter)
        self._gradient: torch.Tensor | None = None  # a gate as well, until its mean has come
        self._hidden: torch.Tensor | None = None  # the gradient's memory, for as long
        self._value: torch.Tensor | None = None  # while it is due
        self._failure: BaseException | None = None  # of the update: the value is good for nothing

    @property
    def name(self) -> str:
        return self._gradients.name(self._index)

    @property
    def is_due(self) -> bool:
        return self.update is not None

    @property
    def is_here(self) -> bool:
        """Whether the result has come."""
        return self._gradients.is_here(self._index)

    @property
    def is_exposed(self) -> bool:
        """Whether somebody could see the gradient without asking the parameter."""
        return self._gradients.is_held(self._index) or not can_close(self.parameter)

    def close(self) -> None:
        """The gradient travels: only who asks for it has to wait."""
        self.is_closed, self.is_forgotten, self.update, self._failure = True, False, None, None
        self._kind = type(self.parameter)
        gradient = self.parameter.grad
        if gradient is not None:
            self._gradient = gradient
            self._hidden = close_gradient_itself(gradient, self)
        close_gradient(self.parameter, self)

    def defer(self, update: Update) -> bool:
        """The optimizer steps, but not this parameter; False if somebody has opened the gate by now."""
        with self._gates.lock:
            if self.is_closed:
                self._value = close_value(self.parameter, self._kind)
                self.update = update
            return self.is_closed

    def open(self) -> None:
        """Return when gradient and value are what they should be; raises if they never will."""
        self._gates.open(self)

    def wait(self) -> None:
        if self._failure is not None:
            raise UndertowError(
                f"the optimizer's step of {self.name!r} failed: its value is not to be used, start again from a "
                "checkpoint"
            ) from self._failure
        self._gradients.wait_for(self._index)

    def land(self) -> None:
        """Put value and averaged gradient in place; who passes sees them."""
        if self._value is not None:
            self.parameter.data, self._value = self._value, None
        if self._gradient is not None and self._hidden is not None:
            self._gradient.data, self._hidden = self._hidden, None
        self._gradients.land_one(self._index)
        if self._gradient is not None:
            release(self._gradient)
            self._gradient = None

    def restore(self) -> None:
        """All is done: let everybody in."""
        self.is_closed, self.update = False, None
        restore(self.parameter, self._kind)
        if self.is_forgotten:
            self.parameter.grad = None

    def fail(self, failure: BaseException) -> None:
        """The update was not made, or not wholly."""
        self._failure = failure


class Gates:
    """All gates of one wrapped module."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held by whoever opens or closes one
        self._gates: dict[Gradients, list[Gate]] = {}
        self._arrived: deque[Gate] = deque()  # filled by the engine thread; may hold some that were opened since

    def watch(self, gradients: Gradients, nodes: Iterable[Any]) -> None:
        """From now on these parameters are gates; the nodes are autograd's, that add to their gradients."""
        self._gates[gradients] = [Gate(self, gradients, index) for index in range(len(gradients.parameters))]
        for gate, node in zip(self._gates[gradients], nodes, strict=True):
            node.register_prehook(_guard(gate))

    def arrived(self, gradients: Gradients, members: Sequence[int]) -> None:
        """In the engine thread: the results of these have come."""
        gates = self._gates.get(gradients)
        if gates is not None:
            self._arrived.extend(gates[index] for index in members)

    def wait_for_exposed(self, gradients: Gradients) -> None:
        """Backward has ended.  Return when all gradients are there that somebody could see without asking."""
        for gate in [gate for gate in self._gates[gradients] if gate.is_exposed]:
            gate.wait()

    def close(self, gradients: Gradients) -> None:
        """Whatever has not come yet must be waited for."""
        with self.lock:
            since_s, landed = here.clock() if here.is_on else 0.0, []
            for gate in self._gates[gradients]:
                if gate.is_here:
                    gate.land()
                    landed.append(gate)
                else:
                    gate.close()
            _note_applied(since_s, landed)

    @never_compiled
    def open(self, gate: Gate) -> None:
        with self.lock:
            if gate.is_closed and gate.is_due:
                self._make_updates()  # rather than stand idle
            if not gate.is_closed:
                return
            gate.wait()
            if gate.is_due:
                self._make_updates(gate)
            else:
                since_s = here.clock() if here.is_on else 0.0
                with _aside(gate.parameter.device.type):
                    gate.land()
                gate.restore()
                _note_applied(since_s, [gate])

    def flush(self) -> None:
        """Open them all."""
        for gates in list(self._gates.values()):
            for gate in gates:
                if gate.is_closed:
                    gate.open()

    def retire(self) -> None:
        """The wrapper is gone: let go of tables of which no gate is closed, so that they go without a collection.

        Called in whichever thread lets go of the wrapper: it must not wait.
        """
        for gradients, gates in list(self._gates.items()):
            if not any(gate.is_closed for gate in gates):
                del self._gates[gradients]
        if not self._gates:
            self._arrived.clear()

    def forget_arrivals(self) -> None:
        """Of a pass that is over."""
        self._arrived.clear()

    def _make_updates(self, *wanted: Gate) -> None:
        """Of all that are due and here, in one go: what has come together is stepped together."""
        due: dict[Gate, Update] = {gate: gate.update for gate in wanted if gate.is_closed and gate.update is not None}
        while self._arrived:
            gate = self._arrived.popleft()
            if gate.is_closed and gate.update is not None and gate.is_here:
                due[gate] = gate.update
        if due:
            _make_updates(due)


def _make_updates(due: dict[Gate, Update]) -> None:
    """Land these gradients and step their parameters; nobody else sees one before that."""
    by_update: dict[Update, list[Gate]] = {}
    since_s = here.clock() if here.is_on else 0.0
    try:
        with _aside(*{gate.parameter.device.type for gate in due}):
            for gate, update in due.items():
                gate.land()
                by_update.setdefault(update, []).append(gate)
            for update, gates in by_update.items():
                update.make([gate.parameter for gate in gates])
    except BaseException as error:
        for gate in due:
            gate.fail(error)
        raise
    for gate in due:
        gate.restore()
    _note_applied(since_s, due, stepped=True)


def _note_applied(since_s: float, gates: Collection[Gate], *, stepped: bool = False) -> None:
    if since_s and gates:
        here.note(notes.Applied(since_s, here.clock(), tuple(gate.name for gate in gates), stepped))


@contextmanager
def _aside(*devices: str) -> Iterator[None]:
    """Wherever in a forward pass a gate is opened, what happens then is no part of it."""
    tracing = torch._C._get_tracing_state()
    with ExitStack() as stack:
        stack.enter_context(passing())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.no_grad())
        if torch._C._are_functorch_transforms_active():
            stack.enter_context(temporarily_clear_interpreter_stack())
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if tracing is not None:
            change: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]
            change(None)
            stack.callback(change, tracing)
        for device in devices:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _guard(gate: Gate) -> Callable[[Any], None]:
    def before_accumulation(gradients: Any) -> None:
        if gate.is_closed:
            gate.open()

    return never_looked_into(before_accumulation)
