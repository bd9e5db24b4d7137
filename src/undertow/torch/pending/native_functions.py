"""Guards for functions of torch that read a tensor's memory without consulting the tensor's class.

In: calls of these functions while gates may be closed.  Out: the gates of their arguments are opened first.
Torch consults a tensor's class (`__torch_function__`) before nearly every operation; the functions in these tables are
the exceptions.  They are otherwise unchanged, and `undertow.shutdown()` restores the originals.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.utils._device import _device_constructors as _list_constructors

from undertow.runtime import process
from undertow.torch.pending.pending_tensors import PendingTensor, open_unless_passing

_STATIC = ("__new__", "_make_subclass")
_SPARSE = ("coo", "csr", "csc", "bsr", "bsc", "compressed")
# By the names of their owners; not every version of torch has all of them.
_TENSOR_ARGUMENTS = (
    ("torch", ("tensor", "as_tensor", "asarray", *(f"sparse_{kind}_tensor" for kind in _SPARSE))),
    ("torch.Tensor", ("__new__", "_make_subclass", "new", "new_tensor", "set_")),
    ("torch.nn.Parameter", ("__new__",)),
    ("torch._C", ("_to_dlpack", "_to_dlpack_versioned")),
    ("torch.utils.dlpack", ("to_dlpack",)),
    ("torch.jit.ScriptFunction", ("__call__",)),
    ("torch._C.ScriptMethod", ("__call__",)),
    ("torch._functorch.eager_transforms", ("_wrap_for_grad", "_wrap_functional_tensor")),
    ("torch.distributed", ("all_gather_into_tensor", "reduce_scatter_tensor")),
    ("torch.distributed.distributed_c10d", ("all_gather_into_tensor", "reduce_scatter_tensor")),
)
_LIST_ARGUMENTS = (
    ("torch.nested", ("nested_tensor",)),
    ("torch.autograd", ("_make_grads",)),  # called by `backward` and `grad` with the gradients that they start from
)
# Attributes that are assigned: `other.data = parameter`.
_ASSIGNED = (("torch.Tensor", ("data",)),)
ALL = (*_TENSOR_ARGUMENTS, *_LIST_ARGUMENTS, *_ASSIGNED)
_undo: list[Callable[[], None]] = []


def guard_native_functions() -> None:
    """Make these functions wait for gates until shutdown."""
    if _undo:
        return
    _list_constructors()  # cached now, because `torch.device` and `set_default_device` identify functions by object
    for owner, name in find_guarded(_TENSOR_ARGUMENTS):
        _undo.append(_replace(owner, name, _guard(getattr(owner, name), _open_tensors)))
    for owner, name in find_guarded(_LIST_ARGUMENTS):
        _undo.append(_replace(owner, name, _guard(getattr(owner, name), _open_lists)))
    for owner, name in find_guarded(_ASSIGNED):
        _undo.append(_replace(owner, name, _guard_assignment(getattr(owner, name))))
    process.at_shutdown(unguard_native_functions)


def unguard_native_functions() -> None:
    """Restore torch's own functions."""
    while _undo:
        _undo.pop()()


def find_guarded(table: Iterable[tuple[str, Iterable[str]]] = ALL) -> Iterator[tuple[Any, str]]:
    """Yield the owner and the name of each of these functions that this version of torch has."""
    for owner_name, names in table:
        with suppress(ImportError, AttributeError):
            owner = pkgutil.resolve_name(owner_name)
            yield from ((owner, name) for name in names if hasattr(owner, name))


def _replace(owner: Any, name: str, guarded: Any) -> Callable[[], None]:
    """Replace the original by the guarded function.  Returns a function that undoes it."""
    own = vars(owner).get(name)  # None if the class inherits it
    replacement = staticmethod(guarded) if isinstance(owner, type) and name in _STATIC else guarded
    forget = _introduce_to_torchscript(getattr(owner, name), guarded)
    setattr(owner, name, replacement)

    def undo() -> None:
        forget()
        if vars(owner).get(name) is not replacement:
            return  # a library has replaced it in the meantime
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    return undo


def _introduce_to_torchscript(original: Any, guarded: Any) -> Callable[[], object]:
    """Make `torch.jit.script`, which identifies functions by object, accept this one.  Returns a function to undo."""
    table: dict[int, str] = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    if id(original) in table:
        table[id(guarded)] = table[id(original)]
    return lambda: table.pop(id(guarded), None)


def _guard(original: Callable[..., Any], open_given: Callable[[Iterable[Any]], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():  # the compiler recognises the original by its name
            open_given(args)
            if kwargs:
                open_given(kwargs.values())
        return original(*args, **kwargs)

    return guarded


def _guard_assignment(original: Any) -> property:
    def assign(self: torch.Tensor, value: Any) -> None:
        _open_tensors((value,))
        original.__set__(self, value)

    return property(original.__get__, assign, original.__delete__, original.__doc__)


def _open_tensors(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, PendingTensor):
            open_unless_passing(value)


def _open_lists(values: Iterable[Any]) -> None:
    for value in values:
        _open_tensors(value if isinstance(value, (list, tuple)) else (value,))
