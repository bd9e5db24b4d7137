"""The paper's questions to the coordinator."""

from __future__ import annotations

import pytest

from undertow.errors import PlanError
from undertow.plan.cluster import Cluster
from undertow.plan.coordinator import PROPERTIES, Coordinator
from undertow.plan.planner import make_plan
from undertow.plan.scheme import Scheme
from undertow.zoo import find_model
from undertow.zoo.profile import profile_model

CLUSTER = Cluster(workers=8, bytes_per_s=1.25e9, flops_per_s=1e13, shard_flops_per_s=5e10)


def make_coordinator(policy: str = "poseidon") -> Coordinator:
    profile = profile_model(find_model("vgg19"))
    return Coordinator(make_plan(profile, CLUSTER, policy=policy), profile, CLUSTER)


def test_fully_connected_layers_take_factors_and_convolutions_do_not() -> None:
    coordinator = make_coordinator()
    assert coordinator.best_scheme("fc6") is Scheme.FACTORS
    assert coordinator.best_scheme("conv1_1") is Scheme.DENSE


def test_a_layer_is_its_largest_tensor_and_a_tensor_may_be_asked_for_by_name() -> None:
    coordinator = make_coordinator()
    assert coordinator.best_scheme("fc6.weight") is Scheme.FACTORS
    assert coordinator.best_scheme("fc6.bias") is Scheme.DENSE


def test_beyond_the_break_even_the_paper_sends_gradients_whole() -> None:
    profile = profile_model(find_model("vgg19"))
    large = Cluster(workers=256, bytes_per_s=1.25e9, flops_per_s=1e13, shard_flops_per_s=5e10)
    assert Coordinator(make_plan(profile, large, policy="poseidon")).best_scheme("fc6") is Scheme.DENSE


def test_questions_are_answered_in_their_order() -> None:
    assert make_coordinator().query("servers", "workers", "bytes_per_s") == (8, 8, 1.25e9)
    assert make_coordinator().query() == ()


def test_everything_that_can_be_asked_is_answered() -> None:
    assert len(make_coordinator().query(*PROPERTIES)) == len(PROPERTIES)


def test_what_nobody_knows_is_said_with_what_is_known() -> None:
    with pytest.raises(PlanError, match="nobody knows 'weather': ask for workers"):
        make_coordinator().query("weather")
    with pytest.raises(PlanError, match="no layer 'fc'"):
        make_coordinator().best_scheme("fc")


def test_of_a_plan_that_was_given_only_the_plan_is_known() -> None:
    given = Coordinator(make_coordinator().plan)
    assert given.query("workers", "policy") == (8, "poseidon")
    with pytest.raises(PlanError, match="'bytes_per_s' is not known: the plan was given"):
        given.query("bytes_per_s")
