"""Rules for cutting the tensors of a model under a plan, and for the order in which their slices are sent.

In: a plan, limits of slice sizes, the rate of the links.  Out: slice sizes, chunks per tensor, priorities, buckets.
Pure.  The training process and the simulator use the same rules, on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from undertow.engine.core.slicing import Chunking, TensorSpec, count_most
from undertow.plan.plan import Choice, Plan
from undertow.plan.scheme import FACTORED, Scheme
from undertow.sizing import Sizes

Tensor = TypeVar("Tensor")

# More than any model has tensors.
PLACES = 1 << 32


def prioritise(pass_number: int, place: int) -> int:
    """Return the priority of a contribution; lower numbers are sent first.

    The rest of one pass is sent before anything of the next: a rank that is ahead must not send new gradients while
    other ranks wait for answers of its shard.  Within a pass the order is that of `place`, the tensor's position in
    the order of first use (P3, MLSys 2019).
    """
    return pass_number * PLACES + place


@dataclass(frozen=True, kw_only=True)
class SlicePlan:
    """Schemes and slice sizes in force for one model."""

    slice_bytes: int
    credited_bytes: int  # slice size by which the credit is counted; at least `slice_bytes`
    schemes: Mapping[str, Scheme] = field(default_factory=dict)  # schemes of tensors that are not dense
    peer_bytes: Mapping[str, float] = field(default_factory=dict)  # bytes of a tensor that a worker sends to one peer

    def choose_chunking(self, tensor: TensorSpec, *, least_bytes: int, shards: int) -> Chunking | None:
        """Return the number of chunks for a tensor that is not cut into slices; None for a dense tensor."""
        scheme = self.schemes.get(tensor.name, Scheme.DENSE)
        if scheme is Scheme.ALLREDUCE:
            return Chunking(0)
        if scheme not in FACTORED:
            return None
        to_shards = scheme is Scheme.FACTORS_TO_SHARD
        # The number of keys that were reserved for slices of the least size.
        most = count_most(tensor, least_bytes) // (shards if to_shards else 1)
        chunks = math.ceil(self.peer_bytes.get(tensor.name, 0.0) / self.slice_bytes)
        return Chunking(max(1, min(chunks, most)), to_shards)


def make_slice_plan(plan: Plan | None, slice_bytes: int, *, sizes: Sizes, bytes_per_s: float | None) -> SlicePlan:
    """Return the slice plan for a plan; if that is None, all tensors are dense.

    The credit is counted in slices that fit the link, so a small model with smaller slices may have more in flight.
    """
    credited_bytes = slice_bytes if bytes_per_s is None else max(slice_bytes, sizes.fit_link(bytes_per_s))
    if plan is None:
        return SlicePlan(slice_bytes=slice_bytes, credited_bytes=credited_bytes)
    return SlicePlan(
        slice_bytes=slice_bytes,
        credited_bytes=credited_bytes,
        schemes=plan.other_schemes,
        peer_bytes={choice.tensor: choice.push_bytes / _count_receivers(plan, choice) for choice in plan.choices},
    )


def _count_receivers(plan: Plan, choice: Choice) -> int:
    """Return the number of hosts that a worker sends its contributions to."""
    is_to_servers = choice.scheme is Scheme.FACTORS_TO_SHARD
    return max(1, (plan.servers if is_to_servers else plan.workers) - 1)


def find_bucket_sizes(sizes: Sizes) -> tuple[int, int]:
    """Return the bytes of the first all-reduce bucket, which is small in order to start early, and of the others.

    The defaults are 1 and 24 MiB; those of torch's DistributedDataParallel are 1 and 25 MiB.
    """
    return sizes.largest // 4, 6 * sizes.largest


def fill_buckets(tensors: Iterable[tuple[Tensor, int, Hashable]], bucket_sizes: tuple[int, int]) -> list[list[Tensor]]:
    """Distribute tensors, each given with its bytes and its kind, to buckets in their order.

    A bucket is full with the tensor that reaches its size, and ends before a tensor of another kind.
    """
    buckets: list[list[Tensor]] = []
    filled, last_kind = 0, None
    for tensor, size_bytes, kind in tensors:
        if not buckets or filled >= bucket_sizes[len(buckets) > 1] or kind != last_kind:
            buckets.append([])
            filled, last_kind = 0, kind
        buckets[-1].append(tensor)
        filled += size_bytes
    return buckets
