"""The predicted time of a step: small cases by hand, large ones against the known optimum."""

from __future__ import annotations

import pytest

from undertow.plan.cluster import Cluster
from undertow.plan.planner import make_plan
from undertow.plan.predict import predict, predict_alone
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile
from undertow.plan.scheme import Scheme
from undertow.tools.zoo import find_model
from undertow.tools.zoo.model import profile_model

# 100 bytes per second and no latency: a dense tensor of 100 bytes among 2 workers takes half a second each way.
CLUSTER = Cluster(workers=2, bytes_per_s=100, latency_s=0, flops_per_s=1e9, shard_flops_per_s=1e9, add_bytes_per_s=1e9)


def layer(name: str, size_bytes: int, *, forward_s: float = 1, backward_s: float = 2) -> LayerProfile:
    tensor = TensorProfile(name=name, shape=(size_bytes // 4,))
    return LayerProfile(name=name, tensors=(tensor,), forward_s=forward_s, backward_s=backward_s)


def dense(profile: Profile) -> dict[str, Scheme]:
    return {tensor.name: Scheme.DENSE for tensor in profile.tensors}


def step_s(*layers: LayerProfile, has_gates: bool = True) -> float:
    profile = Profile(layers=layers)
    return predict(profile, CLUSTER, dense(profile), has_gates=has_gates)


def test_one_layer_waits_for_its_own_gradient() -> None:
    assert step_s(layer("a", 100)) == pytest.approx(2 + 1 + 1)


def test_what_is_small_hides_under_the_backward_of_the_layers_before() -> None:
    assert step_s(layer("a", 0), layer("b", 100)) == pytest.approx(6)


def test_a_gate_waits_for_its_own_layer_only() -> None:
    # b is ready at 2 and takes 4 s: it is there at 6, when a, whose forward starts at 4, has just ended.
    assert step_s(layer("a", 0), layer("b", 400)) == pytest.approx(6 + 1)
    assert step_s(layer("a", 0), layer("b", 400), has_gates=False) == pytest.approx(6 + 2)


def test_what_is_needed_first_interrupts_what_is_needed_later() -> None:
    # b: 2 to 4, then a (ready at 4): 4 to 5, then the rest of b: 5 to 7.  a's forward runs from 5 to 6.
    assert step_s(layer("a", 100), layer("b", 400)) == pytest.approx(7 + 1)


def test_the_bound_of_the_first_layer_holds() -> None:
    """T >= F + B + s_1 / W: its gradient is the last that is made and the first that is needed."""
    assert step_s(layer("a", 1000), layer("b", 0)) == pytest.approx(6 + 10)


def test_factors_spare_the_dense_bytes_and_cost_the_products_of_the_others() -> None:
    tensor = TensorProfile(name="fc", shape=(10, 10), kind=LayerKind.LINEAR, rows=1, product_s=0.5)
    profile = Profile(layers=(LayerProfile(name="fc", tensors=(tensor,), forward_s=1, backward_s=2),))
    # K (M + N) floats to one other worker.
    assert predict(profile, CLUSTER, {"fc": Scheme.FACTORS}) == pytest.approx(3 + 0.8 + 0.5)
    # The shards multiply: the device is spared its own product, and the half of 20 + 5 + 50 floats goes out.
    to_shard = predict(profile, CLUSTER, {"fc": Scheme.FACTORS_TO_SHARD})
    assert to_shard == pytest.approx(3 - 0.5 + 4 * (0.5 * (10 + 20) + 0.5 * 100) / 100)


def test_a_shard_that_adds_slowly_holds_up_what_is_pushed() -> None:
    slow = Cluster(workers=2, bytes_per_s=100, latency_s=0, flops_per_s=1, shard_flops_per_s=1, add_bytes_per_s=10)
    tensor = TensorProfile(name="a", shape=(25,))
    assert predict_alone(tensor, Scheme.DENSE, CLUSTER) == pytest.approx(0.5 + 0.5)
    assert predict_alone(tensor, Scheme.DENSE, slow) == pytest.approx(5 + 0.5)


def test_one_worker_sends_nothing() -> None:
    alone = Cluster(workers=1, bytes_per_s=1, flops_per_s=1, shard_flops_per_s=1)
    profile = Profile(layers=(layer("a", 1000), layer("b", 1000)))
    assert predict(profile, alone, dense(profile)) == pytest.approx(profile.compute_s)


@pytest.mark.parametrize(
    ("model", "workers", "gbit", "priority", "hybrid"),
    [
        ("resnet50", 4, 4, 1.13, 1.05),
        ("resnet50", 8, 5, 1.06, 1.00),
        ("vgg19", 4, 2, 4.41, 1.00),
        ("vgg19", 4, 4, 2.21, 1.00),
        ("vgg19", 4, 10, 1.00, 1.00),
        ("vgg19-22k", 16, 10, 1.60, 1.00),
        ("vgg19-22k", 16, 2, 7.99, 1.27),
    ],
)
def test_published_models_take_as_long_as_an_ideal_schedule(
    model: str, workers: int, gbit: float, priority: float, hybrid: float
) -> None:
    """Multiples of pure compute, estimated elsewhere with 93 % of the link and products for nothing."""
    published = find_model(model)
    profile = profile_model(published)
    rate = gbit * 1e9 / 8 * 0.93
    cluster = Cluster(workers=workers, bytes_per_s=rate, flops_per_s=published.flops_per_s, shard_flops_per_s=5e10)
    for policy, expected in (("dense", priority), ("auto", hybrid)):
        plan = make_plan(profile, cluster, policy=policy)
        assert plan.step_s / plan.compute_s == pytest.approx(expected, rel=0.025)


@pytest.mark.parametrize("bytes_per_s", [100.0, 1e4])
def test_a_step_of_months_has_an_end(bytes_per_s: float) -> None:
    """What is left of a transfer may be too short to be seen in the digits of the clock."""
    profile = profile_model(find_model("vgg19"))
    cluster = Cluster(workers=4, bytes_per_s=bytes_per_s, flops_per_s=1e13, shard_flops_per_s=1e10)
    step = predict(profile, cluster, dense(profile))
    size_bytes = 4 * find_model("vgg19").parameters
    assert step == pytest.approx(2 * 3 / 4 * size_bytes / bytes_per_s, rel=0.01)
