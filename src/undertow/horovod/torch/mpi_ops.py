"""Horovod's collective operations, with its names and arguments.

Each has up to four forms: `f` waits and is differentiable, `f_` works in place, `f_async` and `f_async_` return a
handle for `poll` and `synchronize`.  Ranks match operations by name, in any order, and operations without a name by the
order of their calls.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from undertow.engine.coordinator.terms import Route, Terms
from undertow.engine.interface import Group
from undertow.horovod.compatibility import (  # noqa: F401  # scripts import them from here, as from Horovod
    check_installed_version,
    get_average_backwards_compatibility_fun,
    gpu_available,
    num_rank_is_power_2,
)
from undertow.horovod.errors import HorovodInternalError
from undertow.horovod.ops import ReduceOp
from undertow.horovod.torch import autograd, handles
from undertow.horovod.torch import basics as _basics  # Horovod's name, which scripts use
from undertow.horovod.torch.basics import *  # noqa: F403  # it defines __all__
from undertow.horovod.torch.compression import Compression
from undertow.horovod.torch.handles import poll, synchronize
from undertow.horovod.torch.joining import join
from undertow.horovod.torch.moving import start_allgather, start_alltoall, start_broadcast
from undertow.horovod.torch.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    group_of,
    remove_process_set,
)
from undertow.horovod.torch.reducing import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    read_reduction,
    sparse_allreduce_async,
    start_allreduce,
    start_reducescatter,
)

__all__ = [
    *_basics.__all__,
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "sparse_allreduce_async",
    "synchronize",
]

Tensors = Sequence[torch.Tensor]
R = TypeVar("R")
ALL_RANKS = global_process_set

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(ReduceOp)


def _for_one(grouped: Callable[..., Any], finish: Callable[[Any], R]) -> Callable[..., R]:
    """Return the form of a grouped operation for one tensor; `finish` converts the grouped operation's result.

    It has the same parameters, except that the first is `tensor`, and the same name without `grouped_`.
    """

    def operate(tensor: torch.Tensor, *arguments: Any, **options: Any) -> R:
        return finish(grouped([tensor], *arguments, **options))

    operate.__name__ = operate.__qualname__ = grouped.__name__.removeprefix("grouped_")
    operate.__doc__ = grouped.__doc__
    first, *others = inspect.signature(grouped).parameters.values()
    vars(operate)["__signature__"] = inspect.Signature(
        [first.replace(name="tensor", annotation="torch.Tensor"), *others],
        return_annotation="int" if finish is handles.unwrap else "torch.Tensor",
    )
    return operate


_the_only: Callable[[Any], torch.Tensor] = operator.itemgetter(0)


# Allreduce


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = ALL_RANKS,
) -> list[torch.Tensor]:
    """Return the mean of all ranks' tensors, or another reduction `op`; the arguments stay unchanged."""
    reduction = read_reduction(process_set, op, average, prescale_factor, postscale_factor)
    return _compressed(functools.partial(autograd.allreduce, reduction, name), tensors, compression)


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = ALL_RANKS,
) -> int:
    reduction = read_reduction(process_set, op, average, prescale_factor, postscale_factor)
    return start_allreduce(tensors, [autograd.fresh(tensor) for tensor in tensors], reduction, name)


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = ALL_RANKS,
) -> Tensors:
    """Replace the tensors by their mean over all ranks, or by another reduction `op`."""
    handle = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    results: Tensors = synchronize(handle)
    return results


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = ALL_RANKS,
) -> int:
    reduction = read_reduction(process_set, op, average, prescale_factor, postscale_factor)
    return start_allreduce(tensors, tensors, reduction, name)


allreduce = _for_one(grouped_allreduce, _the_only)
allreduce_async = _for_one(grouped_allreduce_async, handles.unwrap)
allreduce_ = _for_one(grouped_allreduce_, _the_only)
allreduce_async_ = _for_one(grouped_allreduce_async_, handles.unwrap)


def _compressed(reduce: Callable[..., Tensors], tensors: Tensors, compression: Any) -> list[torch.Tensor]:
    """Call a reduction with the tensors in their compressed form; return its results decompressed."""
    small = [compression.compress(tensor) for tensor in tensors]
    results = reduce(*[tensor for tensor, _ in small])
    return [compression.decompress(result, context) for result, (_, context) in zip(results, small, strict=True)]


# Reducescatter


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: Any = ALL_RANKS,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Return this rank's rows of the mean; if the rows do not divide evenly, the first ranks get one row more."""
    reduction = read_reduction(process_set, op, None, prescale_factor, postscale_factor)
    return _compressed(functools.partial(autograd.reducescatter, reduction, name), tensors, compression)


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: Any = Average,
    process_set: Any = ALL_RANKS,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    reduction = read_reduction(process_set, op, None, prescale_factor, postscale_factor)
    return start_reducescatter(tensors, reduction, name)


reducescatter = _for_one(grouped_reducescatter, _the_only)
reducescatter_async = _for_one(grouped_reducescatter_async, handles.unwrap)


# Allgather, broadcast, alltoall


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: Any = ALL_RANKS
) -> tuple[torch.Tensor, ...]:
    """Concatenate the rows of all ranks in rank order; the number of rows may differ between ranks."""
    results: tuple[torch.Tensor, ...] = autograd.allgather(group_of(process_set), name, *tensors)
    return results


def grouped_allgather_async(tensors: Tensors, name: str | None = None, process_set: Any = ALL_RANKS) -> int:
    return start_allgather(tensors, name=name, group=group_of(process_set))


allgather = _for_one(grouped_allgather, _the_only)
allgather_async = _for_one(grouped_allgather_async, handles.unwrap)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = ALL_RANKS
) -> torch.Tensor:
    """Return the root's tensor; this rank's own stays unchanged."""
    result: torch.Tensor = autograd.broadcast(group_of(process_set), root_rank, name, tensor)
    return result


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = ALL_RANKS) -> int:
    return _start_broadcast(tensor, autograd.fresh(tensor), root_rank, name, group_of(process_set))


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = ALL_RANKS
) -> torch.Tensor:
    """Replace the tensor by the root's."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = ALL_RANKS
) -> int:
    return _start_broadcast(tensor, tensor, root_rank, name, group_of(process_set))


def _start_broadcast(tensor: torch.Tensor, output: torch.Tensor, root_rank: int, name: str | None, group: Group) -> int:
    return handles.unwrap(start_broadcast([(name or "tensor", tensor)], [output], root_rank, name=name, group=group))


def alltoall(tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: Any = ALL_RANKS) -> Any:
    """Return the rows that all ranks send to this one; with `splits`, also the number of rows from each rank."""
    output, received = autograd.alltoall(group_of(process_set), splits, name, tensor)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: Any = ALL_RANKS
) -> int:
    """Start an alltoall; `synchronize` returns the rows and their number from each rank, even without `splits`."""
    return start_alltoall(tensor, splits, name=name, group=group_of(process_set))


def barrier(process_set: Any = ALL_RANKS) -> None:
    """Wait until all ranks of the set have called this."""
    terms = Terms("barrier", Route.NOWHERE, allows_absent=True)
    handles.wait_for_all("barrier", terms, group=group_of(process_set))
