"""The planner's choices and their reasons."""

from __future__ import annotations

from collections import Counter

import pytest

from undertow.errors import PlanError
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Plan
from undertow.plan.planner import MOST_MOVED, POLICIES, make_plan
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile
from undertow.plan.scheme import Scheme
from undertow.tools.zoo import find_model
from undertow.tools.zoo.model import profile_model


def make_cluster(
    workers: int = 4, gbit: float = 4, flops_per_s: float = 2e12, allreduce_gbit: float | None = None
) -> Cluster:
    return Cluster(
        workers=workers,
        bytes_per_s=gbit / 8 * 1e9,
        flops_per_s=flops_per_s,
        shard_flops_per_s=5e10,
        allreduce_bytes_per_s=None if allreduce_gbit is None else allreduce_gbit / 8 * 1e9,
    )


def plan_model(name: str, cluster: Cluster, *, policy: str = "auto", batch: int | None = None) -> Plan:
    return make_plan(profile_model(find_model(name), batch=batch), cluster, policy=policy)


def reason(plan: Plan, tensor: str) -> str:
    return next(choice.reason for choice in plan.choices if choice.tensor == tensor)


def test_large_matrices_with_few_rows_take_factors_with_a_reason() -> None:
    plan = plan_model("vgg19", make_cluster())
    assert plan.schemes["fc6.weight"] is Scheme.FACTORS
    assert plan.schemes["conv1_1.weight"] is Scheme.DENSE
    assert reason(plan, "fc6.weight").startswith("11.2 MB instead of 617 MB with K = 32; the product takes")
    assert reason(plan, "conv1_1.weight") == "a convolution has no other lossless scheme"
    assert reason(plan, "fc6.bias") == "a vector has no other lossless scheme"


def test_embeddings_take_rows_and_matrices_with_many_rows_stay_dense() -> None:
    plan = plan_model("sockeye", make_cluster())
    assert plan.schemes["source.weight"] is Scheme.ROWS
    assert reason(plan, "source.weight") == "4.93 MB instead of 52.8 MB: 800 of 17192 rows are touched"
    assert plan.schemes["output.weight"] is Scheme.DENSE
    assert reason(plan, "output.weight") == "factors-to-shard would send 1.5 times as much (K = 800)"


def test_what_is_hidden_anyway_is_not_rebuilt_at_a_cost() -> None:
    """Slow devices, slow shards and a fast link: factors would only add work."""
    cluster = Cluster(workers=16, bytes_per_s=1e10, flops_per_s=2e11, shard_flops_per_s=1e9)
    plan = plan_model("vgg19", cluster)
    assert plan.schemes["fc6.weight"] is Scheme.DENSE
    assert "would cost more than it saves" in reason(plan, "fc6.weight")


def test_one_worker_needs_no_scheme() -> None:
    plan = plan_model("vgg19", make_cluster(workers=1))
    assert set(plan.schemes.values()) == {Scheme.DENSE}
    assert {choice.reason for choice in plan.choices} == {"one worker sends nothing"}
    assert plan.step_s == pytest.approx(plan.compute_s)


def test_a_faster_process_group_takes_all_that_is_dense() -> None:
    for allreduce_gbit in (1, 1.1):  # a tenth may be a moment's disturbance: half of it counts for nothing
        cluster = make_cluster(gbit=1, allreduce_gbit=allreduce_gbit)
        assert Scheme.ALLREDUCE not in plan_model("resnet50", cluster).schemes.values()
    plan = plan_model("resnet50", make_cluster(gbit=1, allreduce_gbit=40))
    assert plan.schemes["conv1.weight"] is Scheme.ALLREDUCE
    assert plan.schemes["fc.weight"] is Scheme.FACTORS
    assert reason(plan, "conv1.weight") == "torch's process group is predicted to be faster"


@pytest.mark.parametrize(("workers", "scheme"), [(49, Scheme.FACTORS), (51, Scheme.DENSE)])
def test_poseidons_rule_counts_bytes_alone(workers: int, scheme: Scheme) -> None:
    plan = plan_model("vgg19", make_cluster(workers=workers), policy="poseidon")
    assert plan.schemes["fc8.weight"] is scheme
    where = "within" if scheme is Scheme.FACTORS else "beyond"
    assert reason(plan, "fc8.weight") == f"{workers} workers are {where} the break-even of P* = 50"
    assert reason(plan, "conv1_1.weight") == "not a fully connected layer"


@pytest.mark.parametrize("scheme", [Scheme.DENSE, Scheme.FACTORS, Scheme.FACTORS_TO_SHARD])
def test_a_scheme_can_be_forced_wherever_it_is_possible(scheme: Scheme) -> None:
    plan = plan_model("vgg19", make_cluster(), policy=scheme.value)
    assert plan.schemes["fc7.weight"] is scheme
    assert plan.schemes["conv1_1.weight"] is Scheme.DENSE
    assert reason(plan, "fc7.weight") == "as requested"
    assert plan.step_s == plan.alone[scheme.value]


@pytest.mark.parametrize("model", ["alexnet", "vgg19", "vgg19-22k", "resnet50", "sockeye", "googlenet"])
@pytest.mark.parametrize("gbit", [1, 4, 40])
@pytest.mark.parametrize("workers", [2, 4, 16])
def test_the_plan_is_no_slower_than_any_scheme_that_sends_no_more(model: str, gbit: float, workers: int) -> None:
    published = find_model(model)
    plan = plan_model(model, make_cluster(workers, gbit, published.flops_per_s))
    for policy in ("dense", "poseidon"):
        other = plan_model(model, make_cluster(workers, gbit, published.flops_per_s), policy=policy)
        assert plan.step_s <= other.step_s + 0.003 * plan.compute_s
    assert plan.bytes_out <= plan_model(model, make_cluster(workers, gbit), policy="dense").bytes_out


def test_the_same_figures_give_the_same_plan() -> None:
    assert plan_model("vgg19-22k", make_cluster(16)) == plan_model("vgg19-22k", make_cluster(16))


def test_more_matrices_than_are_tried_one_by_one_still_take_the_fewest_bytes() -> None:
    layers = tuple(
        LayerProfile(
            name=f"{index}",
            tensors=(TensorProfile(name=f"{index}.weight", shape=(512, 512), kind=LayerKind.LINEAR, rows=8),),
            forward_s=0.001,
            backward_s=0.002,
        )
        for index in range(300)
    )
    plan = make_plan(Profile(layers=layers), make_cluster())
    counts = Counter(plan.schemes.values())
    assert counts[Scheme.FACTORS] >= 300 - MOST_MOVED
    assert counts[Scheme.DENSE] == 0


def test_unknown_and_impossible_policies_are_refused() -> None:
    with pytest.raises(PlanError, match=f"no plan 'best': use one of {', '.join(POLICIES)}"):
        plan_model("vgg19", make_cluster(), policy="best")
    with pytest.raises(PlanError, match="needs torch's process group"):
        plan_model("vgg19", make_cluster(), policy="allreduce")
