"""Reductions: allreduce and reducescatter of one tensor or several, and their gradients.

In: tensors that are the same on all ranks but for their values.  Out: their sum, mean, or what `op` says.
Large sums are made by the shards, slice by slice.  Whatever is small, or no sum, travels as it is and is
reduced by whoever wants it, in rank order as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from undertow.coordinator.terms import Route, Terms
from undertow.core.dtypes import DType
from undertow.core.rounds import Array, Op
from undertow.horovod.errors import BadCall
from undertow.horovod.ops import ReduceOp, divide_whole, reduce_arrays, split_rows
from undertow.horovod.packing import pack, unpack
from undertow.horovod.torch import basics, handles, values
from undertow.horovod.torch.process_sets import global_process_set, group_of
from undertow.horovod.torch.transfers import Gathered, Scattered, Sliced
from undertow.plan.slicing import TensorSpec
from undertow.runtime.group import Group

# Below this a second hop costs more than the bytes that it saves.
SMALL_BYTES = 8 << 10

Average, Sum, Adasum, Min, Max, Product = ReduceOp


def choose_op(op: Any, average: bool | None = None) -> ReduceOp:
    """What `op`, or the older `average`, says."""
    if average is not None:
        if op is not None:
            raise BadCall("both op and average are given: leave average out, op says it all")
        warnings.warn("average= is deprecated: use op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=4)
        return Average if average else Sum
    try:
        chosen = Average if op is None else ReduceOp(op)
    except ValueError:
        raise BadCall(f"op {op!r} is not known: use hvd.Average, Sum, Min, Max or Product") from None
    if chosen is Adasum and basics.size() > 1:
        raise BadCall(
            "Adasum is not there, because it is no exact sum: use hvd.Average, and scale the learning rate by "
            "hvd.size() as usual"
        )
    return Sum if chosen is Adasum else chosen


class Scales(NamedTuple):
    """What values are multiplied by, before and after."""

    before: float = 1.0
    after: float = 1.0


class Allreduce:
    """One allreduce of some tensors.  The results land in `outputs`, which may be the tensors themselves."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        op: ReduceOp,
        scales: Scales,
        *,
        group: Group,
    ) -> None:
        check_reducible(tensors, op, "allreduce")
        self._hosts = [values.to_host(values.scale(tensor, scales.before)) for tensor in tensors]
        self._tensors = tensors
        self._outputs = outputs
        self._op = op
        self._scales = scales
        self._group = group

    def start(self, name: str | None) -> int:
        """Gives a list of the outputs."""
        specs = make_specs(name, self._tensors)
        is_sum = self._op in (Sum, Average) and all(spec.dtype is not DType.BYTES for spec in specs)
        is_small = sum(values.raw(host).size for host in self._hosts) <= SMALL_BYTES
        if not is_sum or is_small:
            return self._start_here(name, specs)
        # There is no exact mean of whole numbers: they are summed, and divided here.
        is_mean = self._op is Average and all(spec.dtype.is_float for spec in specs)
        return self._start_slices(name, specs, Op.MEAN if is_mean else Op.SUM)

    def _start_slices(self, name: str | None, specs: list[TensorSpec], op: Op) -> int:
        results = [_landing(host, output) for host, output in zip(self._hosts, self._outputs, strict=True)]
        sources = [values.numbers(host) for host in self._hosts]
        transfer = Sliced(sources, [values.numbers(result) for result in results])

        def end() -> Sequence[torch.Tensor]:
            transfer.land()
            if self._op is Average and op is Op.SUM:
                for result in results:
                    _divide(values.numbers(result), self._group.size)
            return self._finish(results)

        terms = self._terms(Route.SLICES, op, specs)
        return handles.start("allreduce", name, terms, transfer.contribute, end, group=self._group)

    def _start_here(self, name: str | None, specs: list[TensorSpec]) -> int:
        transfer = Gathered(self._group, pack([values.raw(host) for host in self._hosts]))

        def end() -> Sequence[torch.Tensor]:
            with transfer.received() as pieces:
                results = _reduce_pieces(self._op, pieces, self._hosts, self._group.size)
            return self._finish(results)

        terms = self._terms(Route.EVERYONE, Op.GATHER, specs)
        return handles.start("allreduce", name, terms, transfer.contribute, end, group=self._group)

    def _terms(self, route: Route, op: Op, specs: list[TensorSpec]) -> Terms:
        details = describe(self._op, self._scales)
        # To a sum, ranks that have run out of input add nothing; a product or a minimum has no such value.
        return Terms("allreduce", route, op, specs, details, allows_absent=self._op in (Sum, Average))

    def _finish(self, results: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        for result, output in zip(results, self._outputs, strict=True):
            values.put(values.scale(result, self._scales.after), output)
        return self._outputs


def check_reducible(tensors: Sequence[torch.Tensor], op: ReduceOp, kind: str) -> None:
    values.check_tensors(tensors, kind)
    if op not in (Sum, Average) and any(tensor.is_complex() for tensor in tensors):
        raise BadCall(f"{kind} of complex numbers: they can be summed and averaged, there is no {op.name} here")
    if op is Average and any(tensor.dtype is torch.bool for tensor in tensors):
        raise BadCall(
            f"{kind} of truth values: they have no mean. Use hvd.Max (any), hvd.Min (all), or make them numbers"
        )


def make_specs(name: str | None, tensors: Sequence[torch.Tensor]) -> list[TensorSpec]:
    names = values.name_specs(name, len(tensors))
    return [values.summed_spec(one, tensor) for one, tensor in zip(names, tensors, strict=True)]


def describe(op: ReduceOp, scales: Scales) -> str:
    return f"op {op.name}, scaled by {scales.before:g} before and {scales.after:g} after"


def _landing(host: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Where the sum lands: in the output itself if its memory will do."""
    own = values.to_host(output)
    is_own = own.data_ptr() == output.data_ptr() and own.dtype is host.dtype
    return own if is_own else torch.empty_like(host)


def _divide(total: Array, size: int) -> None:
    is_whole = total.dtype.kind in "iu"
    total[...] = divide_whole(total, size) if is_whole else total / size


def _reduce_pieces(
    op: ReduceOp, pieces: Sequence[Array | None], like: Sequence[torch.Tensor], size: int
) -> list[torch.Tensor]:
    """What all ranks sent, reduced here; ranks that have run out of input sent nothing."""
    sizes_bytes = [values.raw(host).size for host in like]
    parts = [unpack(piece, sizes_bytes) for piece in pieces if piece is not None]
    results = []
    for index, host in enumerate(like):
        result, dtype = torch.empty_like(host), values.dtype_of(host)
        # A copy: bytes on their own need not lie as numbers must.
        arrays = [part[index].copy().view(dtype) for part in parts]
        values.numbers(result)[...] = reduce_arrays(op, arrays, size)
        results.append(result)
    return results


def start_reducescatter(
    tensors: Sequence[torch.Tensor], op: ReduceOp, scales: Scales, name: str | None, *, group: Group
) -> int:
    """Each rank gets the reduction of its own rows, as a list with one tensor for each."""
    check_reducible(tensors, op, "reducescatter")
    values.check_rows(tensors, "reducescatter")
    hosts = [values.to_host(values.scale(tensor, scales.before)) for tensor in tensors]
    shares = _share_rows(hosts, group.size)
    transfer = Scattered(group, [pack([values.raw(part) for part in share]) for share in shares])

    def end() -> Sequence[torch.Tensor]:
        with transfer.received() as pieces:
            results = _reduce_pieces(op, pieces, shares[group.rank], group.size)
        outputs = []
        for tensor, result in zip(tensors, results, strict=True):
            output = tensor.new_empty((len(result), *tensor.shape[1:]))
            values.put(values.scale(result, scales.after), output)
            outputs.append(output)
        return outputs

    terms = Terms("reducescatter", Route.EACH, tensors=make_specs(name, tensors), details=describe(op, scales))
    return handles.start("reducescatter", name, terms, transfer.contribute, end, group=group)


def _share_rows(hosts: Sequence[torch.Tensor], size: int) -> list[list[torch.Tensor]]:
    """Of each rank, its rows of each tensor."""
    rows = [split_rows(len(host), size) for host in hosts]
    return [
        [host[own[rank].start : own[rank].stop] for host, own in zip(hosts, rows, strict=True)] for rank in range(size)
    ]


def sparse_allreduce_async(tensor: torch.Tensor, name: str, op: Any, process_set: Any = global_process_set) -> Any:
    """Sum or average a sparse tensor: returns a function that waits and gives the result."""
    from undertow.horovod.torch.moving import start_allgather

    group = group_of(process_set)
    chosen = choose_op(op)
    if chosen not in (Sum, Average):
        raise BadCall(f"a sparse tensor can be summed or averaged; {chosen.name} would need its zeros, too")
    parts = [tensor._indices().t().contiguous(), tensor._values()]
    # Indices of a larger tensor would lie outside of this one.
    details = f"a sparse tensor of shape {list(tensor.shape)}, op {chosen.name}"
    handle = start_allgather(parts, name=f"{name}.sparse", group=group, details=details)

    def wait() -> torch.Tensor:
        indices, gathered = handles.synchronize(handle)
        total = gathered / group.size if chosen is Average else gathered
        return torch.sparse_coo_tensor(indices.t(), total, tensor.shape, check_invariants=False)

    return wait
