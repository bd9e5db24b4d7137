"""The replanner: makes a plan from the measurements of all ranks, and decides when to plan again.

In: every few passes, reports of all ranks in rank order.  Out: a plan, whenever the figures behind the last one have
changed enough.  Pure: the same reports give the same plan on every rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from undertow.errors import DriftError
from undertow.plan.active_plan import ActivePlan
from undertow.plan.cluster import Cluster
from undertow.plan.planner import AUTO, make_plan
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile

# Changes within these factors do not cause a new plan.
SAME_ROWS = 1.25
SAME_RATE = 1.6
OUTSIDE_LAYER = "part of its gradient does not come from its layer's backward"
# Number of backward passes between reports; a new plan is made in the pass after a report.
PASSES = 4


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one rank since its last report."""

    has_gates: bool = True  # whether the next forward pass starts before all gradients have arrived
    bytes_per_s: float | None = None  # rate of its link during training; None if nothing ever had to wait
    allreduce_bytes_per_s: float | None = None  # rate of torch's process group, if it was used
    arithmetic: str = ""  # processor, library and threads, which determine the bits of a product
    cluster: Cluster | None = None  # measured at the start and reported once
    profile: Profile | None = None  # reported once, and again when parameters were added
    rows: dict[str, float] = {}  # K of each tensor that has one, per pass
    digests: dict[str, int] = {}  # digests of gradients that this rank has computed from the factors of all ranks
    inputs: int | None = None  # a digest of the last forward's inputs
    obstacles: dict[str, str] = {}  # why tensors can now only be dense although their profile suggests otherwise
    wholes: tuple[str, ...] = ()  # tensors with a gradient that was sent whole, not as factors


class Replanner:
    """Decisions for one model on when to plan again, the same on every rank."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._cluster: Cluster | None = None
        self._profile: Profile | None = None
        self._only_dense: dict[str, str] = {}  # tensor -> why it turned out that it can only be dense
        self._is_stale = False  # reports have brought figures that the plan is not based on
        self.wants_cluster = False  # whether links should be measured and reported again
        self._planned_rows: dict[str, float] = {}
        self._planned: Cluster | None = None

    def consider(self, reports: Sequence[RankReport]) -> ActivePlan | None:
        """Return a new plan with its figures; None if the plan in force is still good."""
        self.wants_cluster = False
        is_measured = self._learn(reports)
        if self._profile is None or self._cluster is None:
            return None
        rows = merge_rows(reports)
        if rows:
            self._profile = change_rows(self._profile, rows)
        alike = multiply_alike(reports)
        self._is_stale |= alike is not self._cluster.multiplies_alike
        self._cluster = msgspec.structs.replace(self._cluster, multiplies_alike=alike)
        before, is_measured_again = self._planned or self._cluster, is_measured and self._planned is not None
        cluster = self._cluster = follow_rates(self._cluster, reports, trusts=is_measured_again)
        if not self._is_stale and self._has_same_rates(cluster) and self._has_same_rows():
            return None
        self.wants_cluster = not is_measured_again and self._has_outdated_rates(before, reports)
        self._is_stale, self._planned = False, cluster
        self._planned_rows = _list_rows(self._profile)
        profile = restrict_to_dense(self._profile, self._only_dense)
        has_gates = all(report.has_gates for report in reports)
        return ActivePlan(make_plan(profile, cluster, policy=self._policy, has_gates=has_gates), profile, cluster)

    def _learn(self, reports: Sequence[RankReport]) -> bool:
        """Adopt the figures of reports; return whether the links have been measured."""
        clusters = [report.cluster for report in reports if report.cluster is not None]
        if len(clusters) == len(reports):
            self._cluster, self._is_stale = merge_clusters(clusters), True
        profiles = [report.profile for report in reports if report.profile is not None]
        if len(profiles) == len(reports):
            self._profile, self._is_stale = merge_profiles(profiles), True
        only_dense = {name: OUTSIDE_LAYER for report in reports for name in report.wholes}
        for report in reports:
            only_dense |= report.obstacles
        self._is_stale |= not only_dense.keys() <= self._only_dense.keys()
        self._only_dense = only_dense | self._only_dense
        return len(clusters) == len(reports)

    def _has_outdated_rates(self, before: Cluster, reports: Sequence[RankReport]) -> bool:
        """Whether the link has changed while torch's process group, an alternative, was not in use."""
        assert self._cluster is not None
        has_choice = self._policy == AUTO and before.allreduce_bytes_per_s is not None
        is_idle = all(report.allreduce_bytes_per_s is None for report in reports)
        return has_choice and is_idle and not _is_same(self._cluster.bytes_per_s, before.bytes_per_s, SAME_RATE)

    def _has_same_rates(self, cluster: Cluster) -> bool:
        assert self._planned is not None
        ours = _is_same(cluster.bytes_per_s, self._planned.bytes_per_s, SAME_RATE)
        return ours and _is_same(
            cluster.allreduce_bytes_per_s or 0.0, self._planned.allreduce_bytes_per_s or 0.0, SAME_RATE
        )

    def _has_same_rows(self) -> bool:
        assert self._profile is not None
        rows = _list_rows(self._profile)
        return rows.keys() == self._planned_rows.keys() and all(
            _is_same(rows[name], self._planned_rows[name], SAME_ROWS) for name in rows
        )


def check_digests(reports: Sequence[RankReport]) -> None:
    """Raise `DriftError` if ranks compute different gradients from the same factors, so that replicas would differ."""
    for name, digest in reports[0].digests.items():
        for rank, report in enumerate(reports):
            if report.digests.get(name, digest) != digest:
                raise DriftError(
                    f"ranks 0 and {rank} compute different gradients of {name!r} from the same factors: their "
                    "processors, libraries or numbers of threads differ. Set UNDERTOW_PLAN to dense or "
                    "factors-to-shard, and start again from a checkpoint",
                    tensor=name,
                    ranks=(0, rank),
                )


def multiply_alike(reports: Sequence[RankReport]) -> bool:
    """Whether a product has the same bits on all ranks, as far as is known in advance."""
    return len({report.arithmetic for report in reports}) == 1


def merge_rows(reports: Sequence[RankReport]) -> dict[str, float]:
    """Return the mean K of all ranks, in which an empty batch counts as 0."""
    names = dict.fromkeys(name for report in reports for name in report.rows)
    return {name: statistics.fmean(report.rows.get(name, 0.0) for report in reports) for name in names}


def follow_rates(cluster: Cluster, reports: Sequence[RankReport], *, trusts: bool = False) -> Cluster:
    """Return the cluster with the current rates of its links.

    The rates of undertow and of torch's process group are observed only while they are in use.  A rate that was not
    observed is assumed to have changed by the same factor as the other one.  If that factor is large, the link itself
    has changed; then the system that is not in use is assumed to be no faster than the other, unless it was just
    measured.
    """
    ours = _mean(report.bytes_per_s for report in reports)
    torchs = _mean(report.allreduce_bytes_per_s for report in reports)
    ours_before, torchs_before = cluster.bytes_per_s, cluster.allreduce_bytes_per_s
    if torchs_before is None:
        return msgspec.structs.replace(cluster, bytes_per_s=ours or ours_before)
    if ours is None:
        ours = ours_before if torchs is None else _follow(ours_before, torchs_before, torchs, trusts)
    elif torchs is None:
        torchs = _follow(torchs_before, ours_before, ours, trusts)
    return msgspec.structs.replace(cluster, bytes_per_s=ours, allreduce_bytes_per_s=torchs or torchs_before)


def _follow(rate: float, observed_before: float, observed: float, trusts: bool) -> float:
    followed = rate * observed / observed_before
    return followed if trusts or _is_same(observed, observed_before, SAME_RATE) else min(followed, observed)


def merge_clusters(clusters: Sequence[Cluster]) -> Cluster:
    """Return a cluster whose hosts are all as slow as the slowest."""

    def slowest(name: str) -> float:
        return min(float(getattr(cluster, name)) for cluster in clusters)

    allreduce = [cluster.allreduce_bytes_per_s for cluster in clusters]
    known = [rate for rate in allreduce if rate is not None]
    return Cluster(
        workers=clusters[0].workers,
        servers=clusters[0].servers,
        bytes_per_s=slowest("bytes_per_s"),
        latency_s=max(cluster.latency_s for cluster in clusters),
        flops_per_s=slowest("flops_per_s"),
        shard_flops_per_s=slowest("shard_flops_per_s"),
        add_bytes_per_s=slowest("add_bytes_per_s"),
        allreduce_bytes_per_s=min(known) if len(known) == len(allreduce) else None,
    )


def merge_profiles(profiles: Sequence[Profile]) -> Profile:
    """Return the layers of rank 0 with the mean times of all ranks.

    A tensor keeps its kind only if all ranks report the same kind; a rank that reports another may give the reason.
    """
    first, *others = profiles
    by_name = [{layer.name: layer for layer in profile.layers} for profile in others]
    kinds = [{tensor.name: tensor.kind for tensor in profile.tensors} for profile in others]
    obstacles = {tensor.name: tensor.obstacle for profile in profiles for tensor in profile.tensors if tensor.obstacle}
    layers = []
    for layer in first.layers:
        same = [layer, *(known[layer.name] for known in by_name if layer.name in known)]
        layers.append(
            LayerProfile(
                name=layer.name,
                tensors=tuple(
                    tensor
                    if all(known.get(tensor.name) is tensor.kind for known in kinds)
                    else msgspec.structs.replace(
                        tensor,
                        kind=LayerKind.OTHER,
                        obstacle=obstacles.get(tensor.name, "ranks have it in different layers"),
                    )
                    for tensor in layer.tensors
                ),
                forward_s=statistics.fmean(one.forward_s for one in same),
                backward_s=statistics.fmean(one.backward_s for one in same),
            )
        )
    return Profile(layers=tuple(layers))


def change_rows(profile: Profile, rows: dict[str, float]) -> Profile:
    """Return the profile with these numbers of rows."""
    return _change_tensors(
        profile,
        lambda tensor: msgspec.structs.replace(tensor, rows=rows[tensor.name]) if tensor.name in rows else tensor,
    )


def restrict_to_dense(profile: Profile, reasons: Mapping[str, str]) -> Profile:
    """Return the profile with these tensors dense, for the reasons given."""
    return _change_tensors(
        profile,
        lambda tensor: (
            msgspec.structs.replace(tensor, kind=LayerKind.OTHER, obstacle=reasons[tensor.name])
            if tensor.name in reasons
            else tensor
        ),
    )


def _change_tensors(profile: Profile, change: Callable[[TensorProfile], TensorProfile]) -> Profile:
    return Profile(
        layers=tuple(
            msgspec.structs.replace(layer, tensors=tuple(map(change, layer.tensors))) for layer in profile.layers
        )
    )


def _list_rows(profile: Profile) -> dict[str, float]:
    return {
        tensor.name: tensor.rows for tensor in profile.tensors if tensor.kind in (LayerKind.LINEAR, LayerKind.EMBEDDING)
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value]  # 0 means that nothing was received, which tells nothing about a link
    return statistics.fmean(known) if known else None


def _is_same(one: float, other: float, factor: float) -> bool:
    return max(one, other) <= factor * min(one, other)
