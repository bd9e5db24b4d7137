"""Gradients through calls, as Horovod has them: each backward is a call of the same ranks, too.

Gradients of what was gathered or broadcast are averaged over the ranks, as those of an allreduce by `Average`
are: so a loss that is averaged over the ranks gives the gradient of the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from undertow.horovod.ops import ReduceOp
from undertow.horovod.torch import basics, handles
from undertow.horovod.torch.moving import start_allgather, start_alltoall, start_broadcast
from undertow.horovod.torch.reducing import Allreduce, Scales, start_reducescatter
from undertow.runtime.group import Group

Tensors = Sequence[torch.Tensor]


def allreduce(
    tensors: Tensors, op: ReduceOp, scales: Scales, name: str | None = None, *, group: Group
) -> tuple[torch.Tensor, ...]:
    result: tuple[torch.Tensor, ...] = _Allreduce.apply(group, op, scales, name, *tensors)  # type: ignore[no-untyped-call]
    return result


def allgather(tensors: Tensors, name: str | None = None, *, group: Group) -> tuple[torch.Tensor, ...]:
    result: tuple[torch.Tensor, ...] = _Allgather.apply(group, name, *tensors)  # type: ignore[no-untyped-call]
    return result


def reducescatter(
    tensors: Tensors, op: ReduceOp, scales: Scales, name: str | None = None, *, group: Group
) -> tuple[torch.Tensor, ...]:
    apply: Any = _Reducescatter.apply
    result: tuple[torch.Tensor, ...] = apply(group, op, scales, name, *tensors)
    return result


def broadcast(tensor: torch.Tensor, root: int, name: str | None = None, *, group: Group) -> torch.Tensor:
    result: torch.Tensor = _Broadcast.apply(group, root, name, tensor)  # type: ignore[no-untyped-call]
    return result


def alltoall(
    tensor: torch.Tensor, splits: Any, name: str | None = None, *, group: Group
) -> tuple[torch.Tensor, torch.Tensor]:
    result: tuple[torch.Tensor, torch.Tensor] = _Alltoall.apply(group, splits, name, tensor)  # type: ignore[no-untyped-call]
    return result


def fresh(tensor: Any) -> Any:
    """Memory for a result like this tensor; what is none stays, for the call itself to refuse."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return torch.empty_like(tensor.detach(), memory_format=torch.contiguous_format)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, op: ReduceOp, scales: Scales, name: str | None, *tensors: torch.Tensor) -> Any:
        ctx.group, ctx.op, ctx.scales = group, op, scales
        outputs = [fresh(tensor) for tensor in tensors]
        return tuple(handles.synchronize(Allreduce(tensors, outputs, op, scales, group=group).start(name)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, None, None, *allreduce(gradients, ctx.op, ctx.scales, group=ctx.group)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, name: str | None, *tensors: torch.Tensor) -> Any:
        ctx.group = group
        handle = start_allgather(tensors, name=name, group=group)
        ctx.rows = [len(tensor) for tensor in tensors]
        return tuple(handles.synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        means = allreduce(gradients, ReduceOp.Average, Scales(), group=ctx.group)
        [rows] = allgather([torch.tensor([ctx.rows])], group=ctx.group)
        starts = rows[: ctx.group.rank].sum(0).tolist()
        own = [mean.narrow(0, start, count) for mean, start, count in zip(means, starts, ctx.rows, strict=True)]
        return None, None, *own


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, root: int, name: str | None, tensor: torch.Tensor) -> Any:
        ctx.group, ctx.root = group, root
        handle = start_broadcast([(name or "tensor", tensor)], [fresh(tensor)], root, name=name, group=group)
        return handles.synchronize(handle)[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        [mean] = allreduce([gradient], ReduceOp.Average, Scales(), group=ctx.group)
        return None, None, None, mean if basics.rank() == ctx.root else torch.zeros_like(mean)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, op: ReduceOp, scales: Scales, name: str | None, *tensors: torch.Tensor) -> Any:
        ctx.group = group
        ctx.factor = scales.before * scales.after * (group.size if op is ReduceOp.Sum else 1)
        return tuple(handles.synchronize(start_reducescatter(tensors, op, scales, name, group=group)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        own = [gradient * ctx.factor for gradient in gradients]
        return None, None, None, None, *allgather(own, group=ctx.group)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, splits: Any, name: str | None, tensor: torch.Tensor) -> Any:
        ctx.group = group
        output, received = handles.synchronize(start_alltoall(tensor, splits, name=name, group=group))
        ctx.received = received
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *others: Any) -> Any:
        return None, None, None, alltoall(gradient, ctx.received, group=ctx.group)[0]
