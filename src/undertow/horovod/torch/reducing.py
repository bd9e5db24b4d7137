"""Collectives that reduce tensors: allreduce and reducescatter of one tensor or several.

In: tensors with the same names, types and shapes on all ranks.  Out: their sum, mean, or another reduction.
The shards compute large sums, slice by slice.  For small tensors and other reductions, whole tensors are sent, and each
rank that needs the result reduces them, also in rank order.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from undertow.engine.coordinator.terms import Route, Terms
from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Array, Op
from undertow.engine.core.slicing import TensorSpec
from undertow.engine.interface import Group
from undertow.horovod.errors import BadCall
from undertow.horovod.ops import ReduceOp, divide_whole, pack, reduce_arrays, split_rows, unpack
from undertow.horovod.torch import basics, handles, values
from undertow.horovod.torch.moving import start_allgather
from undertow.horovod.torch.process_sets import global_process_set, group_of
from undertow.horovod.torch.transfers import SMALL_BYTES, Blobs, exchange_blobs, exchange_slices

Average, Sum, Adasum, Min, Max, Product = ReduceOp


def choose_op(op: Any, average: bool | None = None) -> ReduceOp:
    """Return the reduction that `op`, or the deprecated `average`, requests."""
    if average is not None:
        if op is not None:
            raise BadCall("both op and average are given: leave average out")
        warnings.warn("average= is deprecated: use op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=5)
        return Average if average else Sum
    try:
        chosen = Average if op is None else ReduceOp(op)
    except ValueError:
        raise BadCall(f"op {op!r} is unknown: use hvd.Average, Sum, Min, Max or Product") from None
    if chosen is Adasum and basics.size() > 1:
        raise BadCall(
            "Adasum is not supported, because it is not an exact sum: use hvd.Average, and scale the learning rate by "
            "hvd.size() as usual"
        )
    return Sum if chosen is Adasum else chosen


class GroupReduction(NamedTuple):
    """A reduction over a group, with the factors by which values are multiplied before and after it."""

    group: Group
    op: ReduceOp
    before: float = 1.0
    after: float = 1.0

    def describe(self) -> str:
        return f"op {self.op.name}, scaled by {self.before:g} before and {self.after:g} after"


def read_reduction(
    process_set: Any, op: Any, average: bool | None = None, before: float = 1.0, after: float = 1.0
) -> GroupReduction:
    """Return the reduction that the arguments of an operation request."""
    return GroupReduction(group_of(process_set), choose_op(op, average), before, after)


def start_allreduce(
    tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], reduction: GroupReduction, name: str | None
) -> int:
    """Start an allreduce; its result is `outputs`, filled with the results.  They may be the tensors themselves."""
    op, group = reduction.op, reduction.group
    _check(tensors, op, "allreduce")
    hosts = [values.to_host(values.scale(tensor, reduction.before)) for tensor in tensors]
    specs = _make_specs(name, tensors)
    is_sum = op in (Sum, Average) and all(spec.dtype is not DType.BYTES for spec in specs)
    is_small = sum(values.raw(host).size for host in hosts) <= SMALL_BYTES

    def make_terms(route: Route, op_of_shards: Op) -> Terms:
        # Ranks that have run out of input add zeros to a sum; a product or a minimum has no such neutral value.
        allows_absent = op in (Sum, Average)
        return Terms("allreduce", route, op_of_shards, specs, reduction.describe(), allows_absent=allows_absent)

    def finish(results: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        for result, output in zip(results, outputs, strict=True):
            values.put(values.scale(result, reduction.after), output)
        return outputs

    if not is_sum or is_small:

        def read(blobs: Blobs) -> list[torch.Tensor]:
            return _reduce_blobs(reduction, blobs, hosts)

        blob = pack([values.raw(host) for host in hosts])
        return exchange_blobs(name, make_terms(Route.EVERYONE, Op.GATHER), [blob], read, finish, group=group)

    # Shards cannot average whole numbers: they sum them, and this rank divides.
    is_mean = op is Average and all(spec.dtype.is_float for spec in specs)
    results = [_landing(host, output) for host, output in zip(hosts, outputs, strict=True)]
    targets = [values.numbers(result) for result in results]

    def divide_and_finish() -> Sequence[torch.Tensor]:
        if op is Average and not is_mean:
            for target in targets:
                _divide(target, group.size)
        return finish(results)

    terms = make_terms(Route.SLICES, Op.MEAN if is_mean else Op.SUM)
    sources = [values.numbers(host) for host in hosts]
    return exchange_slices(name, terms, sources, targets, divide_and_finish, group=group)


def _check(tensors: Sequence[torch.Tensor], op: ReduceOp, kind: str) -> None:
    values.check_tensors(tensors, kind)
    if op not in (Sum, Average) and any(tensor.is_complex() for tensor in tensors):
        raise BadCall(f"{kind} of complex numbers supports Sum and Average, not {op.name}")
    if op is Average and any(tensor.dtype is torch.bool for tensor in tensors):
        raise BadCall(
            f"{kind} of truth values, which have no mean: use hvd.Max (any), hvd.Min (all), or convert them to numbers"
        )


def _make_specs(name: str | None, tensors: Sequence[torch.Tensor]) -> list[TensorSpec]:
    names = values.name_specs(name, len(tensors))
    return [values.summed_spec(one, tensor) for one, tensor in zip(names, tensors, strict=True)]


def _landing(host: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Return the memory for a sum: the output's own if possible."""
    own = values.to_host(output)
    is_own = own.data_ptr() == output.data_ptr() and own.dtype is host.dtype
    return own if is_own else torch.empty_like(host)


def _divide(total: Array, size: int) -> None:
    is_whole = total.dtype.kind in "iu"
    total[...] = divide_whole(total, size) if is_whole else total / size


def _reduce_blobs(reduction: GroupReduction, blobs: Blobs, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Reduce the blobs of all ranks; the blob of a rank that has run out of input is None."""
    sizes_bytes = [values.raw(host).size for host in like]
    ranks = [unpack(blob, sizes_bytes) for blob in blobs if blob is not None]
    results = []
    for index, host in enumerate(like):
        result = torch.empty_like(host)
        total = values.numbers(result)
        # A copy, because bytes in a blob may not be aligned as numbers must be.
        arrays = [arrays[index].copy().view(total.dtype) for arrays in ranks]
        total[...] = reduce_arrays(reduction.op, arrays, reduction.group.size)
        results.append(result)
    return results


def start_reducescatter(tensors: Sequence[torch.Tensor], reduction: GroupReduction, name: str | None) -> int:
    """Start a reducescatter; its result is a list with this rank's rows of each reduced tensor."""
    _check(tensors, reduction.op, "reducescatter")
    values.check_rows(tensors, "reducescatter")
    group = reduction.group
    hosts = [values.to_host(values.scale(tensor, reduction.before)) for tensor in tensors]
    rows = [[host[own.start : own.stop] for own in split_rows(len(host), group.size)] for host in hosts]
    shares = list(zip(*rows, strict=True))  # by rank: its rows of each tensor

    def read(blobs: Blobs) -> list[torch.Tensor]:
        return _reduce_blobs(reduction, blobs, shares[group.rank])

    def finish(results: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        pairs = zip(results, tensors, strict=True)
        return [values.put_rows(values.scale(result, reduction.after), tensor) for result, tensor in pairs]

    blobs = [pack([values.raw(own) for own in share]) for share in shares]
    terms = Terms("reducescatter", Route.EACH, tensors=_make_specs(name, tensors), details=reduction.describe())
    return exchange_blobs(name, terms, blobs, read, finish, group=group)


def sparse_allreduce_async(tensor: torch.Tensor, name: str, op: Any, process_set: Any = global_process_set) -> Any:
    """Sum or average a sparse tensor; return a function that waits for the result and returns it."""
    group, chosen, *_ = read_reduction(process_set, op)
    if chosen not in (Sum, Average):
        raise BadCall(
            f"sparse tensors can be summed or averaged, not reduced by {chosen.name}, which needs the zeros as well"
        )
    coordinates_and_values = [tensor._indices().t().contiguous(), tensor._values()]
    # Shapes must agree: indices of a larger tensor would be out of range.
    details = f"a sparse tensor of shape {list(tensor.shape)}, op {chosen.name}"
    handle = start_allgather(coordinates_and_values, name=f"{name}.sparse", group=group, details=details)

    def wait() -> torch.Tensor:
        indices, gathered = handles.synchronize(handle)
        total = gathered / group.size if chosen is Average else gathered
        return torch.sparse_coo_tensor(indices.t(), total, tensor.shape, check_invariants=False)

    return wait
