"""Tensors that are moved, not reduced: allgather, broadcast and alltoall.

In: tensors of any type.  Out: the rows of all ranks, one rank's values, or everyone's rows for this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from undertow.coordinator.terms import Route, Terms
from undertow.core.rounds import Array, Op
from undertow.horovod.errors import BadCall
from undertow.horovod.packing import pack, read_counts, unpack
from undertow.horovod.rank_sets import name_ranks
from undertow.horovod.torch import basics, handles, values
from undertow.horovod.torch.reducing import SMALL_BYTES
from undertow.horovod.torch.transfers import Gathered, Scattered, Sliced
from undertow.runtime.group import Group
from undertow.torch.tensors import byte_spec


def start_allgather(tensors: Sequence[torch.Tensor], *, name: str | None, group: Group, details: str = "") -> int:
    """A list with the rows of all ranks for each tensor, in rank order; ranks may have different numbers of them.

    `details` are what else must be the same on all ranks, in words.
    """
    values.check_rows(tensors, "allgather")
    hosts = [values.to_host(tensor) for tensor in tensors]
    names = values.name_specs(name, len(tensors))
    specs = [values.row_spec(one, tensor) for one, tensor in zip(names, tensors, strict=True)]
    piece = pack([values.raw(host) for host in hosts], [len(host) for host in hosts])
    transfer = Gathered(group, piece)

    def end() -> Any:
        with transfer.received() as pieces:
            results = _join_rows(pieces, hosts)
        rows = [len(result) for result in results]
        outputs = [tensor.new_empty((count, *tensor.shape[1:])) for tensor, count in zip(tensors, rows, strict=True)]
        for result, output in zip(results, outputs, strict=True):
            values.put(result, output)
        return outputs

    terms = Terms("allgather", Route.EVERYONE, tensors=specs, details=details)
    return handles.start("allgather", name, terms, transfer.contribute, end, group=group)


def start_broadcast(
    named: Sequence[tuple[str, torch.Tensor]],
    outputs: Sequence[torch.Tensor],
    root: int,
    *,
    name: str | None,
    group: Group,
) -> int:
    """The root's values land in the outputs of all, which may be the tensors themselves.

    The root is given by its rank in the whole job.
    """
    tensors = [tensor for _, tensor in named]
    values.check_tensors(tensors, "broadcast")
    place = find_root(root, group)
    hosts = [values.to_host(tensor) for tensor in tensors]
    specs = [byte_spec(one, tensor) for one, tensor in named]
    size_bytes = sum(spec.elements for spec in specs)
    is_root = group.rank == place
    results = hosts if is_root else [torch.empty_like(host) for host in hosts]
    details = f"root {root}"

    def finish(land: Callable[[], None]) -> Any:
        land()
        for result, output in zip(results, outputs, strict=True):
            values.put(result, output)
        return outputs

    if size_bytes > SMALL_BYTES:
        arrays = [values.raw(host) for host in results]
        sliced = Sliced(arrays if is_root else None, None if is_root else arrays)
        terms = Terms("broadcast", Route.SLICES, Op.COPY, specs, details)
        return handles.start("broadcast", name, terms, sliced.contribute, lambda: finish(sliced.land), group=group)
    gathered = Gathered(group, pack([values.raw(host) for host in hosts]) if is_root else None)

    def take_apart() -> None:
        with gathered.received() as pieces:
            piece = pieces[place]
            assert piece is not None
            for part, result in zip(unpack(piece, [spec.elements for spec in specs]), results, strict=True):
                values.raw(result)[...] = part

    terms = Terms("broadcast", Route.EVERYONE, tensors=specs, details=details)
    return handles.start("broadcast", name, terms, gathered.contribute, lambda: finish(take_apart), group=group)


def find_root(root: int, group: Group) -> int:
    """The place among the group's ranks of the one that has this rank in the whole job."""
    if not 0 <= root < basics.size():
        raise BadCall(f"root_rank {root} is not there: ranks are 0 to {basics.size() - 1}")
    if root not in group.names:
        raise BadCall(
            f"root_rank {root} is not in the process set of {name_ranks(group.names)}: give the root's own hvd.rank()"
        )
    return group.names.index(root)


def start_alltoall(tensor: torch.Tensor, splits: Any, *, name: str | None, group: Group) -> int:
    """Some rows for each rank; gives the rows that all had for this one, and how many each of them had."""
    values.check_rows([tensor], "alltoall")
    host = values.to_host(tensor)
    counts = _count_rows(len(tensor), splits, group.size)
    parts: Sequence[torch.Tensor] = host.split(counts)  # type: ignore[no-untyped-call]
    transfer = Scattered(group, [pack([values.raw(part)], [len(part)]) for part in parts])

    def end() -> Any:
        with transfer.received() as pieces:
            received = [read_counts(piece, 1)[0] for piece in pieces if piece is not None]
            [result] = _join_rows(pieces, [host])
        output = tensor.new_empty((sum(received), *tensor.shape[1:]))
        values.put(result, output)
        like = splits if isinstance(splits, torch.Tensor) else torch.empty(0, dtype=torch.int32)
        return output, torch.tensor(received, dtype=like.dtype, device=like.device)

    terms = Terms("alltoall", Route.EACH, tensors=[values.row_spec(name or "tensor", tensor)])
    return handles.start("alltoall", name, terms, transfer.contribute, end, group=group)


def _join_rows(pieces: Sequence[Array | None], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Concatenate each tensor's rows of all ranks, in rank order."""
    counts = [read_counts(piece, len(like)) for piece in pieces if piece is not None]
    results = [_like(host, sum(count[index] for count in counts)) for index, host in enumerate(like)]
    starts = [0] * len(like)
    for piece, count in zip(pieces, counts, strict=True):
        assert piece is not None
        sizes_bytes = [rows * _row_bytes(host) for rows, host in zip(count, like, strict=True)]
        for index, part in enumerate(unpack(piece, sizes_bytes, len(like))):
            values.raw(results[index])[starts[index] : starts[index] + part.size] = part
            starts[index] += part.size
    return results


def _count_rows(rows: int, splits: Any, size: int) -> list[int]:
    """How many rows each rank gets."""
    if splits is None or (isinstance(splits, torch.Tensor) and not splits.numel()):
        if rows % size:
            raise BadCall(f"alltoall of {rows} rows among {size} ranks does not come out even: give splits")
        return [rows // size] * size
    if isinstance(splits, torch.Tensor) and (splits.is_floating_point() or splits.dtype is torch.bool):
        raise BadCall(f"alltoall takes whole numbers as splits, not {splits.dtype}")
    counts = [int(count) for count in splits]
    if len(counts) != size or sum(counts) != rows or min(counts) < 0:
        raise BadCall(f"alltoall of {rows} rows among {size} ranks with splits {counts}: give one number for each rank")
    return counts


def _like(host: torch.Tensor, rows: int) -> torch.Tensor:
    return host.new_empty((rows, *host.shape[1:]))


def _row_bytes(host: torch.Tensor) -> int:
    return host[:1].numel() * host.element_size() if len(host) else host.new_empty((1, *host.shape[1:])).nbytes
