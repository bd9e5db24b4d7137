"""Collectives that move tensors without reducing them: allgather, broadcast and alltoall.

In: tensors of any type.  Out: the rows of all ranks, the root's values, or the rows that all ranks send to this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from undertow.engine.coordinator.terms import Route, Terms
from undertow.engine.core.rounds import Op
from undertow.engine.interface import Group
from undertow.errors import name_ranks
from undertow.horovod.errors import BadCall
from undertow.horovod.ops import pack, read_counts, unpack
from undertow.horovod.torch import basics, values
from undertow.horovod.torch.transfers import SMALL_BYTES, Blobs, exchange_blobs, exchange_slices
from undertow.torch.slots.tensors import byte_spec


def start_allgather(tensors: Sequence[torch.Tensor], *, name: str | None, group: Group, details: str = "") -> int:
    """Start an allgather; its result is a list with the rows of all ranks, in rank order, for each tensor.

    Ranks may have different numbers of rows.  `details` describes what else must be the same on all ranks.
    """
    values.check_rows(tensors, "allgather")
    hosts = [values.to_host(tensor) for tensor in tensors]
    names = values.name_specs(name, len(tensors))
    specs = [values.row_spec(one, tensor) for one, tensor in zip(names, tensors, strict=True)]
    blob = pack([values.raw(host) for host in hosts], [len(host) for host in hosts])

    def read(blobs: Blobs) -> list[torch.Tensor]:
        return _join_rows(blobs, hosts)

    def finish(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [values.put_rows(result, tensor) for result, tensor in zip(results, tensors, strict=True)]

    terms = Terms("allgather", Route.EVERYONE, tensors=specs, details=details)
    return exchange_blobs(name, terms, [blob], read, finish, group=group)


def start_broadcast(
    named: Sequence[tuple[str, torch.Tensor]],
    outputs: Sequence[torch.Tensor],
    root: int,
    *,
    name: str | None,
    group: Group,
) -> int:
    """Start a broadcast of the root's values to the outputs of all ranks, which may be the tensors themselves.

    `root` is a rank of the whole job.
    """
    tensors = [tensor for _, tensor in named]
    values.check_tensors(tensors, "broadcast")
    root_in_group = find_root(root, group)
    is_root = group.rank == root_in_group
    hosts = [values.to_host(tensor) for tensor in tensors]
    results = hosts if is_root else [torch.empty_like(host) for host in hosts]
    specs = [byte_spec(one, tensor) for one, tensor in named]
    arrays = [values.raw(result) for result in results]
    details = f"root {root}"

    def finish() -> Sequence[torch.Tensor]:
        for result, output in zip(results, outputs, strict=True):
            values.put(result, output)
        return outputs

    if sum(spec.elements for spec in specs) > SMALL_BYTES:
        terms = Terms("broadcast", Route.SLICES, Op.COPY, specs, details)
        sources, targets = (arrays, None) if is_root else (None, arrays)
        return exchange_slices(name, terms, sources, targets, finish, group=group)

    def read(blobs: Blobs) -> None:
        blob = blobs[root_in_group]
        assert blob is not None
        for received, array in zip(unpack(blob, [array.size for array in arrays]), arrays, strict=True):
            array[...] = received

    terms = Terms("broadcast", Route.EVERYONE, Op.GATHER, specs, details)
    return exchange_blobs(name, terms, [pack(arrays) if is_root else None], read, lambda _: finish(), group=group)


def find_root(root: int, group: Group) -> int:
    """Convert the root's rank in the whole job to its rank in the group."""
    if not 0 <= root < basics.size():
        raise BadCall(f"there is no root_rank {root}: ranks are 0 to {basics.size() - 1}")
    ranks = [group.shape.name(rank) for rank in range(group.size)]
    if root not in ranks:
        raise BadCall(
            f"root_rank {root} is not in the process set of {name_ranks(ranks)}: give the root's own hvd.rank()"
        )
    return ranks.index(root)


def start_alltoall(tensor: torch.Tensor, splits: Any, *, name: str | None, group: Group) -> int:
    """Start an alltoall; its result is the rows that all ranks send to this one, and their number from each rank."""
    values.check_rows([tensor], "alltoall")
    host = values.to_host(tensor)
    counts = _count_rows(len(tensor), splits, group.size)
    chunks: Sequence[torch.Tensor] = host.split(counts)  # type: ignore[no-untyped-call]
    blobs = [pack([values.raw(chunk)], [len(chunk)]) for chunk in chunks]

    def read(blobs: Blobs) -> tuple[list[int], torch.Tensor]:
        return [read_counts(blob, 1)[0] for blob in blobs if blob is not None], _join_rows(blobs, [host])[0]

    def finish(result: tuple[list[int], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        received, rows = result
        like = splits if isinstance(splits, torch.Tensor) else torch.empty(0, dtype=torch.int32)
        return values.put_rows(rows, tensor), torch.tensor(received, dtype=like.dtype, device=like.device)

    terms = Terms("alltoall", Route.EACH, tensors=[values.row_spec(name or "tensor", tensor)])
    return exchange_blobs(name, terms, blobs, read, finish, group=group)


def _join_rows(blobs: Blobs, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Concatenate the rows of all ranks, in rank order, for each tensor."""
    counts = [read_counts(blob, len(like)) for blob in blobs if blob is not None]
    totals = [sum(rows) for rows in zip(*counts, strict=True)]
    results = [host.new_empty((total, *host.shape[1:])) for host, total in zip(like, totals, strict=True)]
    starts = [0] * len(like)
    for blob, count in zip(blobs, counts, strict=True):
        assert blob is not None
        pairs = zip(count, like, strict=True)
        sizes_bytes = [rows * math.prod(host.shape[1:]) * host.element_size() for rows, host in pairs]
        for index, rows_bytes in enumerate(unpack(blob, sizes_bytes, len(like))):
            values.raw(results[index])[starts[index] : starts[index] + rows_bytes.size] = rows_bytes
            starts[index] += rows_bytes.size
    return results


def _count_rows(rows: int, splits: Any, size: int) -> list[int]:
    """Return the number of rows to send to each rank."""
    if splits is None or (isinstance(splits, torch.Tensor) and not splits.numel()):
        if rows % size:
            raise BadCall(f"alltoall cannot divide {rows} rows evenly among {size} ranks: give splits")
        return [rows // size] * size
    if isinstance(splits, torch.Tensor) and (splits.is_floating_point() or splits.dtype is torch.bool):
        raise BadCall(f"alltoall takes whole numbers as splits, not {splits.dtype}")
    counts = [int(count) for count in splits]
    if len(counts) != size or sum(counts) != rows or min(counts) < 0:
        raise BadCall(f"alltoall of {rows} rows among {size} ranks with splits {counts}: give one number for each rank")
    return counts
