"""Factors are exact only on the CPU: elsewhere no plan chooses them, and plans that name them are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from tests.support.slow_group import SlowGroup
from undertow.errors import ConfigError
from undertow.plan.cluster import Cluster
from undertow.plan.measured import Measured, read_measured
from undertow.plan.plan import Choice, Plan
from undertow.plan.planner import make_plan
from undertow.plan.profile import LayerKind
from undertow.plan.scheme import Scheme
from undertow.script.adopted_model import AdoptedModel
from undertow.torch import DistributedDataParallel, parallelize
from undertow.torch.factors import devices
from undertow.torch.factors.collector import FactorCollector, Wanted
from undertow.torch.factors.devices import check_asked, find_device_obstacle
from undertow.torch.factors.layers import find_layers, make_layer
from undertow.torch.planning.measuring import Survey
from undertow.torch.planning.planning import TorchPlanning

META = torch.device("meta")
REASON = "factors and factors-to-shard are not exact on meta yet, only on the CPU"
ONLY = "factors and factors-to-shard are so far exact only on the CPU"
NAMED = ["factors", "factors-to-shard"]
CLUSTER = Cluster(workers=4, bytes_per_s=1e8, flops_per_s=1e12, shard_flops_per_s=1e11)


class Handing(nn.Module):
    """A module that hands over its factors itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 5))
        self.take_factors: Any = None

    def rebuild(self, activations: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
        return deltas.t() @ activations


def make_net(device: torch.device = META) -> nn.Sequential:
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).to(device)


def make_given(scheme: Scheme, net: nn.Module) -> Plan:
    choices = tuple(
        Choice(
            tensor=name,
            shape=tuple(parameter.shape),
            scheme=scheme if name == "1.weight" else Scheme.DENSE,
            bytes_out=0.0,
            push_bytes=0.0,
            alone_s=0.0,
            reason="",
        )
        for name, parameter in net.named_parameters()
    )
    return Plan(policy="auto", workers=2, choices=choices, step_s=1.0, compute_s=1.0, alone={})


def plan_net(net: nn.Module, policy: str) -> dict[str, tuple[Scheme, str]]:
    layers, obstacles = find_layers(net)
    names = {parameter: name for name, parameter in net.named_parameters()}
    profile = Survey(net).make_profile(names, {layer.weight: layer for layer in layers}, obstacles)
    plan = make_plan(profile, CLUSTER, policy=policy)
    return {choice.tensor: (choice.scheme, choice.reason) for choice in plan.choices}


# Input of the planner


def test_off_the_cpu_linear_weights_have_no_factors_but_embeddings_have_rows() -> None:
    net = make_net()
    layers, obstacles = find_layers(net)
    assert [(layer.weight is net[0].weight, layer.kind) for layer in layers] == [(True, LayerKind.EMBEDDING)]
    assert obstacles == {net[1].weight: REASON, net[3].weight: REASON}
    assert find_layers(make_net(torch.device("cpu")))[1] == {}


def test_off_the_cpu_modules_with_take_factors_have_none_either() -> None:
    net = Handing().to(META)
    assert find_layers(net) == ([], {net.weight: REASON})


@pytest.mark.parametrize("policy", ["auto", "poseidon", *NAMED])
def test_a_plan_for_another_device_is_dense_and_gives_the_reason(policy: str) -> None:
    choices = plan_net(make_net(), policy)
    assert choices["1.weight"] == choices["3.weight"] == (Scheme.DENSE, REASON)


def test_a_saved_profile_keeps_the_reason(tmp_path: Any) -> None:
    net = make_net()
    names = {parameter: name for name, parameter in net.named_parameters()}
    profile = Survey(net).make_profile(names, {}, find_layers(net)[1])
    busy = tuple(msgspec.structs.replace(layer, forward_s=1.0) for layer in profile.layers)
    path = tmp_path / "profile.json"
    Measured(
        profile=msgspec.structs.replace(profile, layers=busy),
        flops_per_s=1.0,
        shard_flops_per_s=1.0,
        add_bytes_per_s=1.0,
        has_gates=True,
    ).write(path)
    plan = make_plan(read_measured(path).profile, CLUSTER)
    assert {choice.reason for choice in plan.choices if choice.tensor in ("1.weight", "3.weight")} == {REASON}


# Plans that name factors


@pytest.mark.parametrize("policy", NAMED)
def test_a_policy_of_factors_is_refused_when_a_module_is_wrapped(group: SlowGroup, policy: str) -> None:
    net = make_net()
    with pytest.raises(ConfigError) as caught:
        DistributedDataParallel(net, plan=policy)
    assert str(caught.value) == (
        f"the plan {policy!r} asks for factors of '1.weight' and '3.weight', which are on meta: {ONLY}. Use the plan "
        "'auto' or 'dense' (the argument plan=, or UNDERTOW_PLAN)"
    )
    assert not group.pending


@pytest.mark.parametrize("scheme", [Scheme.FACTORS, Scheme.FACTORS_TO_SHARD])
def test_a_given_plan_with_factors_is_refused(group: SlowGroup, scheme: Scheme, tmp_path: Any) -> None:
    net = make_net()
    given = make_given(scheme, net)
    given.write(tmp_path / "plan.json")
    for plan in (given, tmp_path / "plan.json"):
        with pytest.raises(ConfigError) as caught:
            parallelize(net, torch.optim.SGD(net.parameters(), lr=0.1), plan=plan)
        assert str(caught.value) == (
            f"the given plan sends factors of '1.weight', which is on meta: {ONLY}. Make a new plan with the "
            "model on that device, or use the plan 'auto' or 'dense' (the argument plan=, or UNDERTOW_PLAN)"
        )


def test_a_policy_of_factors_in_the_environment_is_refused(group: SlowGroup) -> None:
    group.configure(plan="factors")
    net = make_net()
    with pytest.raises(
        ConfigError, match=r"'factors' asks for factors of '1.weight' and '3.weight', which are on meta: "
    ):
        DistributedDataParallel(net)
    with pytest.raises(ConfigError, match=r"'factors' asks for factors of '3.weight', which is on meta: "):
        AdoptedModel(net, [net[3].weight], overlaps=False)


@pytest.mark.parametrize("policy", ["auto", "poseidon", "dense", "rows", make_given(Scheme.DENSE, make_net())])
def test_other_plans_ask_for_none(group: SlowGroup, policy: str | Plan) -> None:
    net = make_net()
    TorchPlanning(group, net, policy).check_devices(dict(net.named_parameters()))  # type: ignore[arg-type]


def test_many_weights_are_counted() -> None:
    weights = {f"{index}.weight": torch.empty(2, 2, device="meta") for index in range(14)}
    with pytest.raises(ConfigError, match=r" of '0.weight', '1.weight', .* '9.weight' and 4 more, which are on meta: "):
        check_asked("factors", weights)


# Modules that are moved


def move(monkeypatch: pytest.MonkeyPatch, *weights: torch.Tensor) -> None:
    """Make these appear to be on another device, although they can still be used in computations."""
    moved = {id(weight) for weight in weights}
    monkeypatch.setattr(devices, "find_device", lambda weight: META if id(weight) in moved else weight.device)


@pytest.mark.parametrize("policy", [*NAMED, "given"])
def test_a_module_moved_after_wrapping_is_refused_in_its_next_forward(
    group: SlowGroup, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    net = make_net(torch.device("cpu"))
    plan = make_given(Scheme.FACTORS, net) if policy == "given" else policy
    planning = TorchPlanning(group, net, plan)  # type: ignore[arg-type]
    planning.check_devices(dict(net.named_parameters()))
    planning.start_forward()
    move(monkeypatch, net[1].weight)
    with pytest.raises(ConfigError, match=r"'1.weight'.* on meta"):
        planning.start_forward()


def test_a_moved_layer_stops_handing_over_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient is sent whole instead, which is exact whatever the other ranks do."""
    net = nn.Linear(4, 3)
    layer = make_layer(net)
    assert layer is not None
    collector = FactorCollector(net.weight, layer.form, lambda: Wanted.FACTORS)
    layer.attach(collector)
    net(torch.ones(2, 4)).sum().backward()
    assert collector.take().factors
    move(monkeypatch, net.weight)
    net(torch.ones(2, 4)).sum().backward()
    known = collector.take()
    assert not known.factors
    assert known.whole is not None
    assert torch.equal(known.whole, torch.full((3, 4), 2.0))


def test_a_moved_module_with_take_factors_stops_handing_them_over(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Handing()
    layer = make_layer(net)
    assert layer is not None
    layer.attach(FactorCollector(net.weight, layer.form, lambda: Wanted.FACTORS))
    assert net.take_factors(torch.ones(2, 5), torch.ones(2, 3)) is True
    move(monkeypatch, net.weight)
    assert net.take_factors(torch.ones(2, 5), torch.ones(2, 3)) is False


def test_what_counts_is_the_type_of_the_device() -> None:
    assert find_device_obstacle(torch.empty(1)) == ""
    assert find_device_obstacle(torch.empty(1, device="cpu:0")) == ""
    assert find_device_obstacle(torch.empty(1, device="meta")) == REASON
