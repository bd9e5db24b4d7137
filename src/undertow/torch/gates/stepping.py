"""Stage 8 in overlap: the user's own optimizer steps some of its parameters at a time.

In: `optimizer.step()`.  Out: parameters whose gradients have arrived are stepped immediately, the others when their
gradients arrive, with the hyperparameters as they were at `step()`.
No optimizer is reimplemented: its own step runs while `param_groups` is temporarily replaced by copies that hold some
of the parameters.  This gives the same bits if the update of a parameter reads only that parameter, its gradient and
its state: such an optimizer is *separable*.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from undertow.errors import ConfigError
from undertow.torch.modules.mixed_class import mix_class, reduce_to_own_class
from undertow.torch.pending.memory_owners import is_value_alone
from undertow.torch.pending.pending_tensors import find_gate, forget_gradients, open_deferred, open_gates

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
_SCALER_ATTRIBUTES = ("grad_scale", "found_inf")


def find_coupling(optimizer: Optimizer) -> str | None:
    """Return the reason why its parameters cannot be stepped independently; None if they can."""
    kind = type(optimizer)
    if isinstance(optimizer, DeferringOptimizer):
        return None  # checked earlier
    if isinstance(optimizer, torch.optim.LBFGS):
        return "LBFGS steps all parameters together"
    if kind not in SEPARABLE:
        return (
            f"{kind.__name__} is not known to update each parameter independently; pass separable=True to "
            "parallelize() if it does"
        )
    return None


def defer_steps(optimizer: Optimizer, *, verbose: bool) -> None:
    """Let `step()` of this object return without waiting for gradients.

    With `verbose`, logs when a step has to wait for gradients nevertheless.
    """
    if isinstance(optimizer, DeferringOptimizer):
        return
    kind: Any = type(optimizer)
    patched = vars(optimizer).get("step")
    if patched is not None and not _is_scheduler_patch(patched, kind):
        raise ConfigError(
            f"the step() of this {kind.__name__} was replaced on the object: call parallelize before it is replaced"
        )
    steps = DeferredSteps(optimizer, kind, verbose=verbose)
    optimizer.__class__ = mix_class(DeferringOptimizer, kind)
    vars(optimizer)[_STEPS] = steps
    if patched is not None:
        _renew_scheduler_patch(optimizer)


class DeferredSteps:
    """The steps of one optimizer, each made immediately or when gradients arrive."""

    def __init__(self, optimizer: Optimizer, kind: type[Optimizer], *, verbose: bool) -> None:
        self._ref = weakref.ref(optimizer)  # weak, because the optimizer holds this object
        self._lock = threading.RLock()  # a thread that reads a parameter may have to make its step
        self._stepping_thread: int | None = None
        self.stepped_groups: list[dict[str, Any]] = []  # the groups that this thread sees
        self._is_silent = not verbose
        # Without torch's hooks, which belong to the user's call.
        self._step = getattr(kind.step, "__wrapped__", kind.step) if hasattr(kind.step, "hooked") else kind.step

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Step the parameters that can be stepped now, and defer the others, with the same options."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if any(getattr(self.optimizer, name, None) is not None for name in _SCALER_ATTRIBUTES):
            # A gradient scaler has passed its state to a fused optimizer for this step only: nothing can be deferred.
            open_gates(self.parameters)
        ready = [self._select_ready(group, options) for group in self.groups]
        self.run(ready, options)
        for group, stepped in zip(self.groups, ready, strict=True):
            if stepped is not group:
                group.update({**stepped, "params": group["params"]})  # an optimizer may store values in it
        return loss

    @property
    def optimizer(self) -> Optimizer:
        found = self._ref()
        assert found is not None, "the user or a deferred update refers to it"
        return found

    @property
    def groups(self) -> list[dict[str, Any]]:
        """All groups of the optimizer, even while a thread steps some of the parameters."""
        groups: list[dict[str, Any]] = vars(self.optimizer)["param_groups"]
        return groups

    def run(self, groups: list[dict[str, Any]], options: Mapping[str, Any]) -> None:
        """Let the optimizer step these groups only; meanwhile they are the only ones that this thread sees."""
        with self._lock:
            self.stepped_groups, self._stepping_thread = groups, threading.get_ident()
            try:
                self._step(self.optimizer, **options)
            finally:
                self.stepped_groups, self._stepping_thread = [], None

    @property
    def is_stepping(self) -> bool:
        """Whether this thread is making a step."""
        return self._stepping_thread == threading.get_ident()

    def run_unscaled(self, groups: list[dict[str, Any]], options: Mapping[str, Any]) -> None:
        """Let the optimizer step these groups without a gradient scaler's attributes, which belong to other steps."""
        own = vars(self.optimizer)
        with self._lock:
            taken = {name: own.pop(name) for name in _SCALER_ATTRIBUTES if name in own}
            try:
                self.run(groups, options)
            finally:
                own.update(taken)

    def wait_for_updates(self) -> None:
        open_deferred(self.parameters)

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.groups for parameter in group["params"]]

    def _defer(self, parameter: torch.nn.Parameter, update: _DeferredUpdate) -> bool:
        """Defer a parameter's step to this update; return False if it can or must be stepped now."""
        gate = find_gate(parameter)
        if gate is None:
            return False
        is_held = not is_value_alone(parameter)
        if is_held and not self._is_silent:
            self._is_silent = True
            log.warning(
                "something else also refers to the memory of a parameter (a state_dict, a view, or a graph that is "
                "kept): step() waits for the gradients of such parameters"
            )
        # An earlier step that is still deferred must be made first.
        if is_held or gate.is_deferred or gate.is_here:
            gate.open()
        return gate.defer(update)

    def _select_ready(self, group: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a group with the parameters that can be stepped now, and defer the others."""
        update = _DeferredUpdate(self, group, options)
        ready = [parameter for parameter in group["params"] if not self._defer(parameter, update)]
        return group if len(ready) == len(group["params"]) else {**group, "params": ready}


class _DeferredUpdate:
    """The deferred step of one group, with its hyperparameters as they were at `step()`."""

    def __init__(self, steps: DeferredSteps, group: dict[str, Any], options: Mapping[str, Any]) -> None:
        self._steps = steps
        self._optimizer = steps.optimizer  # kept alive until the update, even if the user discards it
        self._options = options
        self._group = {name: _copy_value(value) for name, value in group.items() if name != "params"}

    def __call__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        # A new copy each time: changes that the step makes in the group must not affect the next parameters.
        group = {name: _copy_value(value) for name, value in self._group.items()}
        self._steps.run_unscaled([{**group, "params": list(parameters)}], self._options)


def _copy_value(value: Any) -> Any:
    """Copy a hyperparameter: a scheduler changes a learning rate that is a tensor in place."""
    if type(value) is tuple:
        return tuple(_copy_value(item) for item in value)
    return value.clone() if isinstance(value, torch.Tensor) else value


def _step(optimizer: Optimizer, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
    return vars(optimizer)[_STEPS].step(closure, **options)


class DeferringOptimizer:
    """A mixin for an optimizer's own class, with the methods that deferred steps concern."""

    step: Any = Optimizer.profile_hook_step(_step)  # with torch's own hooks around it, once per step
    step.hooked = True

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        steps = vars(self)[_STEPS]
        if options.get("set_to_none", arguments[0] if arguments else True):
            forget_gradients(steps.parameters)
        else:
            steps.wait_for_updates()
        super().zero_grad(*arguments, **options)  # type: ignore[misc]

    @property
    def param_groups(self) -> Any:
        steps = vars(self).get(_STEPS)
        return steps.stepped_groups if steps is not None and steps.is_stepping else vars(self)["param_groups"]

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        vars(self)["param_groups"] = value

    @property
    def state(self) -> Any:
        steps = vars(self).get(_STEPS)
        if steps is not None and not steps.is_stepping:
            steps.wait_for_updates()
        return vars(self)["state"]

    @state.setter
    def state(self, value: Any) -> None:
        steps = vars(self).get(_STEPS)
        if steps is not None and not steps.is_stepping:
            steps.wait_for_updates()  # they use the old state
        vars(self)["state"] = value

    def __setstate__(self, state: Any) -> None:
        """Wait for deferred steps, then set the state; `load_state_dict` calls this as well."""
        vars(self)[_STEPS].wait_for_updates()
        super().__setstate__(state)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Make copies, including those in files, ordinary optimizers."""
        return reduce_to_own_class(super().__reduce_ex__(0), self)


def _is_scheduler_patch(patched: Any, kind: Any) -> bool:
    """Whether the patch only counts steps: one that wraps, or is wrapped by, another patch does more."""
    return hasattr(patched, "_wrapped_by_lr_sched") and getattr(patched, "__wrapped__", None) is kind.step


def _renew_scheduler_patch(optimizer: Optimizer) -> None:
    """Let a scheduler that was created earlier count the steps of the new class instead of the old one's."""
    ref = weakref.ref(optimizer)

    def step(*arguments: Any, **options: Any) -> Any:
        stepped: Any = ref()
        stepped._opt_called = True
        return type(stepped).step(stepped, *arguments, **options)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step  # type: ignore[method-assign]
