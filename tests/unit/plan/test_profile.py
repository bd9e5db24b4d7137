"""A profile: what follows from its layers."""

from __future__ import annotations

from undertow.plan.profile import LayerProfile, Profile, TensorProfile

WEIGHT = TensorProfile(name="0.weight", shape=(3, 5), itemsize=2)
SCALE = TensorProfile(name="scale", shape=())
BIAS = TensorProfile(name="1.bias", shape=(7,))
PROFILE = Profile(
    layers=(
        LayerProfile(name="0", tensors=(WEIGHT, SCALE), forward_s=1.0, backward_s=2.0),
        LayerProfile(name="1", tensors=(BIAS,), forward_s=0.25, backward_s=0.5),
    )
)


def test_the_bytes_of_a_tensor_are_those_of_its_type() -> None:
    assert (WEIGHT.elements, WEIGHT.size_bytes) == (15, 30)
    assert (SCALE.elements, SCALE.size_bytes) == (1, 4)


def test_tensors_come_in_the_order_of_their_layers() -> None:
    assert PROFILE.tensors == [WEIGHT, SCALE, BIAS]


def test_computing_takes_as_long_as_all_layers_forward_and_backward() -> None:
    assert PROFILE.compute_s == 3.75
