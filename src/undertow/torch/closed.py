"""What a closed gate looks like: the classes of a parameter that is waited for.

In: a read of any kind, from Python.  Out: the gate is opened first, then the read goes on.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from undertow.torch.gates import Gate

# By identity; each holds its parameter, so no other object can have the same.
_closed: dict[int, Gate] = {}


def close(parameter: torch.Tensor, gate: Gate) -> None:
    """Its gradient travels: whoever asks for it waits at this gate."""
    _closed[id(parameter)] = gate
    parameter.__class__ = _travelling(type(parameter))


def close_value(parameter: torch.Tensor, kind: type[torch.Tensor]) -> None:
    """Its update is due: now its value waits as well."""
    parameter.__class__ = _due(kind)


def restore(parameter: torch.Tensor, kind: type[torch.Tensor]) -> None:
    """It is an ordinary parameter again."""
    parameter.__class__ = kind
    del _closed[id(parameter)]


def find_gate(parameter: torch.Tensor) -> Gate | None:
    """The closed gate of this parameter, if there is one."""
    return _closed.get(id(parameter))


def forget_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """The user sets these gradients to None; those that an update is still to be made with are for it only."""
    for parameter in parameters:
        gate = find_gate(parameter)
        if gate is not None and gate.is_due:
            gate.is_forgotten = True


def open_gates(values: Any) -> None:
    """Open those of all parameters in here, however nested."""
    for gate in list(_find_gates(values)):
        gate.open()


def _find_gates(values: Any) -> Iterator[Gate]:
    if isinstance(values, torch.Tensor):
        gate = find_gate(values)
        if gate is not None:
            yield gate
    elif isinstance(values, dict):
        yield from _find_gates(list(values.values()))
    elif isinstance(values, (list, tuple, set, frozenset)):
        for value in values:
            yield from _find_gates(value)


class _Travelling:
    """A parameter whose gradient is on its way: nothing but the gradient waits."""

    __slots__ = ()

    def _get_grad(self) -> Any:
        _closed[id(self)].open()
        return self.grad

    def _set_grad(self, value: torch.Tensor | None) -> None:
        _closed[id(self)].open()
        self.grad = value

    def _del_grad(self) -> None:
        _closed[id(self)].open()
        del self.grad

    grad = _grad = property(_get_grad, _set_grad, _del_grad)

    # Those that would take this class for the parameter's own.

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        _closed[id(self)].open()
        return self.__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _closed[id(self)].open()
        return self.__reduce_ex__(protocol)


class _Due(_Travelling):
    """A parameter whose update is due: everything waits but what no update can change."""

    __slots__ = ()

    def _get_grad(self) -> Any:
        gate = _closed[id(self)]
        if gate.is_forgotten:
            return None
        gate.open()
        return self.grad

    def _set_grad(self, value: torch.Tensor | None) -> None:
        gate = _closed[id(self)]
        if value is None:
            gate.is_forgotten = True
        else:
            gate.open()
            self.grad = value

    def _del_grad(self) -> None:
        self._set_grad(None)

    grad = _grad = property(_get_grad, _set_grad, _del_grad)

    def __repr__(self) -> str:
        _closed[id(self)].open()
        return repr(self)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _UNCHANGED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs or {})
        open_gates((args, kwargs))
        return func(*args, **kwargs or {})


def guard_transforms() -> None:
    """`torch.func` takes hold of a tensor without asking it: ask on its behalf."""
    from torch._functorch import eager_transforms

    for name in ("_wrap_for_grad", "_wrap_functional_tensor"):
        take = getattr(eager_transforms, name, None)
        if take is not None and not hasattr(take, "__wrapped__"):
            setattr(eager_transforms, name, _ask_first(take))


def _ask_first(take: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(take)
    def ask(tensor: torch.Tensor, level: int) -> Any:
        if not torch.compiler.is_compiling():  # the compiler knows the original by its place
            open_gates(tensor)
        return take(tensor, level)

    return ask


# What an update leaves as it is.  Not `dim`: `torch.vmap` takes hold of a tensor after no other question.
_UNCHANGED = frozenset(
    getattr(getattr(torch.Tensor, name), "__get__", None)
    if not callable(getattr(torch.Tensor, name))
    else getattr(torch.Tensor, name)
    for name in (
        *("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "is_sparse", "is_cuda", "itemsize"),
        *("nbytes", "is_meta", "size", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex"),
        *("element_size", "__len__", "_backward_hooks", "register_hook", "register_post_accumulate_grad_hook"),
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
