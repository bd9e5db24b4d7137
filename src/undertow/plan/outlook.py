"""When to plan, and with which figures: what all ranks have measured becomes one plan.

In: reports of all ranks, in rank order, every few passes.  Out: a plan, whenever the figures that it
stands on have really changed.  Pure: the same reports give the same plan on every rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from undertow.errors import DriftError
from undertow.plan.cluster import Cluster
from undertow.plan.coordinator import Coordinator
from undertow.plan.planner import AUTO, make_plan
from undertow.plan.profile import Kind, LayerProfile, Profile, TensorProfile

# Figures within these factors of those that the plan was made with are left as they are.
SAME_ROWS = 1.25
SAME_RATE = 1.6
ANOTHER_WAY = "some of its gradient comes another way than through its layer"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has to say."""

    has_gates: bool = True  # the next forward pass starts before all gradients are there
    bytes_per_s: float | None = None  # of its link while it trained, if ever something had to wait
    allreduce_bytes_per_s: float | None = None  # the same of torch's process group, if it was used
    arithmetic: str = ""  # what decides about the bits of a product
    cluster: Cluster | None = None  # as it measured at the start, said once
    profile: Profile | None = None  # said once, and again for parameters that came later
    rows: dict[str, float] = {}  # K of each tensor that has one, per pass
    digests: dict[str, int] = {}  # of gradients that this rank has made out of everybody's parts
    inputs: int | None = None  # a digest of the last forward's
    obstacles: dict[str, str] = {}  # why tensors have no other way any more than as a whole, since the profile was made
    wholes: tuple[str, ...] = ()  # of which some gradient came another way than in parts


class Outlook:
    """Of one model, on one rank like on any other."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._cluster: Cluster | None = None
        self._profile: Profile | None = None
        self._spoiled: dict[str, str] = {}  # why tensors have no other way than as a whole, as it turned out
        self._is_stale = False  # something was said that no plan knows of
        self.wants_cluster = False  # measured and reported again
        self._planned_rows: dict[str, float] = {}
        self._planned: Cluster | None = None

    def consider(self, reports: Sequence[Report]) -> Coordinator | None:
        """A new plan and what it stands on, if it takes one."""
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
        self.wants_cluster = not is_measured_again and self._has_lost_sight(before, reports)
        self._is_stale, self._planned = False, cluster
        self._planned_rows = _list_rows(self._profile)
        profile = exclude(self._profile, self._spoiled)
        has_gates = all(report.has_gates for report in reports)
        return Coordinator(make_plan(profile, cluster, policy=self._policy, has_gates=has_gates), profile, cluster)

    def _learn(self, reports: Sequence[Report]) -> bool:
        """Whether links have been measured."""
        clusters = [report.cluster for report in reports if report.cluster is not None]
        if len(clusters) == len(reports):
            self._cluster, self._is_stale = merge_clusters(clusters), True
        profiles = [report.profile for report in reports if report.profile is not None]
        if len(profiles) == len(reports):
            self._profile, self._is_stale = merge_profiles(profiles), True
        spoiled = {name: ANOTHER_WAY for report in reports for name in report.wholes}
        for report in reports:
            spoiled |= report.obstacles
        self._is_stale |= not spoiled.keys() <= self._spoiled.keys()
        self._spoiled = spoiled | self._spoiled
        return len(clusters) == len(reports)

    def _has_lost_sight(self, before: Cluster, reports: Sequence[Report]) -> bool:
        """How a process group that is not in use does on a link that has changed, nobody knows."""
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


def check_digests(reports: Sequence[Report]) -> None:
    """`DriftError` if ranks make different gradients out of the same parts: they would drift apart unnoticed."""
    for name, digest in reports[0].digests.items():
        for rank, report in enumerate(reports):
            if report.digests.get(name, digest) != digest:
                raise DriftError(
                    f"ranks 0 and {rank} make different gradients of {name!r} out of the same factors: their "
                    "processors, libraries or numbers of threads differ. Set UNDERTOW_PLAN to dense or "
                    "factors-to-shard, and start again from a checkpoint"
                )


def multiply_alike(reports: Sequence[Report]) -> bool:
    """Whether a product has the same bits on all ranks, as far as can be told before."""
    return len({report.arithmetic for report in reports}) == 1


def merge_rows(reports: Sequence[Report]) -> dict[str, float]:
    """K of an average rank: an empty batch counts, too."""
    names = dict.fromkeys(name for report in reports for name in report.rows)
    return {name: statistics.fmean(report.rows.get(name, 0.0) for report in reports) for name in names}


def follow_rates(cluster: Cluster, reports: Sequence[Report], *, trusts: bool = False) -> Cluster:
    """The cluster with what its links carry now.

    Where only one of the two ways was seen, the other is as much faster or slower than before.  If that is much, it is
    another link, on which a way that is not in use is not believed to be the faster one, unless it was just measured.
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


def _follow(rate: float, seen_before: float, seen: float, trusts: bool) -> float:
    followed = rate * seen / seen_before
    return followed if trusts or _is_same(seen, seen_before, SAME_RATE) else min(followed, seen)


def merge_clusters(clusters: Sequence[Cluster]) -> Cluster:
    """As the slowest of them."""

    def slowest(name: str) -> float:
        return min(float(getattr(cluster, name)) for cluster in clusters)

    allreduce = [cluster.allreduce_bytes_per_s for cluster in clusters]
    known = [rate for rate in allreduce if rate is not None]
    return Cluster(
        workers=clusters[0].workers,
        bytes_per_s=slowest("bytes_per_s"),
        latency_s=max(cluster.latency_s for cluster in clusters),
        flops_per_s=slowest("flops_per_s"),
        shard_flops_per_s=slowest("shard_flops_per_s"),
        add_bytes_per_s=slowest("add_bytes_per_s"),
        allreduce_bytes_per_s=min(known) if len(known) == len(allreduce) else None,
    )


def merge_profiles(profiles: Sequence[Profile]) -> Profile:
    """Layers as rank 0 has them, with times of an average rank.

    A tensor is of a kind only where all say so; if some cannot say so for a reason, that is the reason.
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
                        kind=Kind.OTHER,
                        obstacle=obstacles.get(tensor.name, "ranks hold it in different layers"),
                    )
                    for tensor in layer.tensors
                ),
                forward_s=statistics.fmean(one.forward_s for one in same),
                backward_s=statistics.fmean(one.backward_s for one in same),
            )
        )
    return Profile(layers=tuple(layers))


def change_rows(profile: Profile, rows: dict[str, float]) -> Profile:
    return _change_tensors(
        profile,
        lambda tensor: msgspec.structs.replace(tensor, rows=rows[tensor.name]) if tensor.name in rows else tensor,
    )


def exclude(profile: Profile, spoiled: Mapping[str, str]) -> Profile:
    """Let these tensors have no other way than as a whole, for the reasons given."""
    return _change_tensors(
        profile,
        lambda tensor: (
            msgspec.structs.replace(tensor, kind=Kind.OTHER, obstacle=spoiled[tensor.name])
            if tensor.name in spoiled
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
    return {tensor.name: tensor.rows for tensor in profile.tensors if tensor.kind in (Kind.LINEAR, Kind.EMBEDDING)}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value]  # 0: it stood still, which says nothing of a link
    return statistics.fmean(known) if known else None


def _is_same(one: float, other: float, factor: float) -> bool:
    return max(one, other) <= factor * min(one, other)
