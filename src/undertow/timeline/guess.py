"""A profile of the model, made of the trace itself: for runs without a plan.

In: a trace, its counted steps.  Out: layers with their mean times and the bytes of their tensors, or None if the trace
does not tell enough.  Good enough to ask how long a step would take on another link; no plan is made of it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection

from undertow.plan.cluster import Cluster
from undertow.plan.profile import LayerProfile, Profile, TensorProfile
from undertow.timeline.model import Lane, RankTrace, Trace
from undertow.trace.notes import find_layer

# Nobody multiplies in a dense plan: any figure will do.
_FLOPS_PER_S = 1e12


def guess_cluster(trace: Trace) -> Cluster | None:
    """As the slowest of its links."""
    rates = [rank.link_bytes_per_s for rank in trace.ranks.values() if rank.link_bytes_per_s]
    if not rates:
        return None
    return Cluster(
        workers=trace.world_size,
        bytes_per_s=min(rates),
        flops_per_s=_FLOPS_PER_S,
        shard_flops_per_s=_FLOPS_PER_S,
    )


def guess_profile(trace: Trace, steps: Collection[int]) -> Profile | None:
    """Layers in the order of their first forward."""
    rank = next(iter(trace.ranks.values()))
    forward_ns, backward_ns = (_find_means(rank, lane, steps) for lane in (Lane.FORWARD, Lane.BACKWARD))
    homes = _find_homes(_find_sizes(trace, steps), forward_ns)
    if not forward_ns or not any(homes.values()):
        return None
    return Profile(
        layers=tuple(
            LayerProfile(
                name=layer,
                tensors=tuple(
                    TensorProfile(name=name, shape=(size,), itemsize=1) for name, size in homes.get(layer, {}).items()
                ),
                forward_s=forward_ns[layer] / 1e9,
                backward_s=backward_ns.get(layer, 0.0) / 1e9,
            )
            for layer in forward_ns
        )
    )


def _find_means(rank: RankTrace, lane: Lane, steps: Collection[int]) -> dict[str, float]:
    """Per step: a layer that is used twice takes both times.  What it waited for inside is not its own time."""
    lengths: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    waits = [span for span in rank.lane if span.cat in (Lane.WAIT, Lane.APPLY, Lane.TURN_WAIT)]
    place = 0
    for span in rank.lane:
        if span.cat != lane or span.step not in steps:
            continue
        while place < len(waits) and waits[place].end_ns <= span.begin_ns:
            place += 1
        inside_ns = 0
        for wait in waits[place:]:
            if wait.begin_ns >= span.end_ns:
                break
            inside_ns += min(wait.end_ns, span.end_ns) - max(wait.begin_ns, span.begin_ns)
        lengths[span.name][span.step] += max(0, span.end_ns - span.begin_ns - inside_ns)
    return {name: statistics.fmean(by_step.values()) for name, by_step in lengths.items()}


def _find_sizes(trace: Trace, steps: Collection[int]) -> dict[str, int]:
    """Bytes of what travels under a tensor's name: of each of its slices once."""
    slices: dict[int, tuple[str, int]] = {}
    for rank in trace.ranks.values():
        for wire in rank.outs:
            if wire.kind == "push" and wire.step in steps and wire.tensors:
                slices[wire.key] = wire.tensors[0], wire.size_bytes
    sizes: dict[str, int] = defaultdict(int)
    for name, size_bytes in slices.values():
        sizes[name] += size_bytes
    return sizes


def _find_homes(sizes: dict[str, int], layers: Collection[str]) -> dict[str, dict[str, int]]:
    """The tensors of each layer; those of none (undertow's own) are left out."""
    homes: dict[str, dict[str, int]] = defaultdict(dict)
    for name, size_bytes in sizes.items():
        layer = find_layer(name)
        if layer in layers:
            homes[layer][name] = size_bytes
    return homes
