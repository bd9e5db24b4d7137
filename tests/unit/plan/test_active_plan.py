"""The active plan: the queries of Poseidon's coordinator."""

from __future__ import annotations

import msgspec
import pytest

from undertow.errors import PlanError
from undertow.plan.active_plan import PROPERTIES, ActivePlan
from undertow.plan.cluster import Cluster
from undertow.plan.plan import PLANS
from undertow.plan.planner import make_plan
from undertow.plan.scheme import Scheme
from undertow.tools.zoo import find_model
from undertow.tools.zoo.model import profile_model

CLUSTER = Cluster(workers=8, bytes_per_s=1.25e9, flops_per_s=1e13, shard_flops_per_s=5e10)


def make_active(policy: str = "poseidon") -> ActivePlan:
    profile = profile_model(find_model("vgg19"))
    return ActivePlan(make_plan(profile, CLUSTER, policy=policy), profile, CLUSTER)


def test_fully_connected_layers_take_factors_and_convolutions_do_not() -> None:
    active = make_active()
    assert active.best_scheme("fc6") is Scheme.FACTORS
    assert active.best_scheme("conv1_1") is Scheme.DENSE


def test_a_layer_is_its_largest_tensor_and_a_tensor_can_be_queried_by_name() -> None:
    active = make_active()
    assert active.best_scheme("fc6.weight") is Scheme.FACTORS
    assert active.best_scheme("fc6.bias") is Scheme.DENSE


def test_beyond_the_break_even_the_paper_sends_gradients_whole() -> None:
    profile = profile_model(find_model("vgg19"))
    large = Cluster(workers=256, bytes_per_s=1.25e9, flops_per_s=1e13, shard_flops_per_s=5e10)
    assert ActivePlan(make_plan(profile, large, policy="poseidon")).best_scheme("fc6") is Scheme.DENSE


def test_questions_are_answered_in_their_order() -> None:
    assert make_active().query("servers", "workers", "bytes_per_s") == (8, 8, 1.25e9)
    assert make_active().query() == ()


def test_servers_are_counted_apart_from_workers() -> None:
    cluster = msgspec.structs.replace(CLUSTER, servers=2)
    plan = make_plan(profile_model(find_model("vgg19")), cluster, policy="dense")
    assert ActivePlan(plan).query("servers", "workers") == (2, 8)
    assert plan.bytes_out > make_active("dense").plan.bytes_out  # each server answers for half of the model


def test_a_plan_from_before_servers_were_counted_has_one_with_each_worker() -> None:
    document = msgspec.json.decode(make_active().plan.to_json())
    del document["servers"]
    assert PLANS.decode(msgspec.json.encode(document)) == make_active().plan


def test_every_property_can_be_queried() -> None:
    assert len(make_active().query(*PROPERTIES)) == len(PROPERTIES)


def test_an_unknown_property_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlanError, match="there is no property 'weather': use workers"):
        make_active().query("weather")
    with pytest.raises(PlanError, match="no layer 'fc'"):
        make_active().best_scheme("fc")


def test_of_a_plan_that_was_given_only_the_plan_is_known() -> None:
    given = ActivePlan(make_active().plan)
    assert given.query("workers", "policy") == (8, "poseidon")
    with pytest.raises(PlanError, match="'bytes_per_s' is not known: this plan was given to undertow"):
        given.query("bytes_per_s")
