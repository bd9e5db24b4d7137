"""Stage 9, the gate: a parameter with a pending gradient or update makes its readers wait.

In: gradients whose mean has not arrived, and optimizer steps that are deferred.  Out: every read of a gradient or a
value from Python first waits for the mean and performs the deferred step, so it always sees the right one.

The parameter itself is the gate, and so is its gradient, to which the user may hold a reference (see
`pending_tensors`).  While the gradient is pending, the parameter's class is a subclass whose `grad` waits.  Once the
optimizer's step is deferred, it is a subclass on which every operation waits.  Afterwards it is an ordinary parameter
again.  Autograd accumulates gradients without calling Python, so a hook before its node waits as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from undertow.errors import UndertowError
from undertow.sync.completion import Arrivals
from undertow.torch.gradient.gradients import Gradients
from undertow.torch.modules.hooks import never_compiled, never_looked_into
from undertow.torch.pending.pending_tensors import (
    Update,
    can_close,
    close_gradient,
    close_gradient_itself,
    close_value,
    passing,
    restore,
)
from undertow.tracing import events
from undertow.tracing.recorder import process_recorder


class Gate:
    """The gate of one parameter in one table: closed from the end of backward until the update."""

    def __init__(self, gates: Gates, gradients: Gradients, index: int) -> None:
        self.parameter = gradients.parameters[index]
        self.name = gradients.name(index)
        self.is_closed = False
        self.is_forgotten = False  # the user has set the gradient to None; only the update still needs it
        self.update: Update | None = None  # the deferred step, for which reads of the value wait, too
        self._gates = gates
        self._gradients = gradients
        self._index = index
        self._kind = type(self.parameter)
        self._gradient: torch.Tensor | None = None  # also a gate while it is pending
        self._hidden: torch.Tensor | None = None  # the gradient's memory while it is pending
        self._value: torch.Tensor | None = None  # the parameter's value while the update is deferred
        self.failure: BaseException | None = None  # why the update failed, wholly or partly: reads of the value raise

    @property
    def is_deferred(self) -> bool:
        """Whether the optimizer has deferred the parameter's step to this gate."""
        return self.update is not None

    @property
    def is_here(self) -> bool:
        """Whether the mean gradient has arrived."""
        return self._gradients.is_here(self._index)

    @property
    def is_exposed(self) -> bool:
        """Whether the gradient can be read without passing a gate."""
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
        """Defer this parameter's step to the gate, and make reads of the value wait.

        Returns False if the gate is already open: then the caller must step the parameter now.
        """
        with self._gates.lock:
            if self.is_closed:
                self._value = close_value(self.parameter, self._kind)
                self.update = update
            return self.is_closed

    @never_compiled
    def open(self) -> None:
        """Wait until gradient and value are up to date; raises if they never will be."""
        with self._gates.lock:
            if self.is_closed and self.is_deferred:
                self._gates.make_updates()  # those of other gates, before this thread waits
            if not self.is_closed:
                return
            self.wait()
            if self.is_deferred:
                self._gates.make_updates(self)
            else:
                since_s = process_recorder.read_clock()
                with _shielded(self.parameter.device.type):
                    self.land()
                self.restore()
                _record_applied(since_s, [self])

    def wait(self) -> None:
        if self.failure is not None:
            raise UndertowError(
                f"the optimizer's step of {self.name!r} failed, so its value must not be used: restart from a "
                "checkpoint"
            ) from self.failure
        self._gradients.wait_for(self._index)

    def land(self) -> None:
        """Put value and mean gradient in place, for threads that may pass the gate."""
        if self._value is not None:
            self.parameter.data, self._value = self._value, None
        if self._gradient is not None and self._hidden is not None:
            self._gradient.data, self._hidden = self._hidden, None
        self._gradients.land_one(self._index)
        if self._gradient is not None:
            restore(self._gradient, torch.Tensor)
            self._gradient = None

    def restore(self) -> None:
        """Open the gate for all threads: gradient and value are up to date."""
        self.is_closed, self.update = False, None
        restore(self.parameter, self._kind)
        if self.is_forgotten:
            self.parameter.grad = None


class Gates:
    """Gates of one wrapped module, by table."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while a gate is opened or closed
        self._gates: dict[Gradients, list[Gate]] = {}
        # The completions of each table that no gate has taken yet; some of their gates may be open already.
        self._arrivals: dict[Gradients, Arrivals] = {}

    def watch(self, gradients: Gradients, nodes: Iterable[Any]) -> None:
        """Create a gate for each of these parameters; `nodes` are autograd's, which accumulate their gradients."""
        self._gates[gradients] = [Gate(self, gradients, index) for index in range(len(gradients.parameters))]
        for gate, node in zip(self._gates[gradients], nodes, strict=True):
            node.register_prehook(_guard(gate))

    def expect(self, gradients: Gradients) -> Arrivals:
        """Return a new queue for the completions of the next pass."""
        arrivals = self._arrivals[gradients] = Arrivals()
        return arrivals

    def wait_for_exposed(self, gradients: Gradients) -> None:
        """Wait for all gradients that can be read without passing a gate; backward has ended."""
        for gate in [gate for gate in self._gates[gradients] if gate.is_exposed]:
            gate.wait()

    def close(self, gradients: Gradients) -> None:
        """Put the gradients that have arrived in place, and close the gates of the others."""
        with self.lock:
            since_s = process_recorder.read_clock()
            landed = []
            for gate in self._gates[gradients]:
                if gate.is_here:
                    gate.land()
                    landed.append(gate)
                else:
                    gate.close()
            _record_applied(since_s, landed)

    def wait_for_updates(self) -> None:
        """Wait until all gradients have arrived, and make all deferred updates."""
        for gates in list(self._gates.values()):
            for gate in gates:
                if gate.is_closed:
                    gate.open()

    def retire(self) -> None:
        """Drop tables without a closed gate when the wrapper is deleted, so that they need no garbage collection.

        Called in whichever thread drops the last reference to the wrapper: it must not wait.
        """
        for gradients, gates in list(self._gates.items()):
            if not any(gate.is_closed for gate in gates):
                del self._gates[gradients]
                self._arrivals.pop(gradients, None)

    def make_updates(self, *wanted: Gate) -> None:
        """Make the updates of the wanted gates, and all deferred ones whose gradients have arrived, in one step."""
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
    """Land these gradients and step their parameters, before any other thread can see them."""
    by_update: dict[Update, list[Gate]] = {}
    since_s = process_recorder.read_clock()
    try:
        with _shielded(*{gate.parameter.device.type for gate in due}):
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
def _shielded(*devices: str) -> Iterator[None]:
    """Return a context that shields an update from the autograd, tracing, transforms and autocast of a forward."""
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
