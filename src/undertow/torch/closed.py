"""What a closed gate looks like: the classes of a parameter that is waited for.

In: a read of any kind, from Python.  Out: the gate is opened first, then the read goes on.
The thread that makes the update passes; all others wait until it is made.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from undertow.errors import UndertowError
from undertow.torch.hooks import never_compiled

if TYPE_CHECKING:
    from undertow.torch.gates import Gate

# On the parameter itself, and on its gradient, while its gate is closed: so a model that is dropped takes its gates
# along.
GATE = "_undertow_gate"
_this_thread = threading.local()


def find_gate(tensor: torch.Tensor) -> Gate | None:
    """The closed gate of this parameter, or of the parameter whose gradient this is, if there is one."""
    found: Any = vars(tensor).get(GATE)
    if not isinstance(found, weakref.ref):
        return found  # type: ignore[no-any-return]
    gate: Gate | None = found()
    if gate is None:
        raise UndertowError(
            "this gradient was never averaged: its model was dropped before the mean had come. Read it, or call "
            "undertow.torch.flush(model), while the model is there"
        )
    return gate


def close_gradient(parameter: torch.Tensor, gate: Gate) -> None:
    """It travels: whoever asks for it waits at this gate."""
    vars(parameter)[GATE] = gate
    parameter.__class__ = _travelling(type(parameter))


def close_value(parameter: torch.Tensor, kind: type[torch.Tensor]) -> torch.Tensor:
    """An update is due: now the value waits as well.  Returns it, for the update."""
    value = hide(parameter)
    # A graph that was made before the step must not be used after it, as ever.
    torch.autograd.graph.increment_version(parameter)
    parameter.__class__ = _due(kind)
    return value


def hide(tensor: torch.Tensor) -> torch.Tensor:
    """Take its value away, and return it.

    Meanwhile there is nothing but NaN: native code that does not ask must not find an old value.
    """
    value = tensor.data
    tensor.data = value.new_full((), float("nan")).expand(value.shape)
    return value


def restore(parameter: torch.Tensor, kind: type[torch.Tensor]) -> None:
    """It is an ordinary parameter again."""
    parameter.__class__ = kind
    del vars(parameter)[GATE]


def can_close(parameter: torch.Tensor) -> bool:
    """Whether it is an ordinary parameter: one with ways of its own is never behind a gate."""
    return type(parameter).__torch_function__ is torch.nn.Parameter.__torch_function__


@contextmanager
def passing() -> Iterator[None]:
    """In here this thread passes all gates: it makes the update."""
    before = _passes()
    _this_thread.passes = True
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        _this_thread.passes = before


def forget_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """The user sets these gradients to None; those that an update is still to be made with are for it only."""
    for parameter in parameters:
        gate = find_gate(parameter)
        if gate is not None and gate.is_due:
            gate.is_forgotten = True


@never_compiled  # a compiled function may be given such a parameter
def open_gates(values: Any) -> None:
    """Open those of all parameters in here, however nested."""
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
    """Open its gate, but not for the thread that makes the update."""
    gate = find_gate(parameter)
    if gate is not None and not _passes():
        gate.open()


def _passes() -> bool:
    """Whether it is this thread that makes an update."""
    return getattr(_this_thread, "passes", False)


_torch_grad: Any = torch.Tensor.grad


class _Copied:
    """What would take the class of a closed gate for the tensor's own."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        open_unless_passing(self)
        return self.__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        open_unless_passing(self)
        return self.__reduce_ex__(protocol)


class Waiting(_Copied):
    """A tensor on which everything waits but what no update can change."""

    __slots__ = ()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        open_unless_passing(self)
        return repr(self)

    def as_subclass(self, kind: Any) -> Any:
        open_unless_passing(self)
        return self.as_subclass(kind)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _UNCHANGED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs or {})
        open_gates((args, kwargs))
        return func(*args, **kwargs or {})


class _Travelling(_Copied):
    """A parameter whose gradient is on its way: nothing but the gradient waits."""

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


class _Due(Waiting, _Travelling):
    """A parameter whose update is due."""

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

    grad = _grad = property(_get_grad, _set_grad, _Travelling._del_grad)


# What an update leaves as it is.  Not `dim`: `torch.vmap` takes hold of a tensor after no other question.
_UNCHANGED = frozenset(
    getattr(torch.Tensor, name) if callable(getattr(torch.Tensor, name)) else getattr(torch.Tensor, name).__get__
    for name in (
        *("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "is_sparse", "is_cuda", "itemsize"),
        *("nbytes", "is_meta", "size", "numel", "is_floating_point", "is_complex", "element_size", "__len__"),
        *("_backward_hooks", "register_hook", "register_post_accumulate_grad_hook"),
    )
)


@functools.cache
def _travelling(kind: type[torch.Tensor]) -> Any:
    return types.new_class(kind.__name__, (_Travelling, kind), exec_body=lambda body: body.update(_place(kind)))


@functools.cache
def _due(kind: type[torch.Tensor]) -> Any:
    return types.new_class(kind.__name__, (_Due, kind), exec_body=lambda body: body.update(_place(kind)))


def _place(kind: type) -> dict[str, str]:
    """Where a class claims to be from."""
    return {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
