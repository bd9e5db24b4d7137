"""Stage 9, the gate: a parameter with a pending gradient or update makes its readers wait.

In: gradients whose mean has not come, steps that an optimizer defers.  Out: every read of a gradient or a value from
Python gets the right one: it waits for the mean and makes the step first.

The parameter itself is the gate, and so is its gradient, which the user may hold (see `pending_tensors`).  While the
gradient is pending the parameter's class is a subclass whose `grad` waits.  Once the optimizer's step is deferred it is
a subclass on which all waits that torch can do with it.  Afterwards it is an ordinary parameter again.  Autograd adds
to gradients without asking Python, so a hook before its node waits as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from undertow.errors import UndertowError
from undertow.sync.completion import Arrivals
from undertow.torch.gates.pending_tensors import (
    can_close,
    close_gradient,
    close_gradient_itself,
    close_value,
    passing,
    restore,
)
from undertow.torch.gradient.gradients import Gradients
from undertow.torch.hooks import never_compiled, never_looked_into
from undertow.tracing import events
from undertow.tracing.recorder import process_recorder

# The deferred step of an optimizer: steps these parameters, whose gradients are in place.
Update = Callable[[Sequence[torch.nn.Parameter]], None]


class Gate:
    """The gate of one parameter in one table: closed from the end of backward until the update is made."""

    def __init__(self, gates: Gates, gradients: Gradients, index: int) -> None:
        self.parameter = gradients.parameters[index]
        self.name = gradients.name(index)
        self.is_closed = False
        self.is_forgotten = False  # the user has set the gradient to None: only the update still needs it
        self.update: Update | None = None  # deferred: the value waits, too
        self._gates = gates
        self._gradients = gradients
        self._index = index
        self._kind = type(self.parameter)
        self._gradient: torch.Tensor | None = None  # a gate as well, while it is pending
        self._hidden: torch.Tensor | None = None  # the gradient's memory, while it is pending
        self._value: torch.Tensor | None = None  # while the update is deferred
        self.failure: BaseException | None = None  # of the update, made in part or not at all: reads of the value raise

    @property
    def is_deferred(self) -> bool:
        """Whether the optimizer has left the parameter's step to this gate."""
        return self.update is not None

    @property
    def is_here(self) -> bool:
        """Whether the mean gradient has come."""
        return self._gradients.is_here(self._index)

    @property
    def is_exposed(self) -> bool:
        """Whether the gradient can be read in a way that no gate notices."""
        return self._gradients.is_held(self._index) or not can_close(self.parameter)

    def close(self) -> None:
        """Make reads of the gradient wait."""
        self.is_closed, self.is_forgotten, self.update, self.failure = True, False, None, None
        self._kind = type(self.parameter)
        gradient = self.parameter.grad
        if gradient is not None:
            self._gradient = gradient
            self._hidden = close_gradient_itself(gradient, self)
        close_gradient(self.parameter, self)

    def defer(self, update: Update) -> bool:
        """Leave this parameter's step to the gate, and make reads of the value wait.

        Return False if the gate is open by now: then the parameter is to be stepped at once.
        """
        with self._gates.lock:
            if self.is_closed:
                self._value = close_value(self.parameter, self._kind)
                self.update = update
            return self.is_closed

    @never_compiled
    def open(self) -> None:
        """Return when gradient and value are up to date; raises if they never will be."""
        with self._gates.lock:
            if self.is_closed and self.is_deferred:
                self._gates.make_updates()  # of others, before this thread waits
            if not self.is_closed:
                return
            self.wait()
            if self.is_deferred:
                self._gates.make_updates(self)
            else:
                since_s = process_recorder.clock() if process_recorder.is_on else 0.0
                with _aside(self.parameter.device.type):
                    self.land()
                self.restore()
                _record_applied(since_s, [self])

    def wait(self) -> None:
        if self.failure is not None:
            raise UndertowError(
                f"the optimizer's step of {self.name!r} failed: its value is not to be used, start again from a "
                "checkpoint"
            ) from self.failure
        self._gradients.wait_for(self._index)

    def land(self) -> None:
        """Put value and mean gradient in place, for threads that pass the gate."""
        if self._value is not None:
            self.parameter.data, self._value = self._value, None
        if self._gradient is not None and self._hidden is not None:
            self._gradient.data, self._hidden = self._hidden, None
        self._gradients.land_one(self._index)
        if self._gradient is not None:
            restore(self._gradient, torch.Tensor)
            self._gradient = None

    def restore(self) -> None:
        """Open the gate to all: gradient and value are up to date."""
        self.is_closed, self.update = False, None
        restore(self.parameter, self._kind)
        if self.is_forgotten:
            self.parameter.grad = None


class Gates:
    """Gates of one wrapped module, by table."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while one is opened or closed
        self._gates: dict[Gradients, list[Gate]] = {}
        # The completions of each table that no gate has taken; some of their gates may have been opened since.
        self._arrivals: dict[Gradients, Arrivals] = {}

    def watch(self, gradients: Gradients, nodes: Iterable[Any]) -> None:
        """Make a gate of each of these parameters; the nodes are autograd's, which add to their gradients."""
        self._gates[gradients] = [Gate(self, gradients, index) for index in range(len(gradients.parameters))]
        for gate, node in zip(self._gates[gradients], nodes, strict=True):
            node.register_prehook(_guard(gate))

    def expect(self, gradients: Gradients) -> Arrivals:
        """Return the queue for the completions of the next pass, in place of that of the last one."""
        arrivals = self._arrivals[gradients] = Arrivals()
        return arrivals

    def wait_for_exposed(self, gradients: Gradients) -> None:
        """Return when all gradients are here that can be read in a way that no gate notices; backward has ended."""
        for gate in [gate for gate in self._gates[gradients] if gate.is_exposed]:
            gate.wait()

    def close(self, gradients: Gradients) -> None:
        """Put the gradients in place that are here, and close the gates of the others."""
        with self.lock:
            since_s, landed = process_recorder.clock() if process_recorder.is_on else 0.0, []
            for gate in self._gates[gradients]:
                if gate.is_here:
                    gate.land()
                    landed.append(gate)
                else:
                    gate.close()
            _record_applied(since_s, landed)

    def wait_for_updates(self) -> None:
        """Return when all gradients are here and all updates are made."""
        for gates in list(self._gates.values()):
            for gate in gates:
                if gate.is_closed:
                    gate.open()

    def retire(self) -> None:
        """Let go of tables without a closed gate, because the wrapper is gone; they need no garbage collection then.

        Called in the thread that lets go of the wrapper, which may be any: it must not wait.
        """
        for gradients, gates in list(self._gates.items()):
            if not any(gate.is_closed for gate in gates):
                del self._gates[gradients]
                self._arrivals.pop(gradients, None)

    def make_updates(self, *wanted: Gate) -> None:
        """Make the updates of the wanted gates, and of all deferred ones whose gradients are here, in one step."""
        due: dict[Gate, Update] = {gate: gate.update for gate in wanted if gate.is_closed and gate.update is not None}
        # A copy, because `retire` may remove tables in another thread.
        for gradients, arrivals in list(self._arrivals.items()):
            gates = self._gates.get(gradients)
            while arrivals and gates is not None:
                for gate in [gates[index] for index in arrivals.popleft().members]:
                    if gate.is_closed and gate.update is not None and gate.is_here:
                        due[gate] = gate.update
        if due:
            _make_updates(due)


def _make_updates(due: dict[Gate, Update]) -> None:
    """Land these gradients and step their parameters; other threads see none of them before that."""
    by_update: dict[Update, list[Gate]] = {}
    since_s = process_recorder.clock() if process_recorder.is_on else 0.0
    try:
        with _aside(*{gate.parameter.device.type for gate in due}):
            for gate, update in due.items():
                gate.land()
                by_update.setdefault(update, []).append(gate)
            for update, gates in by_update.items():
                update([gate.parameter for gate in gates])
    except BaseException as error:
        for gate in due:
            gate.failure = error
        raise
    for gate in due:
        gate.restore()
    _record_applied(since_s, due, stepped=True)


def _record_applied(since_s: float, gates: Collection[Gate], *, stepped: bool = False) -> None:
    if since_s and gates:
        process_recorder.record(
            events.Applied(since_s, process_recorder.clock(), tuple(gate.name for gate in gates), stepped)
        )


@contextmanager
def _aside(*devices: str) -> Iterator[None]:
    """Return a context in which nothing is recorded, traced, transformed or cast by the forward that opens a gate."""
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
