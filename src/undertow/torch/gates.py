"""Stage 9, the gate: a parameter whose update is still on its way makes every reader wait.

In: parameters whose gradients travel, updates that are due.  Out: whoever reads a gradient or
a value, from Python, gets the right one: first the result is waited for and the update made.

The parameter itself is the gate.  While its gradient travels its class is a subclass whose
`grad` waits; once the optimizer's step is due, a subclass on which everything waits that
torch can do with it (`__torch_function__`).  Then it is an ordinary parameter again.  Autograd
adds to gradients without asking Python, so a hook in front of that waits as well.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from undertow import trace
from undertow.torch.closed import close, close_value, restore
from undertow.torch.gradients import Gradients


class Update(Protocol):
    """The optimizer's step of some parameters, kept for later."""

    def make(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Step these now: their gradients are in place."""


class Gate:
    """One parameter of one table.  Closed from the end of backward until the update is made."""

    def __init__(self, gates: Gates, gradients: Gradients, index: int) -> None:
        self.parameter = gradients.parameters[index]
        self.is_closed = False
        self.update: Update | None = None  # due: the value waits, too
        self.is_forgotten = False  # the user has set the gradient to None: it is for the update only
        self._gates = gates
        self._gradients = gradients
        self._index = index
        self._kind = type(self.parameter)

    @property
    def is_due(self) -> bool:
        return self.update is not None

    @property
    def is_here(self) -> bool:
        """Whether the result has come."""
        return self._gradients.is_here(self._index)

    def close(self) -> None:
        """The gradient travels: only who asks for it has to wait."""
        self.is_closed, self.is_forgotten, self.update = True, False, None
        self._kind = type(self.parameter)
        close(self.parameter, self)

    def defer(self, update: Update) -> None:
        """The optimizer has stepped, but for this parameter: now its value waits as well."""
        self.update = update
        # A graph that was made before the step must not be used after it, as ever.
        torch.autograd.graph.increment_version(self.parameter)
        close_value(self.parameter, self._kind)

    def open(self) -> None:
        """Return when gradient and value are what they should be; raises if they never will."""
        self._gates.open(self)

    def wait(self) -> None:
        if trace.is_on and not self.is_here:
            trace.record("wait", tensor=self._gradients.name(self._index))
        self._gradients.wait_for(self._index)

    def land(self) -> None:
        """Make it an ordinary parameter again, with the averaged gradient."""
        restore(self.parameter, self._kind)
        self.is_closed = False
        self._gradients.land_one(self._index)


class Gates:
    """All gates of one wrapped module."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._gates: dict[Gradients, list[Gate]] = {}
        self._arrived: deque[Gate] = deque()  # filled by the engine thread; may hold some that were opened since

    def watch(self, gradients: Gradients, nodes: Iterable[Any]) -> None:
        """From now on these parameters are gates; the nodes are autograd's, that add to their gradients."""
        self._gates[gradients] = [Gate(self, gradients, index) for index in range(len(gradients.parameters))]
        for gate, node in zip(self._gates[gradients], nodes, strict=True):
            node.register_prehook(_guard(gate))

    def arrived(self, gradients: Gradients, members: Sequence[int]) -> None:
        """In the engine thread: the results of these have come."""
        gates = self._gates[gradients]
        self._arrived.extend(gates[index] for index in members)

    def close(self, gradients: Gradients) -> None:
        """Backward has ended: whatever has not come yet must be waited for."""
        with self._lock:
            for index, gate in enumerate(self._gates[gradients]):
                if gate.is_here:
                    gradients.land_one(index)
                else:
                    gate.close()

    def open(self, gate: Gate) -> None:
        with self._lock:
            if gate.update is not None:
                self._make_updates()  # rather than stand idle
            if not gate.is_closed:
                return
            gate.wait()
            if gate.update is not None:
                self._make_updates(gate)
            else:
                with _aside(gate.parameter.device.type):
                    gate.land()

    def flush(self) -> None:
        """Open them all."""
        for gates in self._gates.values():
            for gate in gates:
                if gate.is_closed:
                    gate.open()

    def _make_updates(self, *wanted: Gate) -> None:
        """Of all that are due and here, in one go: what has come together is stepped together."""
        due: dict[Gate, Update] = {gate: gate.update for gate in wanted if gate.is_closed and gate.update is not None}
        while self._arrived:
            gate = self._arrived.popleft()
            if gate.is_closed and gate.update is not None and gate.is_here:
                due[gate] = gate.update
        if due:
            make_updates(due)


def make_updates(due: dict[Gate, Update]) -> None:
    """Land these gradients and step their parameters."""
    by_update: dict[Update, list[Gate]] = {}
    with _aside(*{gate.parameter.device.type for gate in due}):
        for gate, update in due.items():
            gate.land()
            by_update.setdefault(update, []).append(gate)
        for update, gates in by_update.items():
            update.make([gate.parameter for gate in gates])
    for gate in due:
        if gate.is_forgotten:
            gate.parameter.grad = None


@contextmanager
def _aside(*devices: str) -> Iterator[None]:
    """Wherever in a forward pass a gate is opened, what happens then is no part of it."""
    with ExitStack() as stack:
        if torch._C._are_functorch_transforms_active():
            stack.enter_context(temporarily_clear_interpreter_stack())
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for device in devices:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _guard(gate: Gate) -> Callable[[Any], None]:
    def before_accumulation(gradients: Any) -> None:
        if gate.is_closed:
            gate.open()

    return before_accumulation
