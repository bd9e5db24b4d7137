"""Stage 8 in overlap: the user's own optimizer, one part of its parameters after the other.

In: `optimizer.step()`.  Out: parameters whose gradients are here are stepped at once; the
others when their gradients come, with the hyper-parameters as they were at `step()`.
No optimizer is written anew: its own step runs, with `param_groups` replaced for a moment by
copies that hold some of the parameters.  That gives the same bits wherever an update reads
nothing but its own parameter, gradient and state: such an optimizer is *separable*.
"""

from __future__ import annotations

import functools
import logging
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from undertow.errors import ConfigError
from undertow.torch.closed import find_gate, forget_gradients, open_gates
from undertow.torch.gates import Gate
from undertow.torch.holders import is_value_alone

log = logging.getLogger("undertow")

SEPARABLE = {
    kind
    for name in (
        *("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta"),
        *("ASGD", "Rprop", "SparseAdam", "Adafactor", "Muon"),
    )
    if (kind := getattr(torch.optim, name, None)) is not None
}

_STEPS = "_undertow_steps"
_OF_SCALER = ("grad_scale", "found_inf")


def find_coupling(optimizer: Optimizer) -> str | None:
    """Why its parameters cannot be stepped one after the other, in words; None if they can."""
    kind = type(optimizer)
    if isinstance(optimizer, Deferring):
        return None  # asked and answered
    if isinstance(optimizer, torch.optim.LBFGS):
        return "LBFGS steps all parameters together"
    if kind not in SEPARABLE:
        return (
            f"nobody says that {kind.__name__} steps every parameter for itself; if it does, pass separable=True to "
            "parallelize"
        )
    return None


def defer_steps(optimizer: Optimizer, *, speaks: bool) -> None:
    """From now on `step()` returns without waiting for gradients.  The object stays the same.

    On one rank it `speaks`: it says when it has to wait all the same.
    """
    if isinstance(optimizer, Deferring):
        return
    kind: Any = type(optimizer)
    patched = vars(optimizer).get("step")
    if patched is not None and not _is_scheduler_patch(patched, kind):
        raise ConfigError(
            f"the step() of this {kind.__name__} was replaced on the object: call parallelize before that is done"
        )
    steps = Steps(optimizer, kind, speaks=speaks)
    optimizer.__class__ = _deferring(kind)
    vars(optimizer)[_STEPS] = steps
    if patched is not None:
        _renew_scheduler_patch(optimizer)


class Steps:
    """The steps of one optimizer."""

    def __init__(self, optimizer: Optimizer, kind: type[Optimizer], *, speaks: bool) -> None:
        self._ref = weakref.ref(optimizer)  # which holds us
        self._lock = threading.RLock()  # a thread that reads a parameter may have to make its step
        self._stepper: int | None = None  # the thread that steps now
        self.part: list[dict[str, Any]] = []  # what it steps
        self._is_silent = not speaks
        # Without the hooks, which torch puts around it: they are for the user's step.
        self._step = getattr(kind.step, "__wrapped__", kind.step) if hasattr(kind.step, "hooked") else kind.step

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """As the optimizer's own; options of its own go along with every part."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._needs_all():
            open_gates([group["params"] for group in self.groups])
        parts = [self._split(group, options) for group in self.groups]
        self.run(parts, options)
        for group, part in zip(self.groups, parts, strict=True):
            if part is not group:
                group.update({**part, "params": group["params"]})  # an optimizer may keep something in it
        return loss

    @property
    def optimizer(self) -> Optimizer:
        """The user holds it, or an update that is due."""
        found = self._ref()
        assert found is not None
        return found

    @property
    def groups(self) -> list[dict[str, Any]]:
        """All of them, whoever steps a part of them now."""
        groups: list[dict[str, Any]] = vars(self.optimizer)["param_groups"]
        return groups

    def run(self, groups: list[dict[str, Any]], options: Mapping[str, Any]) -> None:
        """Let the optimizer step these groups, and nothing else; to this thread alone it has no others."""
        with self._lock:
            self.part, self._stepper = groups, threading.get_ident()
            try:
                self._step(self.optimizer, **options)
            finally:
                self.part, self._stepper = [], None

    @property
    def is_stepping(self) -> bool:
        """Whether it is this thread that steps."""
        return self._stepper == threading.get_ident()

    def run_unscaled(self, groups: list[dict[str, Any]], options: Mapping[str, Any]) -> None:
        """The same, in spite of what a gradient scaler has to say: a step that it is about is never put off."""
        own = vars(self.optimizer)
        with self._lock:
            words = {name: own.pop(name) for name in _OF_SCALER if name in own}
            try:
                self.run(groups, options)
            finally:
                own.update(words)

    def flush(self) -> None:
        """Return when every step that is due has been made."""
        for gate in list(self._gates()):
            if gate.is_due:
                gate.open()

    def _gates(self) -> Iterator[Gate]:
        for group in self.groups:
            for parameter in group["params"]:
                gate = find_gate(parameter)
                if gate is not None:
                    yield gate

    def _needs_all(self) -> bool:
        """A gradient scaler's words to a fused optimizer are good for this very step only."""
        return any(getattr(self.optimizer, name, None) is not None for name in _OF_SCALER)

    def _put_off(self, parameter: torch.nn.Parameter, update: _Update) -> bool:
        """Leave it to this update; False if it can be stepped now, or must be."""
        gate = find_gate(parameter)
        if gate is None:
            return False
        is_held = not is_value_alone(parameter)
        if is_held:
            self._say_that_it_waits()
        # A step that is still due comes first: this is the next one.
        if is_held or gate.is_due or gate.is_here:
            gate.open()
        return gate.defer(update)

    def _say_that_it_waits(self) -> None:
        if not self._is_silent:
            self._is_silent = True
            log.warning(
                "the memory of a parameter is held by somebody else too (a state_dict, a view or a graph that is "
                "kept): step() waits for the gradients of such parameters"
            )

    def _split(self, group: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a group that can be stepped now; the rest will be when it can."""
        update = _Update(self, group, options)
        here = [parameter for parameter in group["params"] if not self._put_off(parameter, update)]
        return group if len(here) == len(group["params"]) else {**group, "params": here}


class _Update:
    """One group at one step: its hyper-parameters as they were."""

    def __init__(self, steps: Steps, group: dict[str, Any], options: Mapping[str, Any]) -> None:
        self._steps = steps
        self._optimizer = steps.optimizer  # the user may discard it before the update is made
        self._options = options
        self._group = {name: _freeze(value) for name, value in group.items() if name != "params"}

    def make(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        # Frozen anew: what one part of the parameters does to it is not for the next.
        group = {name: _freeze(value) for name, value in self._group.items()}
        self._steps.run_unscaled([{**group, "params": list(parameters)}], self._options)


def _freeze(value: Any) -> Any:
    """A scheduler changes a learning rate that is a tensor in place."""
    if type(value) is tuple:
        return tuple(_freeze(item) for item in value)
    return value.clone() if isinstance(value, torch.Tensor) else value


class Deferring:
    """Mixed into an optimizer's own class: what must know that steps may be due."""

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        steps = vars(self)[_STEPS]
        if options.get("set_to_none", arguments[0] if arguments else True):
            forget_gradients(parameter for group in steps.groups for parameter in group["params"])
        else:
            steps.flush()
        super().zero_grad(*arguments, **options)  # type: ignore[misc]

    @property
    def param_groups(self) -> Any:
        steps = vars(self).get(_STEPS)
        return steps.part if steps is not None and steps.is_stepping else vars(self)["param_groups"]

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        vars(self)["param_groups"] = value

    @property
    def state(self) -> Any:
        steps = vars(self).get(_STEPS)
        if steps is not None and not steps.is_stepping:
            steps.flush()
        return vars(self)["state"]

    @state.setter
    def state(self, value: Any) -> None:
        steps = vars(self).get(_STEPS)
        if steps is not None and not steps.is_stepping:
            steps.flush()  # the old state is theirs
        vars(self)["state"] = value

    def __setstate__(self, state: Any) -> None:
        """By `load_state_dict` as well."""
        vars(self)[_STEPS].flush()
        super().__setstate__(state)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy, or what comes out of a file, is an ordinary optimizer."""
        # The oldest protocol names the class as an argument; later ones insist on the object's own.
        reduced: Any = super().__reduce_ex__(0)
        make, (_, *arguments), *rest = reduced
        return make, (type(self).__mro__[2], *arguments), *rest


@functools.cache
def _deferring(kind: Any) -> Any:
    def step(self: Optimizer, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        return vars(self)[_STEPS].step(closure, **options)

    # torch's own hooks around it, once per step.
    hooked: Any = Optimizer.profile_hook_step(step)
    hooked.hooked = True
    body = {"step": hooked, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return types.new_class(kind.__name__, (Deferring, kind), exec_body=lambda space: space.update(body))


def _is_scheduler_patch(patched: Any, kind: Any) -> bool:
    """Whether it does nothing but count: around a step of somebody else's, or inside of one, it does more."""
    return hasattr(patched, "_wrapped_by_lr_sched") and getattr(patched, "__wrapped__", None) is kind.step


def _renew_scheduler_patch(optimizer: Optimizer) -> None:
    """A scheduler that was made earlier counts the steps of the method that was there then."""

    ref = weakref.ref(optimizer)

    def step(*arguments: Any, **options: Any) -> Any:
        stepped: Any = ref()
        stepped._opt_called = True
        return type(stepped).step(stepped, *arguments, **options)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step  # type: ignore[method-assign]
