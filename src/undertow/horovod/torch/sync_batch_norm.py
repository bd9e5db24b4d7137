"""Batch normalisation over the batches of all ranks: exact, on any device.

In: this rank's batch.  Out: the batch, normalised by the mean and variance of all ranks' batches together, so that N
ranks with batches of size B give the same as one process with a batch of size N*B.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from undertow.engine.interface import Group
from undertow.horovod.torch import handles
from undertow.horovod.torch.autograd import fresh
from undertow.horovod.torch.moving import start_allgather
from undertow.horovod.torch.process_sets import find_group, global_process_set
from undertow.horovod.torch.reducing import GroupReduction, Sum, start_allreduce


class SyncBatchNorm(_BatchNorm):
    """A batch normalisation layer with torch's arguments; batches may differ in size between ranks.

    With `process_set`, statistics cover the batches of its ranks.
    """

    def __init__(self, *args: Any, process_set: Any = global_process_set, **options: Any) -> None:
        super().__init__(*args, **options)
        self._process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm takes batches with at least 2 dimensions, not {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        uses_batch = self.training or self.running_mean is None
        group = find_group(self._process_set) if uses_batch else None
        if group is None or group.size == 1:
            return super().forward(input)
        self._check_input_dim(input)
        momentum = self._count_batch()
        normalise: Any = _Normalise.apply
        output, mean, variance, count = normalise(group, input, self.weight, self.bias, self.eps)
        if momentum is not None and self.running_mean is not None and self.running_var is not None:
            unbiased = variance * (count / (count - 1)) if count > 1 else variance
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
        result: torch.Tensor = output
        return result

    def _count_batch(self) -> float | None:
        """Count a batch; return its momentum, or None if no running statistics are kept."""
        if not (self.training and self.track_running_stats) or self.num_batches_tracked is None:
            return None
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum


class _Normalise(torch.autograd.Function):
    """A normalisation that computes its statistics in the input's type, but with at least 32 bits."""

    @staticmethod
    def forward(ctx: Any, group: Group, input: torch.Tensor, weight: Any, bias: Any, eps: float) -> Any:
        wide = torch.promote_types(input.dtype, torch.float32)
        values = input.to(wide)
        over = [dimension for dimension in range(input.dim()) if dimension != 1]
        own = values.numel() // values.size(1)
        variance, mean = torch.var_mean(values, over, correction=0) if own else _zeros(values)
        counts, means, variances = _gather_statistics(own, mean, variance, group)
        total = counts.sum()
        mean = (means * counts).sum(0) / total
        variance = ((variances + (means - mean) ** 2) * counts).sum(0) / total
        inverse = torch.rsqrt(variance + eps)
        shape = [1, -1] + [1] * (input.dim() - 2)
        normal = (values - mean.view(shape)) * inverse.view(shape)
        ctx.save_for_backward(normal, inverse, weight)
        ctx.group, ctx.over, ctx.shape, ctx.total = group, over, shape, float(total)
        ctx.mark_non_differentiable(mean, variance)
        output = normal if weight is None else normal * weight.to(wide).view(shape)
        output = output if bias is None else output + bias.to(wide).view(shape)
        return output.to(input.dtype), mean, variance, ctx.total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *others: Any) -> Any:
        normal, inverse, weight = ctx.saved_tensors
        wide = gradient.to(normal.dtype)
        sums = torch.stack([wide.sum(ctx.over), (wide * normal).sum(ctx.over)])
        reduction = GroupReduction(ctx.group, Sum)
        [total] = handles.synchronize(start_allreduce([sums], [fresh(sums)], reduction, "sync_batch_norm.backward"))
        mean, slope = (total / ctx.total).unbind()
        scale = inverse if weight is None else inverse * weight.to(normal.dtype)
        own = scale.view(ctx.shape) * (wide - mean.view(ctx.shape) - normal * slope.view(ctx.shape))
        # Like all others, the gradients of weight and bias cover this rank's batch: the optimizer averages them.
        to_weight = None if weight is None else sums[1].to(weight.dtype)
        to_bias = sums[0].to(weight.dtype) if weight is not None and ctx.needs_input_grad[3] else None
        return None, own.to(gradient.dtype), to_weight, to_bias, None


def _zeros(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    zeros = values.new_zeros(values.size(1))
    return zeros, zeros


def _gather_statistics(
    count: int, mean: torch.Tensor, variance: torch.Tensor, group: Group
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gather count, mean and variance of every rank, one row each."""
    row = torch.cat([mean.new_tensor([count]), mean, variance]).unsqueeze(0)
    rows = handles.synchronize(start_allgather([row], name="sync_batch_norm.forward", group=group))[0]
    channels = mean.numel()
    return rows[:, :1], rows[:, 1 : 1 + channels], rows[:, 1 + channels :]
