"""The predicted time of a step under a choice of schemes, by which the planner compares plans.

In: a profile, a cluster, one scheme per tensor.  Out: seconds.
All workers do the same at the same time, so one worker represents all: a device that computes, and a link that always
carries the most urgent tensor.  With gates, each layer of the next forward pass starts as soon as its own tensors have
arrived; without gates, the forward pass starts when all tensors have arrived.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from undertow.plan.cluster import Cluster
from undertow.plan.profile import LayerProfile, Profile, TensorProfile
from undertow.plan.scheme import Scheme, count_product_flops, count_server_flops, count_traffic


@dataclass(order=True)
class _Transfer:
    """Transfer of one tensor."""

    priority: int
    sequence: int
    name: str = field(compare=False)
    left: list[float] = field(compare=False)  # seconds on the link for each remaining phase
    pause_s: float = field(compare=False)  # time at the server between two phases


def predict(profile: Profile, cluster: Cluster, schemes: Mapping[str, Scheme], *, has_gates: bool = True) -> float:
    """Predict the seconds of a step in steady state, from the start of one backward pass to the start of the next."""
    now_s = 0.0
    released: list[tuple[float, _Transfer]] = []
    places = {tensor.name: place for place, tensor in enumerate(profile.tensors)}
    for layer in reversed(profile.layers):
        now_s += layer.backward_s + min(0.0, _find_extra_s(layer, cluster, schemes))
        for tensor in layer.tensors:
            transfer = _make_transfer(tensor, cluster, schemes[tensor.name], len(released))
            # As the forward pass needs them, except torch's collectives, which run in the order of calls.
            is_ours = schemes[tensor.name] is not Scheme.ALLREDUCE
            transfer.priority = places[tensor.name] if is_ours else len(places)
            released.append((now_s, transfer))
    arrivals_s = _run_link(released, cluster.latency_s)
    if not has_gates:
        now_s = max([now_s, *arrivals_s.values()])
    for layer in profile.layers:
        now_s = max([now_s, *(arrivals_s[tensor.name] for tensor in layer.tensors)])
        now_s += layer.forward_s + max(0.0, _find_extra_s(layer, cluster, schemes))
    return now_s


def predict_alone(tensor: TensorProfile, scheme: Scheme, cluster: Cluster) -> float:
    """Predict the time from a tensor's gradient to its mean, if nothing else used the links."""
    transfer = _make_transfer(tensor, cluster, scheme, 0)
    arrival_s = _run_link([(0.0, transfer)], cluster.latency_s)[tensor.name]
    return arrival_s + max(0.0, find_extra_s(tensor, scheme, cluster))


def _find_extra_s(layer: LayerProfile, cluster: Cluster, schemes: Mapping[str, Scheme]) -> float:
    """Return the compute time that the schemes of a layer's tensors add; negative if they save some."""
    return sum(find_extra_s(tensor, schemes[tensor.name], cluster) for tensor in layer.tensors)


def find_extra_s(tensor: TensorProfile, scheme: Scheme, cluster: Cluster) -> float:
    """Return the time on the training device that a tensor's scheme adds; negative if it saves some."""
    if scheme is Scheme.ROWS:
        return tensor.rows * tensor.shape[1] * tensor.itemsize * cluster.workers / cluster.add_bytes_per_s
    if scheme not in (Scheme.FACTORS, Scheme.FACTORS_TO_SHARD):
        return 0.0
    product_s = tensor.product_s
    if product_s is None:
        product_s = count_product_flops(tensor) / cluster.flops_per_s
    return product_s * (cluster.workers - 1) if scheme is Scheme.FACTORS else -product_s


def _make_transfer(tensor: TensorProfile, cluster: Cluster, scheme: Scheme, sequence: int) -> _Transfer:
    traffic = count_traffic(tensor, scheme, workers=cluster.workers, servers=cluster.servers)
    rate = push_rate = cluster.bytes_per_s
    if scheme is Scheme.ALLREDUCE:
        # Without a process group the scheme is never predicted.
        rate = push_rate = cluster.allreduce_bytes_per_s or cluster.bytes_per_s
    elif scheme is Scheme.DENSE:
        push_rate = min(rate, cluster.add_bytes_per_s)  # a shard adds while it receives
    pause_s = 0.0
    if scheme is Scheme.FACTORS_TO_SHARD:
        flops = count_server_flops(tensor, workers=cluster.workers, servers=cluster.servers)
        pause_s = flops / cluster.shard_flops_per_s
    phases = [size / speed for size, speed in ((traffic.push_bytes, push_rate), (traffic.answer_bytes, rate)) if size]
    return _Transfer(0, sequence, tensor.name, phases, pause_s)


def _run_link(released: list[tuple[float, _Transfer]], latency_s: float) -> dict[str, float]:
    """Return the time at which each transfer ends.  The most urgent one runs; a more urgent one interrupts it."""
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
        # Times are compared too: late in a long step, a remainder below the resolution of the clock would never end.
        if end_s <= next_s or transfer.left[0] <= 1e-12:
            heapq.heappop(waiting)
            transfer.left.pop(0)
            if transfer.left:
                heapq.heappush(coming, (now_s + latency_s + transfer.pause_s, next(ties), transfer))
            else:
                ends[transfer.name] = now_s + latency_s
    return ends
