"""Differentiable collectives, as in Horovod: each backward is a collective of the same ranks.

Gradients of gathered or broadcast tensors, and of an allreduce with `Average`, are averaged over the ranks.  A loss
that is averaged over the ranks therefore gives the gradient of the mean.
"""

from __future__ import annotations

from typing import Any

import torch

from undertow.engine.interface import Group
from undertow.horovod.ops import ReduceOp
from undertow.horovod.torch import basics, handles
from undertow.horovod.torch.moving import start_allgather, start_alltoall, start_broadcast
from undertow.horovod.torch.reducing import GroupReduction, start_allreduce, start_reducescatter


def fresh(tensor: Any) -> Any:
    """Return memory for a result like this tensor; return any other object unchanged, for the call to refuse."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return torch.empty_like(tensor.detach(), memory_format=torch.contiguous_format)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reduction: GroupReduction, name: str | None, *tensors: torch.Tensor) -> Any:
        ctx.reduction = reduction
        outputs = [fresh(tensor) for tensor in tensors]
        return tuple(handles.synchronize(start_allreduce(tensors, outputs, reduction, name)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, *allreduce(ctx.reduction, None, *gradients)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, name: str | None, *tensors: torch.Tensor) -> Any:
        ctx.group = group
        handle = start_allgather(tensors, name=name, group=group)
        ctx.rows = [len(tensor) for tensor in tensors]
        return tuple(handles.synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        means = allreduce(GroupReduction(ctx.group, ReduceOp.Average), None, *gradients)
        [rows] = allgather(ctx.group, None, torch.tensor([ctx.rows]))
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
        [mean] = allreduce(GroupReduction(ctx.group, ReduceOp.Average), None, gradient)
        return None, None, None, mean if basics.rank() == ctx.root else torch.zeros_like(mean)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reduction: GroupReduction, name: str | None, *tensors: torch.Tensor) -> Any:
        ctx.group = reduction.group
        ctx.factor = reduction.before * reduction.after * (ctx.group.size if reduction.op is ReduceOp.Sum else 1)
        return tuple(handles.synchronize(start_reducescatter(tensors, reduction, name)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        own = [gradient * ctx.factor for gradient in gradients]
        return None, None, *allgather(ctx.group, None, *own)


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
        return None, None, None, alltoall(ctx.group, ctx.received, None, gradient)[0]


# Called with the arguments of `forward`, without the context.
allreduce: Any = _Allreduce.apply
allgather: Any = _Allgather.apply
broadcast: Any = _Broadcast.apply
reducescatter: Any = _Reducescatter.apply
alltoall: Any = _Alltoall.apply
