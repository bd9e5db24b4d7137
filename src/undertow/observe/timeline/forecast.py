"""Compares the prediction of a run with its measurement, and predicts the same model on other links.

In: the profile and cluster of the plan in a trace, measurements.  Out: predictions, to be used only if the prediction
of the run itself is accurate enough.
For a run without a plan, profile and cluster are estimated from the trace, which needs the mean times of layers and the
bytes of their tensors.  The estimates are good enough to predict a step on another link, but not to make a plan.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping

import msgspec

from undertow.observe.timeline.run_trace import RankTrace, SpanKind, Trace
from undertow.plan.cluster import PAYLOAD_SHARE, Cluster
from undertow.plan.predict import predict
from undertow.plan.profile import LayerProfile, Profile, TensorProfile
from undertow.plan.scheme import Scheme
from undertow.tracing.events import find_layer

# A step within this factor of the step on the fastest link hides everything that can be hidden.
HIDDEN = 1.02
# Predictions for other links are used only if the prediction of the measured run is off by at most this fraction.
BELIEVABLE = 0.25
SLOWEST_BITS_PER_S, FASTEST_BITS_PER_S = 1e8, 8e11
# The bandwidth is searched to within this factor.
PRECISION = 1.03
# The value does not matter, because dense schemes multiply nothing.
_FLOPS_PER_S = 1e12


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The plan's figures beside the measured ones, which are medians."""

    predicted_step_s: float
    measured_step_s: float
    predicted_compute_s: float
    measured_compute_s: float


class Forecaster:
    """Predictor of the steps of one model on other links, with the same schemes."""

    def __init__(
        self, profile: Profile, cluster: Cluster, schemes: Mapping[str, Scheme], *, measured_s: float, has_gates: bool
    ) -> None:
        names = {tensor.name for tensor in profile.tensors}
        self._profile = profile
        self._cluster = cluster
        self._schemes = {name: schemes.get(name, Scheme.DENSE) for name in names}
        self._measured_s = measured_s
        self._has_gates = has_gates

    @property
    def compute_s(self) -> float:
        return self._profile.compute_s

    @property
    def error(self) -> float:
        return self.predict_s() / self._measured_s - 1

    @property
    def is_believable(self) -> bool:
        return abs(self.error) <= BELIEVABLE

    @property
    def bits_per_s(self) -> float:
        """Return the nominal bandwidth of the link, headers included."""
        return self._cluster.bytes_per_s / PAYLOAD_SHARE * 8

    def predict_s(self, *, bits_per_s: float | None = None, has_gates: bool | None = None) -> float:
        """Predict a step on links of this bandwidth, or on the actual links."""
        cluster = self._cluster if bits_per_s is None else self._scale_links(bits_per_s)
        gates = self._has_gates if has_gates is None else has_gates
        return predict(self._profile, cluster, self._schemes, has_gates=gates)

    @property
    def floor_s(self) -> float:
        """Predict a step on the fastest link: compute, and what no bandwidth shortens (latency, sums, products)."""
        return max(self.compute_s, self.predict_s(bits_per_s=FASTEST_BITS_PER_S))

    def find_bandwidth(self) -> float:
        """Return the least bandwidth, in bits per second, that hides everything a faster link can hide."""
        enough_s = HIDDEN * self.floor_s
        low, high = SLOWEST_BITS_PER_S, FASTEST_BITS_PER_S
        while high / low > PRECISION:
            middle = (low * high) ** 0.5
            is_enough = self.predict_s(bits_per_s=middle) <= enough_s
            low, high = (low, middle) if is_enough else (middle, high)
        return high

    def _scale_links(self, bits_per_s: float) -> Cluster:
        factor = bits_per_s / self.bits_per_s
        allreduce_bytes_per_s = self._cluster.allreduce_bytes_per_s
        return msgspec.structs.replace(
            self._cluster,
            bytes_per_s=self._cluster.bytes_per_s * factor,
            allreduce_bytes_per_s=None if allreduce_bytes_per_s is None else allreduce_bytes_per_s * factor,
        )


def guess_cluster(trace: Trace) -> Cluster | None:
    """Return a cluster in which all links are as slow as the slowest one, or None if no link was measured."""
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
    """Return a profile with layers in the order of their first forward, or None if the trace lacks times or bytes."""
    rank = next(iter(trace.ranks.values()))
    forward_ns, backward_ns = (_find_means(rank, kind, steps) for kind in (SpanKind.FORWARD, SpanKind.BACKWARD))
    by_layer = _group_by_layer(_find_sizes(trace, steps), forward_ns)
    if not forward_ns or not any(by_layer.values()):
        return None
    return Profile(
        layers=tuple(
            LayerProfile(
                name=layer,
                tensors=tuple(
                    TensorProfile(name=name, shape=(size,), itemsize=1)
                    for name, size in by_layer.get(layer, {}).items()
                ),
                forward_s=forward_ns[layer] / 1e9,
                backward_s=backward_ns.get(layer, 0.0) / 1e9,
            )
            for layer in forward_ns
        )
    )


def _find_means(rank: RankTrace, kind: SpanKind, steps: Collection[int]) -> dict[str, float]:
    """Return the mean time per step of each layer, summed over its uses and without waits."""
    lengths: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    waits = [span for span in rank.thread if span.cat in (SpanKind.WAIT, SpanKind.APPLY, SpanKind.TURN_WAIT)]
    index = 0
    for span in rank.thread:
        if span.cat != kind or span.step not in steps:
            continue
        while index < len(waits) and waits[index].end_ns <= span.begin_ns:
            index += 1
        inside_ns = 0
        for wait in waits[index:]:
            if wait.begin_ns >= span.end_ns:
                break
            inside_ns += min(wait.end_ns, span.end_ns) - max(wait.begin_ns, span.begin_ns)
        lengths[span.name][span.step] += max(0, span.end_ns - span.begin_ns - inside_ns)
    return {name: statistics.fmean(by_step.values()) for name, by_step in lengths.items()}


def _find_sizes(trace: Trace, steps: Collection[int]) -> dict[str, int]:
    """Return the bytes of each tensor, which are those of its slices, each counted once."""
    slices: dict[int, tuple[str, int]] = {}
    for rank in trace.ranks.values():
        for wire in rank.outs:
            if wire.kind == "push" and wire.step in steps and wire.tensors:
                slices[wire.key] = wire.tensors[0], wire.size_bytes
    sizes: dict[str, int] = defaultdict(int)
    for name, size_bytes in slices.values():
        sizes[name] += size_bytes
    return sizes


def _group_by_layer(sizes: dict[str, int], layers: Collection[str]) -> dict[str, dict[str, int]]:
    """Return the tensors of each layer, without those that belong to no layer (sent by undertow itself)."""
    by_layer: dict[str, dict[str, int]] = defaultdict(dict)
    for name, size_bytes in sizes.items():
        layer = find_layer(name)
        if layer in layers:
            by_layer[layer][name] = size_bytes
    return by_layer
