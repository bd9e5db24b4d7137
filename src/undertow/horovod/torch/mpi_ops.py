"""Horovod's collective operations, with its names and arguments.

Each comes in up to four forms: `f` waits and has a gradient, `f_` works in place, `f_async` and `f_async_`
return a handle for `poll` and `synchronize`.  Operations are matched between ranks by name, in any order;
those without a name by the order in which they are called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from undertow.coordinator.terms import Route, Terms
from undertow.horovod.common.util import (  # noqa: F401  # scripts import them from here, as with Horovod
    check_installed_version,
    get_average_backwards_compatibility_fun,
    gpu_available,
    num_rank_is_power_2,
)
from undertow.horovod.errors import HorovodInternalError
from undertow.horovod.ops import ReduceOp
from undertow.horovod.torch import autograd, handles
from undertow.horovod.torch import basics as _basics  # noqa: F401  # by Horovod's own name: scripts look into it
from undertow.horovod.torch.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
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
    Allreduce,
    Average,
    Max,
    Min,
    Product,
    Scales,
    Sum,
    choose_op,
    sparse_allreduce_async,
    start_reducescatter,
)

__all__ = [
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
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

Tensors = Sequence[torch.Tensor]
EVERYONE = global_process_set

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(ReduceOp)


# Allreduce


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = EVERYONE,
) -> torch.Tensor:
    """The mean of all ranks' tensors, or what `op` says; the tensor stays as it is."""
    group = group_of(process_set)
    scales = Scales(prescale_factor, postscale_factor)
    small, context = compression.compress(tensor)
    [result] = autograd.allreduce([small], choose_op(op, average), scales, name, group=group)
    restored: torch.Tensor = compression.decompress(result, context)
    return restored


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = EVERYONE,
) -> int:
    group = group_of(process_set)
    scales = Scales(prescale_factor, postscale_factor)
    return _first(
        Allreduce([tensor], [autograd.fresh(tensor)], choose_op(op, average), scales, group=group).start(name)
    )


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = EVERYONE,
) -> torch.Tensor:
    """The same in place."""
    handle = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    result: torch.Tensor = synchronize(handle)
    return result


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = EVERYONE,
) -> int:
    group = group_of(process_set)
    scales = Scales(prescale_factor, postscale_factor)
    return _first(Allreduce([tensor], [tensor], choose_op(op, average), scales, group=group).start(name))


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = EVERYONE,
) -> list[torch.Tensor]:
    """Several tensors in one operation."""
    group = group_of(process_set)
    small = [compression.compress(tensor) for tensor in tensors]
    scales = Scales(prescale_factor, postscale_factor)
    results = autograd.allreduce([tensor for tensor, _ in small], choose_op(op, average), scales, name, group=group)
    return [compression.decompress(result, context) for result, (_, context) in zip(results, small, strict=True)]


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = EVERYONE,
) -> int:
    group = group_of(process_set)
    scales = Scales(prescale_factor, postscale_factor)
    outputs = [autograd.fresh(tensor) for tensor in tensors]
    return Allreduce(tensors, outputs, choose_op(op, average), scales, group=group).start(name)


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = EVERYONE,
) -> Tensors:
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
    process_set: Any = EVERYONE,
) -> int:
    group = group_of(process_set)
    scales = Scales(prescale_factor, postscale_factor)
    return Allreduce(tensors, tensors, choose_op(op, average), scales, group=group).start(name)


# Reducescatter


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: Any = EVERYONE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the mean; the first ranks have one more where the rows do not come out even."""
    [result] = grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)
    return result


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Any = Average,
    process_set: Any = EVERYONE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    return _first(grouped_reducescatter_async([tensor], name, op, process_set, prescale_factor, postscale_factor))


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: Any = EVERYONE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    group = group_of(process_set)
    small = [compression.compress(tensor) for tensor in tensors]
    scales = Scales(prescale_factor, postscale_factor)
    results = autograd.reducescatter([tensor for tensor, _ in small], choose_op(op), scales, name, group=group)
    return [compression.decompress(result, context) for result, (_, context) in zip(results, small, strict=True)]


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: Any = Average,
    process_set: Any = EVERYONE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    scales = Scales(prescale_factor, postscale_factor)
    return start_reducescatter(tensors, choose_op(op), scales, name, group=group_of(process_set))


# Allgather, broadcast, alltoall


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = EVERYONE) -> torch.Tensor:
    """The rows of all ranks, one rank's after the other's; each may have another number of them."""
    return autograd.allgather([tensor], name, group=group_of(process_set))[0]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Any = EVERYONE) -> int:
    return _first(start_allgather([tensor], name=name, group=group_of(process_set)))


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: Any = EVERYONE
) -> tuple[torch.Tensor, ...]:
    return autograd.allgather(tensors, name, group=group_of(process_set))


def grouped_allgather_async(tensors: Tensors, name: str | None = None, process_set: Any = EVERYONE) -> int:
    return start_allgather(tensors, name=name, group=group_of(process_set))


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = EVERYONE
) -> torch.Tensor:
    """The root's tensor; this rank's own stays as it is."""
    return autograd.broadcast(tensor, root_rank, name, group=group_of(process_set))


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = EVERYONE) -> int:
    group, output = group_of(process_set), autograd.fresh(tensor)
    return _first(start_broadcast([(name or "tensor", tensor)], [output], root_rank, name=name, group=group))


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = EVERYONE
) -> torch.Tensor:
    """The same in place."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = EVERYONE) -> int:
    group = group_of(process_set)
    return _first(start_broadcast([(name or "tensor", tensor)], [tensor], root_rank, name=name, group=group))


def alltoall(tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: Any = EVERYONE) -> Any:
    """The rows that all ranks have for this one; with `splits` also how many each of them had."""
    output, received = autograd.alltoall(tensor, splits, name, group=group_of(process_set))
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: Any = EVERYONE
) -> int:
    """`synchronize` gives both, with splits or without."""
    return start_alltoall(tensor, splits, name=name, group=group_of(process_set))


def barrier(process_set: Any = EVERYONE) -> None:
    """Wait until all ranks of the set are here."""
    group = group_of(process_set)
    terms = Terms("barrier", Route.NOWHERE, allows_absent=True)
    synchronize(handles.start("barrier", "barrier", terms, lambda slices, answer: [], lambda: None, group=group))


def _first(handle: int) -> int:
    """The same operation, that gives the one tensor of its list."""
    handles.unwrap(handle)
    return handle
