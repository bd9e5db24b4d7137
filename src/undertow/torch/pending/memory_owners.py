"""Finds out whether anything else can reach the memory of a gradient or a parameter.

In: a tensor.  Out: yes, unless it is certain that nothing else can.

The answer depends only on torch's own counts: of the tensors and other native owners of the storage, and of the native
owners of the tensor.  These do not depend on the calling frame or on whether code is compiled.  Python's references to
a gradient do not matter, because its object is a gate (see `pending_tensors`).
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from undertow.torch.modules.hooks import never_compiled

_count_uses: Any = torch._C._storage_Use_Count
# Unlike `tensor.untyped_storage()._cdata`, this creates no storage object, which torch would keep and count.
_find_storage: Any = torch._C._storage_address  # type: ignore[attr-defined]
_use_count: Any = torch.Tensor._use_count  # type: ignore[attr-defined]

# The native owners of a gradient: its parameter, and its Python object, however many references there are to it.
_OWNERS = 2


def count_storage_uses(tensor: torch.Tensor) -> int:
    """Return the number of owners of this memory: 1 if only this tensor owns it."""
    return int(_count_uses(_find_storage(tensor)))


def is_gradient_alone(gradient: torch.Tensor, *, own: int = 0) -> bool:
    """Whether only this gradient, and `own` views that the caller knows of, lead to its memory."""
    if gradient.layout is not torch.strided:
        return True  # it is copied, not sent from its memory
    return count_storage_uses(gradient) <= 1 + own and int(_use_count(gradient)) <= _OWNERS


def is_received_alone(gradient: torch.Tensor, fresh: torch.Tensor | None) -> bool:
    """Whether a result may be written into this gradient while backward still runs.

    `fresh` is the tensor that autograd has just accumulated, and that nothing else has seen since.  If autograd was its
    only owner, the gradient has taken over its memory: then `fresh` is a second tensor on this memory, and is never
    read again.
    """
    is_given = fresh is not None and fresh is not gradient and _find_storage(fresh) == _find_storage(gradient)
    return is_gradient_alone(gradient, own=int(is_given))


@never_compiled
def is_value_alone(parameter: torch.Tensor) -> bool:
    """Whether only this parameter leads to its memory."""
    uses = count_storage_uses(parameter)
    return uses == 1 or (uses == 2 and _has_idle_storage_object(parameter))


def _has_idle_storage_object(tensor: torch.Tensor) -> bool:
    """Whether the second owner is a storage object to which only torch refers.

    `torch.save` and `copy.deepcopy` create one, and newer versions of torch keep it.  The number of Python references
    to an idle one depends on the versions of Python and torch.  So it is compared with that of an object that is
    certainly idle, created at the same moment: any further reference is assumed to be the user's.
    """
    idle = torch.empty(1)
    _count_references(idle)  # creates the storage object
    return _count_references(tensor) <= _count_references(idle) and count_storage_uses(tensor) == 2


def _count_references(tensor: torch.Tensor) -> int:
    return sys.getrefcount(tensor.untyped_storage())
