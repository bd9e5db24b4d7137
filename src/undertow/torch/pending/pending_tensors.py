"""The classes of a parameter whose gate is closed, and of its gradient.

In: a read of any kind, from Python.  Out: the gate is opened before the read.
The thread that makes the update passes the gate; all others wait until the update is made.  Every tensor remains the
same object, whatever refers to it, and is an ordinary tensor afterwards.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from undertow.errors import UndertowError
from undertow.torch.modules.hooks import never_compiled
from undertow.torch.modules.mixed_class import mix_class

# An optimizer's deferred step, called with the parameters to update; their gradients are in place.
Update = Callable[[Sequence[torch.nn.Parameter]], None]

# An attribute of the parameter, and of its gradient, while the gate is closed.  So gates are deleted with their model.
GATE = "_undertow_gate"
_this_thread = threading.local()


class ClosedGate(Protocol):
    """A gate, as the pending tensors know it that wait for it."""

    is_forgotten: bool  # the user has set the gradient to None; only the update still needs it

    @property
    def is_deferred(self) -> bool:
        """Whether the optimizer has deferred the parameter's step to this gate."""

    @property
    def is_here(self) -> bool:
        """Whether the mean gradient has arrived."""

    def defer(self, update: Update) -> bool:
        """Defer this parameter's step to the gate; False if the gate is already open."""

    def open(self) -> None:
        """Wait until gradient and value are up to date; raises if they never will be."""


def find_gate(tensor: torch.Tensor) -> ClosedGate | None:
    """Return the closed gate of this parameter or gradient, if there is one."""
    found: Any = vars(tensor).get(GATE)
    if not isinstance(found, weakref.ref):
        return found  # type: ignore[no-any-return]
    gate: ClosedGate | None = found()
    if gate is None:
        raise UndertowError(
            "this gradient was never averaged: its model was discarded before the mean arrived. Read the gradient, or "
            "call undertow.torch.flush(model), while the model exists"
        )
    return gate


def close_gradient(parameter: torch.Tensor, gate: ClosedGate) -> None:
    """Make reads of a parameter's gradient wait at this gate."""
    vars(parameter)[GATE] = gate
    parameter.__class__ = mix_class(_GradientPending, type(parameter))


def can_wait(gradient: torch.Tensor) -> bool:
    """Whether a gradient can be a gate: only an ordinary tensor can, because reads of a subclass may go unnoticed."""
    return type(gradient) is torch.Tensor and GATE not in vars(gradient)


def close_gradient_itself(gradient: torch.Tensor, gate: ClosedGate) -> torch.Tensor | None:
    """Make every read of this gradient wait at the gate.  Returns its value if that is hidden in the meantime."""
    hidden = hide(gradient) if gradient.layout is torch.strided else None
    # A weak reference, because the garbage collector does not see that the parameter refers to its gradient.
    vars(gradient)[GATE] = weakref.ref(gate)
    gradient.__class__ = _Gradient
    return hidden


def close_value(parameter: torch.Tensor, kind: type[torch.Tensor]) -> torch.Tensor:
    """Make reads of a parameter's value wait as well, because its update is deferred.  Returns the value."""
    value = hide(parameter)
    # As with any step, a graph recorded before it must not be used after it.
    torch.autograd.graph.increment_version(parameter)
    parameter.__class__ = mix_class(_UpdatePending, kind)
    return value


def hide(tensor: torch.Tensor) -> torch.Tensor:
    """Replace a tensor's value by NaN and return it: native code, which no gate stops, must not read an old value."""
    value = tensor.data
    tensor.data = value.new_full((), float("nan")).expand(value.shape)
    return value


def restore(tensor: torch.Tensor, kind: type[torch.Tensor]) -> None:
    """Turn it back into an ordinary parameter or gradient."""
    tensor.__class__ = kind
    del vars(tensor)[GATE]


def can_close(parameter: torch.Tensor) -> bool:
    """Whether a parameter can be a gate: not if its class handles torch's functions itself."""
    return type(parameter).__torch_function__ is torch.nn.Parameter.__torch_function__


@contextmanager
def passing() -> Iterator[None]:
    """Return a context in which this thread passes all gates, because it makes an update."""
    before = _passes()
    _this_thread.passes = True
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        _this_thread.passes = before


def forget_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """Set these gradients to None for the user; deferred updates still use theirs."""
    for parameter in parameters:
        gate = find_gate(parameter)
        if gate is not None and gate.is_deferred:
            gate.is_forgotten = True


def open_deferred(parameters: Iterable[torch.Tensor]) -> None:
    """Open the gates of all parameters with a deferred update."""
    for parameter in parameters:
        gate = find_gate(parameter)
        if gate is not None and gate.is_deferred:
            gate.open()


@never_compiled  # a compiled function may be given such a parameter
def open_gates(values: Any) -> None:
    """Open the gates of all parameters in these values, however nested."""
    _open_gates(values)


def _open_gates(values: Any) -> None:
    if isinstance(values, torch.Tensor):
        gate = find_gate(values)
        if gate is not None:
            gate.open()
    elif isinstance(values, dict):
        for value in values.values():
            _open_gates(value)
    elif isinstance(values, (list, tuple, set, frozenset)):
        for value in values:
            _open_gates(value)


@never_compiled
def open_unless_passing(parameter: Any) -> None:
    """Open a parameter's gate, unless this thread makes an update."""
    gate = find_gate(parameter)
    if gate is not None and not _passes():
        gate.open()


def _passes() -> bool:
    """Whether this thread makes an update."""
    return getattr(_this_thread, "passes", False)


_torch_grad: Any = torch.Tensor.grad


def _open_before(name: str) -> Callable[..., Any]:
    """Return a method that opens the gate and then calls the tensor's own method of this name."""

    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        open_unless_passing(self)
        return getattr(self, name)(*args, **kwargs)

    return guarded


class _Copied:
    """A tensor whose copies wait, so that they do not get the class of a closed gate."""

    __slots__ = ()

    __deepcopy__ = _open_before("__deepcopy__")
    __reduce_ex__ = _open_before("__reduce_ex__")


class PendingTensor(_Copied):
    """A tensor on which every operation waits, except those whose result no update can change."""

    __slots__ = ()

    __repr__ = _open_before("__repr__")
    as_subclass = _open_before("as_subclass")

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _UNCHANGED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs or {})
        open_gates((args, kwargs))
        return func(*args, **kwargs or {})


class _Gradient(PendingTensor, torch.Tensor):  # type: ignore[misc]
    """A gradient whose mean has not arrived."""

    __module__, __qualname__ = torch.Tensor.__module__, torch.Tensor.__qualname__


_Gradient.__name__ = torch.Tensor.__name__


class _GradientPending(_Copied):
    """A parameter whose mean gradient has not arrived: only reads of the gradient wait."""

    __slots__ = ()

    def _get_grad(self) -> Any:
        open_unless_passing(self)
        return _torch_grad.__get__(self)

    def _set_grad(self, value: torch.Tensor | None) -> None:
        open_unless_passing(self)
        _torch_grad.__set__(self, value)

    def _del_grad(self) -> None:
        self._set_grad(None)

    grad = _grad = property(_get_grad, _set_grad, _del_grad)


class _UpdatePending(PendingTensor, _GradientPending):
    """A parameter whose update is deferred: reads of the value also wait."""

    __slots__ = ()

    def _get_grad(self) -> Any:
        gate: Any = find_gate(self)  # type: ignore[arg-type]
        if gate is not None and gate.is_forgotten and not _passes():
            return None
        return super()._get_grad()

    def _set_grad(self, value: torch.Tensor | None) -> None:
        gate: Any = find_gate(self)  # type: ignore[arg-type]
        if gate is not None and value is None and not _passes():
            gate.is_forgotten = True
        else:
            super()._set_grad(value)

    grad = _grad = property(_get_grad, _set_grad, _GradientPending._del_grad)


# Attributes that no update changes.  Without `dim`: `torch.vmap` calls nothing else before it reads a tensor.
_UNCHANGED = frozenset(
    getattr(torch.Tensor, name) if callable(getattr(torch.Tensor, name)) else getattr(torch.Tensor, name).__get__
    for name in (
        *("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "is_sparse", "is_cuda", "itemsize"),
        *("nbytes", "is_meta", "size", "numel", "is_floating_point", "is_complex", "element_size", "__len__"),
        *("_backward_hooks", "register_hook", "register_post_accumulate_grad_hook"),
    )
)
