"""How long a step takes, if every tensor goes its way: what the planner compares plans by.

In: a profile, a cluster, one scheme per tensor.  Out: seconds, and when each gradient is there.
All workers do the same at the same time, so one of them tells for all: a device that computes, and a
link that always carries what is needed first.  With gates the next forward pass starts early, each
layer when its own tensors are there; without, when all are.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from undertow.plan.cluster import Cluster
from undertow.plan.profile import LayerProfile, Profile, TensorProfile
from undertow.plan.scheme import Scheme, count_product_flops, count_traffic


@dataclass(frozen=True)
class Prediction:
    step_s: float
    arrivals_s: Mapping[str, float]  # when each tensor's mean gradient is there, from the start of backward on


@dataclass(order=True)
class _Transfer:
    """One tensor on its way."""

    priority: int
    sequence: int
    name: str = field(compare=False)
    left: list[float] = field(compare=False)  # seconds on the link, of each phase that is still to come
    pause_s: float = field(compare=False)  # at the shard, between two phases


def predict(profile: Profile, cluster: Cluster, schemes: Mapping[str, Scheme], *, has_gates: bool = True) -> Prediction:
    """One step in the long run: from the start of backward to the next one's."""
    now_s = 0.0
    released: list[tuple[float, _Transfer]] = []
    for layer in reversed(profile.layers):
        now_s += layer.backward_s + min(0.0, _find_extra_s(layer, cluster, schemes))
        for tensor in layer.tensors:
            released.append((now_s, _make_transfer(tensor, cluster, schemes[tensor.name], len(released))))
    _give_priorities(profile, {transfer.name: transfer for _, transfer in released}, schemes)
    arrivals_s = _run_link(released, cluster.latency_s)
    if not has_gates:
        now_s = max([now_s, *arrivals_s.values()])
    for layer in profile.layers:
        now_s = max([now_s, *(arrivals_s[tensor.name] for tensor in layer.tensors)])
        now_s += layer.forward_s + max(0.0, _find_extra_s(layer, cluster, schemes))
    return Prediction(now_s, arrivals_s)


def predict_alone(tensor: TensorProfile, scheme: Scheme, cluster: Cluster) -> float:
    """From a gradient to the mean of all, if nothing else were on its way."""
    transfer = _make_transfer(tensor, cluster, scheme, 0)
    arrival_s = _run_link([(0.0, transfer)], cluster.latency_s)[tensor.name]
    return arrival_s + max(0.0, find_extra_s(tensor, scheme, cluster))


def _find_extra_s(layer: LayerProfile, cluster: Cluster, schemes: Mapping[str, Scheme]) -> float:
    """What making this layer's gradients takes more than every worker needs for its own; negative if less."""
    return sum(find_extra_s(tensor, schemes[tensor.name], cluster) for tensor in layer.tensors)


def find_extra_s(tensor: TensorProfile, scheme: Scheme, cluster: Cluster) -> float:
    """The same of one tensor, on the training device."""
    if scheme is Scheme.ROWS:
        return tensor.rows * tensor.shape[1] * tensor.itemsize * cluster.workers / cluster.add_bytes_per_s
    if scheme not in (Scheme.FACTORS, Scheme.FACTORS_TO_SHARD):
        return 0.0
    product_s = tensor.product_s
    if product_s is None:
        product_s = count_product_flops(tensor) / cluster.flops_per_s
    return product_s * (cluster.workers - 1) if scheme is Scheme.FACTORS else -product_s


def _make_transfer(tensor: TensorProfile, cluster: Cluster, scheme: Scheme, sequence: int) -> _Transfer:
    traffic = count_traffic(tensor, scheme, cluster.workers)
    rate = push_rate = cluster.bytes_per_s
    if scheme is Scheme.ALLREDUCE:
        # Predicted only where there is a process group.
        rate = push_rate = cluster.allreduce_bytes_per_s or cluster.bytes_per_s
    elif scheme is Scheme.DENSE:
        push_rate = min(rate, cluster.add_bytes_per_s)  # a shard adds while more comes in
    is_made_at_shard = scheme is Scheme.FACTORS_TO_SHARD
    pause_s = count_product_flops(tensor) / cluster.shard_flops_per_s if is_made_at_shard else 0.0
    phases = [size / speed for size, speed in ((traffic.push_bytes, push_rate), (traffic.answer_bytes, rate)) if size]
    return _Transfer(0, sequence, tensor.name, phases, pause_s)


def _give_priorities(profile: Profile, transfers: Mapping[str, _Transfer], schemes: Mapping[str, Scheme]) -> None:
    """The order of the forward pass; torch's own collectives run in the order in which they were called."""
    for place, tensor in enumerate(profile.tensors):
        is_ours = schemes[tensor.name] is not Scheme.ALLREDUCE
        transfers[tensor.name].priority = place if is_ours else len(transfers)


def _run_link(released: list[tuple[float, _Transfer]], latency_s: float) -> dict[str, float]:
    """When each transfer has ended.  The most urgent one runs; a more urgent one interrupts it."""
    ties = itertools.count()
    coming = [(release_s, next(ties), transfer) for release_s, transfer in released]
    heapq.heapify(coming)
    waiting: list[_Transfer] = []
    ends: dict[str, float] = {}
    now_s = 0.0
    while coming or waiting:
        while coming and (not waiting or coming[0][0] <= now_s):
            release_s, _, transfer = heapq.heappop(coming)
            now_s = max(now_s, release_s)
            if transfer.left:
                heapq.heappush(waiting, transfer)
            else:
                ends[transfer.name] = release_s
        if not waiting:
            continue
        transfer = waiting[0]
        end_s, next_s = now_s + transfer.left[0], coming[0][0] if coming else float("inf")
        until_s = min(end_s, next_s)
        transfer.left[0] -= until_s - now_s
        now_s = until_s
        # By the clock as well: late in a long step a rest that is no longer seen in its digits would never end.
        if end_s <= next_s or transfer.left[0] <= 1e-12:
            heapq.heappop(waiting)
            transfer.left.pop(0)
            if transfer.left:
                heapq.heappush(coming, (now_s + latency_s + transfer.pause_s, next(ties), transfer))
            else:
                ends[transfer.name] = now_s + latency_s
    return ends
