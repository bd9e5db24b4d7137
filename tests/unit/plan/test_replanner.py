"""Reports of all ranks become one plan, which is made again only when the figures behind it have changed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from undertow.errors import DriftError
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Plan
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile
from undertow.plan.replanner import (
    SAME_RATE,
    SAME_ROWS,
    RankReport,
    Replanner,
    change_rows,
    check_digests,
    follow_rates,
    merge_clusters,
    merge_profiles,
    merge_rows,
    restrict_to_dense,
)
from undertow.plan.scheme import Scheme

ROWS = 8.0
RATE = 1e8
WEIGHT, TABLE, BIAS = "top.weight", "words.weight", "top.bias"
CLUSTER = Cluster(workers=2, bytes_per_s=RATE, flops_per_s=1e12, shard_flops_per_s=1e9)


def make_profile(
    kind: LayerKind = LayerKind.LINEAR,
    *,
    forward_s: float = 0.001,
    backward_s: float = 0.002,
    names: tuple[str, ...] = (),
) -> Profile:
    """An embedding below a linear layer; rows are not known yet."""
    words = TensorProfile(name=TABLE, shape=(5000, 64), kind=LayerKind.EMBEDDING)
    top = (
        TensorProfile(name=WEIGHT, shape=(512, 512), kind=kind),
        TensorProfile(name=BIAS, shape=(512,), kind=LayerKind.OTHER),
        *(TensorProfile(name=name, shape=(512, 512), kind=LayerKind.LINEAR) for name in names),
    )
    return Profile(
        layers=(
            LayerProfile(name="words", tensors=(words,), forward_s=forward_s, backward_s=backward_s),
            LayerProfile(name="top", tensors=top, forward_s=2 * forward_s, backward_s=2 * backward_s),
        )
    )


def first_reports(workers: int = 2, *, rate: float | None = None, rows: float = ROWS) -> list[RankReport]:
    return [
        RankReport(bytes_per_s=rate, cluster=CLUSTER, profile=make_profile(), rows={WEIGHT: rows, TABLE: 100.0})
        for _ in range(workers)
    ]


def later_reports(workers: int = 2, *, rate: float | None = None, rows: float = ROWS) -> list[RankReport]:
    return [RankReport(bytes_per_s=rate, rows={WEIGHT: rows, TABLE: 100.0}) for _ in range(workers)]


def planned_replanner(*, rate: float | None = None, policy: str = "auto") -> Replanner:
    replanner = Replanner(policy)
    assert replanner.consider(first_reports(rate=rate)) is not None
    return replanner


def consider(replanner: Replanner, reports: Sequence[RankReport]) -> Plan | None:
    made = replanner.consider(reports)
    return None if made is None else made.plan


def reason(plan: Plan, tensor: str) -> str:
    return next(choice.reason for choice in plan.choices if choice.tensor == tensor)


# When a plan is made


def test_there_is_no_plan_before_all_have_said_what_they_are() -> None:
    replanner = Replanner("auto")
    whole, *_ = first_reports()
    assert consider(replanner, later_reports(rate=RATE)) is None
    assert consider(replanner, [whole, msgspec.structs.replace(whole, profile=None)]) is None
    assert consider(replanner, [whole, msgspec.structs.replace(whole, cluster=None)]) is not None


def test_cluster_and_profile_may_come_one_after_the_other() -> None:
    replanner = Replanner("auto")
    both = first_reports()
    assert consider(replanner, [msgspec.structs.replace(report, cluster=None) for report in both]) is None
    plan = consider(replanner, [msgspec.structs.replace(report, profile=None) for report in both])
    assert plan is not None
    assert plan.schemes == {TABLE: Scheme.ROWS, WEIGHT: Scheme.FACTORS, BIAS: Scheme.DENSE}


def test_the_same_figures_leave_the_plan_as_it_is() -> None:
    replanner = planned_replanner(rate=RATE)
    for _ in range(3):
        assert consider(replanner, later_reports(rate=RATE)) is None


@pytest.mark.parametrize("factor", [SAME_RATE, 1 / SAME_RATE])
def test_a_link_that_changes_is_planned_for_only_if_it_changes_much(factor: float) -> None:
    replanner = planned_replanner(rate=RATE)
    nearly = 0.99 if factor > 1 else 1.01
    assert consider(replanner, later_reports(rate=RATE * factor * nearly)) is None
    assert consider(replanner, later_reports(rate=RATE * factor / nearly)) is not None
    # That is what the next change is measured by.
    assert consider(replanner, later_reports(rate=RATE * factor)) is None
    assert consider(replanner, later_reports(rate=RATE)) is not None


@pytest.mark.parametrize("factor", [SAME_ROWS, 1 / SAME_ROWS])
def test_a_batch_that_changes_is_planned_for_only_if_it_changes_much(factor: float) -> None:
    replanner = planned_replanner()
    nearly = 0.99 if factor > 1 else 1.01
    assert consider(replanner, later_reports(rows=ROWS * factor * nearly)) is None
    assert consider(replanner, later_reports(rows=ROWS * factor / nearly)) is not None
    assert consider(replanner, later_reports(rows=ROWS * factor)) is None


def test_a_batch_that_creeps_is_noticed_in_the_end() -> None:
    """Each report is near the one before, but not near what the plan was made with."""
    replanner = planned_replanner()
    made = [consider(replanner, later_reports(rows=ROWS * 1.1**step)) is not None for step in range(1, 7)]
    assert made == [False, False, True, False, False, True]


def test_a_large_batch_makes_it_dense_and_a_small_one_factors_again() -> None:
    replanner = planned_replanner()
    large = consider(replanner, later_reports(rows=5000.0))
    assert large is not None
    assert large.schemes[WEIGHT] is Scheme.DENSE
    assert "K = 5000" in reason(large, WEIGHT)
    small = consider(replanner, later_reports(rows=ROWS))
    assert small is not None
    assert small.schemes[WEIGHT] is Scheme.FACTORS


def test_a_tensor_that_is_not_used_for_a_while_stays_as_it_was() -> None:
    replanner = planned_replanner()
    assert consider(replanner, [RankReport(rows={WEIGHT: ROWS})] * 2) is None
    assert consider(replanner, [RankReport()] * 2) is None
    assert consider(replanner, later_reports()) is None


def test_a_tensor_whose_rows_come_later_gets_a_plan_then() -> None:
    replanner = Replanner("auto")
    silent = [msgspec.structs.replace(report, rows={}) for report in first_reports()]
    plan = consider(replanner, silent)
    assert plan is not None
    assert set(plan.schemes.values()) == {Scheme.DENSE}
    plan = consider(replanner, later_reports())
    assert plan is not None
    assert plan.schemes[WEIGHT] is Scheme.FACTORS


def test_parameters_that_come_later_make_a_new_plan() -> None:
    replanner = planned_replanner()
    more = make_profile(names=("top.extra",))
    rows = {WEIGHT: ROWS, TABLE: 100.0, "top.extra": ROWS}
    plan = consider(replanner, [RankReport(profile=more, rows=rows)] * 2)
    assert plan is not None
    assert plan.schemes["top.extra"] is Scheme.FACTORS
    assert plan.schemes[WEIGHT] is Scheme.FACTORS
    assert consider(replanner, [RankReport(rows=rows)] * 2) is None


def test_all_ranks_make_the_same_plan_of_the_same_reports() -> None:
    ours, theirs = Replanner("auto"), Replanner("auto")
    for reports in (first_reports(rate=RATE), later_reports(rate=3 * RATE), later_reports(rows=900.0)):
        sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=RankReport) for report in reports]
        plan = consider(ours, reports)
        assert plan is not None
        assert plan == consider(theirs, sent)


@pytest.mark.parametrize("policy", ["dense", "factors", "poseidon"])
def test_the_policy_is_the_requested_one(policy: str) -> None:
    plan = consider(Replanner(policy), first_reports())
    assert plan is not None
    assert plan.policy == policy
    assert plan.schemes[WEIGHT] is (Scheme.DENSE if policy == "dense" else Scheme.FACTORS)


def test_one_rank_without_gates_is_one_too_many() -> None:
    """What is predicted without gates takes longer; if one rank waits for everything, all do."""

    def step_s(*has_gates: bool) -> float:
        reports = [
            msgspec.structs.replace(report, has_gates=gates)
            for report, gates in zip(first_reports(), has_gates, strict=True)
        ]
        plan = consider(Replanner("dense"), reports)
        assert plan is not None
        return plan.step_s

    assert step_s(True, False) == step_s(False, False)
    assert step_s(True, True) < step_s(True, False)


# Rates


def test_without_a_measured_rate_that_of_the_start_counts() -> None:
    def step_s(*rates: float | None) -> float:
        reports = [
            msgspec.structs.replace(report, bytes_per_s=rate)
            for report, rate in zip(first_reports(), rates, strict=True)
        ]
        plan = consider(Replanner("dense"), reports)
        assert plan is not None
        return plan.step_s

    assert step_s(None, None) == step_s(RATE, RATE)
    assert step_s(None, 3 * RATE) == step_s(3 * RATE, 3 * RATE)
    assert step_s(RATE, 3 * RATE) == step_s(2 * RATE, 2 * RATE)


def test_a_rate_that_is_not_known_any_more_changes_nothing() -> None:
    replanner = planned_replanner(rate=RATE)
    assert consider(replanner, later_reports(rate=10 * RATE)) is not None
    assert consider(replanner, later_reports(rate=None)) is None
    assert consider(replanner, later_reports(rate=10 * RATE)) is None


def test_a_rate_that_comes_late_is_compared_with_that_of_the_start() -> None:
    replanner = planned_replanner(rate=None)
    assert consider(replanner, later_reports(rate=1.1 * RATE)) is None
    assert consider(replanner, later_reports(rate=5 * RATE)) is not None


def with_process_group(reports: Sequence[RankReport], *, rate: float | None = None) -> list[RankReport]:
    """The same where torch's process group seemed to be five times as fast at the start, and one tensor is large."""
    promising, profile = msgspec.structs.replace(CLUSTER, allreduce_bytes_per_s=5 * RATE), make_profile(LayerKind.OTHER)
    return [
        msgspec.structs.replace(
            report,
            allreduce_bytes_per_s=rate,
            cluster=report.cluster and promising,
            profile=report.profile and profile,
        )
        for report in reports
    ]


def test_a_process_group_that_does_not_keep_its_promise_is_not_tried_again_and_again() -> None:
    """While it is not used nothing new is known of it: what was seen last stays."""
    replanner = Replanner("auto")
    plan = consider(replanner, with_process_group(first_reports(rate=RATE)))
    assert plan is not None
    assert plan.schemes[WEIGHT] is Scheme.ALLREDUCE
    plan = consider(replanner, with_process_group(later_reports(rate=RATE), rate=RATE / 5))
    assert plan is not None
    assert plan.schemes[WEIGHT] is Scheme.DENSE
    for _ in range(2):
        assert consider(replanner, with_process_group(later_reports(rate=RATE))) is None


def test_a_way_that_is_not_used_follows_the_one_that_is() -> None:
    def merge(ours: float | None, torchs: float | None) -> tuple[float, float | None]:
        promising = msgspec.structs.replace(CLUSTER, allreduce_bytes_per_s=5 * RATE)
        cluster = follow_rates(promising, [RankReport(bytes_per_s=ours, allreduce_bytes_per_s=torchs), RankReport()])
        return cluster.bytes_per_s, cluster.allreduce_bytes_per_s

    assert merge(None, None) == (RATE, 5 * RATE)
    assert merge(3 * RATE, 4 * RATE) == pytest.approx((3 * RATE, 4 * RATE))
    # A little faster or slower is a machine that does something else as well.
    assert merge(1.5 * RATE, None) == pytest.approx((1.5 * RATE, 7.5 * RATE))
    assert merge(None, 7.5 * RATE) == pytest.approx((1.5 * RATE, 7.5 * RATE))
    assert merge(RATE / 1.5, None) == pytest.approx((RATE / 1.5, 5 * RATE / 1.5))
    # Much of it is another link: what is not in use is not believed to be the faster one.
    assert merge(RATE / 2, None) == pytest.approx((RATE / 2, RATE / 2))
    assert merge(2 * RATE, None) == pytest.approx((2 * RATE, 2 * RATE))
    assert merge(None, RATE / 2) == pytest.approx((RATE / 10, RATE / 2))


def test_links_that_have_changed_are_measured_again_where_a_process_group_is_not_in_use() -> None:
    replanner = Replanner("auto")
    consider(replanner, with_process_group(first_reports(rate=RATE)))
    assert not replanner.wants_cluster
    busy = Replanner("auto")
    consider(busy, with_process_group(first_reports(rate=RATE * 3)))
    assert busy.wants_cluster  # what was measured at the start was not the link
    # While it is in use all is known.
    consider(replanner, with_process_group(later_reports(), rate=5 * RATE))
    assert not replanner.wants_cluster
    assert consider(replanner, with_process_group(later_reports(rate=RATE / 10))) is not None
    assert replanner.wants_cluster
    assert consider(replanner, with_process_group(later_reports(rate=RATE / 10))) is None
    assert not replanner.wants_cluster  # said once
    # What is measured then is believed: nobody asks again.
    plan = consider(replanner, with_process_group(first_reports(rate=RATE / 10)))
    assert plan is not None
    assert plan.schemes[WEIGHT] is Scheme.ALLREDUCE
    assert not replanner.wants_cluster


@pytest.mark.parametrize("policy", ["auto", "poseidon"])
def test_without_a_choice_links_are_not_measured_again(policy: str) -> None:
    replanner = planned_replanner(rate=RATE, policy=policy)
    assert consider(replanner, later_reports(rate=RATE / 10)) is not None
    assert not replanner.wants_cluster


def test_without_a_process_group_its_rate_stays_unknown() -> None:
    assert follow_rates(CLUSTER, [RankReport(bytes_per_s=3 * RATE)]).allreduce_bytes_per_s is None
    assert follow_rates(CLUSTER, [RankReport(allreduce_bytes_per_s=RATE)]) == CLUSTER


def test_a_link_that_stood_still_for_a_moment_ends_nothing() -> None:
    """`Rate` says 0 if nothing was received while something waited."""
    replanner = planned_replanner(rate=RATE)
    plan = consider(replanner, later_reports(rate=0.0))
    assert plan is None or plan.step_s < float("inf")


# Tensors whose gradient does not come from their layer alone


def test_a_spoiled_tensor_is_dense_for_good_with_a_reason() -> None:
    replanner = planned_replanner()
    spoiled = msgspec.structs.replace(later_reports()[0], wholes=(WEIGHT,))
    plan = consider(replanner, [later_reports()[0], spoiled])
    assert plan is not None
    assert plan.schemes == {TABLE: Scheme.ROWS, WEIGHT: Scheme.DENSE, BIAS: Scheme.DENSE}
    assert reason(plan, WEIGHT) == "part of its gradient does not come from its layer's backward"
    # Said again, or no more, it is nothing new.
    assert consider(replanner, [spoiled, spoiled]) is None
    assert consider(replanner, later_reports()) is None
    plan = consider(replanner, later_reports(rate=10 * RATE))
    assert plan is not None
    assert plan.schemes[WEIGHT] is Scheme.DENSE


def test_what_is_spoiled_before_the_first_plan_is_known_to_it() -> None:
    replanner = Replanner("factors")
    assert consider(replanner, [RankReport(wholes=(WEIGHT,)), RankReport()]) is None
    plan = consider(replanner, first_reports())
    assert plan is not None
    assert plan.schemes[WEIGHT] is Scheme.DENSE
    assert consider(replanner, later_reports()) is None


def test_a_second_spoiled_tensor_makes_a_second_plan() -> None:
    replanner = planned_replanner()
    for wholes, made in (((WEIGHT,), True), ((WEIGHT,), False), ((WEIGHT, TABLE), True), ((TABLE,), False)):
        reports = [msgspec.structs.replace(report, wholes=wholes) for report in later_reports()]
        assert (consider(replanner, reports) is not None) is made


def test_excluding_changes_only_what_is_named() -> None:
    before = make_profile()
    after = restrict_to_dense(before, {TABLE: "it has moved"})
    assert [tensor.kind for tensor in after.tensors] == [LayerKind.OTHER, LayerKind.LINEAR, LayerKind.OTHER]
    assert after.layers[1] == before.layers[1]
    assert after.tensors[0].obstacle == "it has moved"
    assert restrict_to_dense(before, {}) == before


def test_an_obstacle_that_one_rank_meets_later_leads_to_a_new_plan_with_that_reason() -> None:
    replanner = planned_replanner()
    moved = msgspec.structs.replace(later_reports()[0], obstacles={WEIGHT: "it has moved"}, wholes=(WEIGHT,))
    plan = consider(replanner, [later_reports()[0], moved])
    assert plan is not None
    assert (plan.schemes[WEIGHT], reason(plan, WEIGHT)) == (Scheme.DENSE, "it has moved")
    assert consider(replanner, [moved, moved]) is None
    plan = consider(replanner, later_reports(rate=10 * RATE))
    assert plan is not None
    assert (plan.schemes[WEIGHT], reason(plan, WEIGHT)) == (Scheme.DENSE, "it has moved")


# Gradients that ranks make themselves


def test_ranks_that_compute_different_gradients_from_the_same_factors_are_named() -> None:
    same = RankReport(digests={TABLE: 5, WEIGHT: 7})
    check_digests([same, same, same])
    with pytest.raises(DriftError, match=f"ranks 0 and 2 compute different gradients of '{WEIGHT}'"):
        check_digests([same, same, RankReport(digests={TABLE: 5, WEIGHT: 8})])


def test_a_gradient_that_a_rank_did_not_make_differs_from_nobody() -> None:
    check_digests([RankReport(digests={WEIGHT: 7}), RankReport(), RankReport(digests={WEIGHT: 7})])
    check_digests([RankReport(), RankReport()])


# Merging


def test_rows_are_those_of_an_average_rank_and_an_empty_batch_counts() -> None:
    reports = [RankReport(rows={WEIGHT: 8.0, TABLE: 30.0}), RankReport(rows={WEIGHT: 4.0}), RankReport()]
    assert merge_rows(reports) == {WEIGHT: 4.0, TABLE: 10.0}
    assert merge_rows([RankReport(), RankReport()]) == {}


def test_rows_are_put_where_they_belong() -> None:
    profile = change_rows(make_profile(), {WEIGHT: 3.0, "of another model": 1.0})
    assert [tensor.rows for tensor in profile.tensors] == [0.0, 3.0, 0.0]


def test_clusters_merge_to_the_slowest() -> None:
    fast = Cluster(
        workers=2,
        bytes_per_s=9.0,
        latency_s=0.1,
        flops_per_s=9.0,
        shard_flops_per_s=1.0,
        add_bytes_per_s=9.0,
        allreduce_bytes_per_s=5.0,
    )
    slow = Cluster(
        workers=2,
        bytes_per_s=3.0,
        latency_s=0.2,
        flops_per_s=2.0,
        shard_flops_per_s=4.0,
        add_bytes_per_s=1.0,
        allreduce_bytes_per_s=7.0,
    )
    assert merge_clusters([fast, slow]) == Cluster(
        workers=2,
        bytes_per_s=3.0,
        latency_s=0.2,
        flops_per_s=2.0,
        shard_flops_per_s=1.0,
        add_bytes_per_s=1.0,
        allreduce_bytes_per_s=5.0,
    )
    alone = msgspec.structs.replace(slow, allreduce_bytes_per_s=None)
    assert merge_clusters([fast, alone]).allreduce_bytes_per_s is None


def test_profiles_merge_to_the_times_of_an_average_rank() -> None:
    merged = merge_profiles([make_profile(), make_profile(forward_s=0.003, backward_s=0.006)])
    assert [layer.forward_s for layer in merged.layers] == pytest.approx([0.002, 0.004])
    assert [layer.backward_s for layer in merged.layers] == pytest.approx([0.004, 0.008])
    assert merged.tensors == make_profile().tensors


def test_layers_are_in_the_order_of_rank_0() -> None:
    """Graphs may differ between ranks; layers are matched by their names."""
    ours = make_profile()
    theirs = Profile(layers=make_profile(forward_s=0.003).layers[::-1])
    merged = merge_profiles([ours, theirs])
    assert [layer.name for layer in merged.layers] == ["words", "top"]
    assert [layer.forward_s for layer in merged.layers] == pytest.approx([0.002, 0.004])


def test_a_layer_that_another_rank_does_not_have_keeps_its_own_times() -> None:
    theirs = Profile(layers=make_profile(forward_s=0.003).layers[1:])
    merged = merge_profiles([make_profile(), theirs])
    assert [layer.forward_s for layer in merged.layers] == pytest.approx([0.001, 0.004])


def test_a_kind_that_differs_between_ranks_is_none() -> None:
    replanner = Replanner("factors")
    ours, theirs = first_reports()
    plan = consider(replanner, [ours, msgspec.structs.replace(theirs, profile=make_profile(LayerKind.OTHER))])
    assert plan is not None
    assert plan.schemes == {TABLE: Scheme.DENSE, WEIGHT: Scheme.DENSE, BIAS: Scheme.DENSE}
    assert reason(plan, WEIGHT) == "ranks have it in different layers"
    # Not a matter of which rank says so.
    swapped = consider(
        Replanner("factors"), [msgspec.structs.replace(ours, profile=make_profile(LayerKind.OTHER)), theirs]
    )
    assert swapped is not None
    assert swapped.schemes == plan.schemes


@pytest.mark.parametrize("rank", [0, 1])
def test_a_kind_that_one_rank_cannot_have_is_none_for_its_reason(rank: int) -> None:
    reports = first_reports()
    hindered = make_profile(LayerKind.OTHER)
    tensors = [
        msgspec.structs.replace(tensor, obstacle="it has moved" if tensor.name == WEIGHT else "")
        for tensor in hindered.layers[1].tensors
    ]
    layers = (hindered.layers[0], msgspec.structs.replace(hindered.layers[1], tensors=tuple(tensors)))
    reports[rank] = msgspec.structs.replace(reports[rank], profile=Profile(layers=layers))
    plan = consider(Replanner("auto"), reports)
    assert plan is not None
    assert (plan.schemes[WEIGHT], reason(plan, WEIGHT)) == (Scheme.DENSE, "it has moved")


def test_a_tensor_that_another_rank_does_not_know_travels_as_a_whole() -> None:
    merged = merge_profiles([make_profile(), Profile(layers=make_profile().layers[:1])])
    assert [tensor.kind for tensor in merged.tensors] == [LayerKind.EMBEDDING, LayerKind.OTHER, LayerKind.OTHER]
