"""Checks of profiles and plans: each field that cannot be true is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from undertow.errors import PlanError
from undertow.plan import checks
from undertow.plan.checks import check_measured, check_plan, check_profile
from undertow.plan.measured import Measured
from undertow.plan.plan import Choice, Plan
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile
from undertow.plan.scheme import Scheme

replace = msgspec.structs.replace
WEIGHT = TensorProfile(name="w", shape=(4, 8), kind=LayerKind.LINEAR, rows=8.0, product_s=0.001)
LAYER = LayerProfile(name="fc", tensors=(WEIGHT,), forward_s=0.001, backward_s=0.002)
CHOICE = Choice(
    tensor="w", shape=(4, 8), scheme=Scheme.DENSE, bytes_out=64.0, push_bytes=32.0, alone_s=0.1, reason="small"
)
PLAN = Plan(policy="auto", workers=4, choices=(CHOICE,), step_s=0.2, compute_s=0.1, alone={"dense": 0.3})


def make_profile(layer: LayerProfile = LAYER, **fields: Any) -> Profile:
    """A profile of one layer with one tensor, of which these fields are different."""
    return Profile(layers=(replace(layer, tensors=(replace(WEIGHT, **fields),)),))


def test_possible_profiles_are_accepted() -> None:
    check_profile(make_profile())
    check_profile(make_profile(shape=(), kind=LayerKind.OTHER, rows=0.0))
    check_plan(PLAN)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shape": (4, -1)}, "a length of 'w' is -1, which is not possible"),
        ({"shape": (1 << 30, 1 << 30)}, "the number of elements of 'w' is .* not possible"),
        ({"shape": (32,)}, r"'w' has rows but is not a matrix: its shape is \[32\]"),
        ({"shape": (0, 8)}, r"'w' has rows but is not a matrix: its shape is \[0, 8\]"),
        ({"rows": -1.0}, "rows of 'w' is -1, which is not possible"),
        ({"rows": float("nan")}, "rows of 'w' is nan, which is not possible"),
        ({"itemsize": 0}, "itemsize of 'w' is 0, which is not possible"),
        ({"row_itemsize": 32}, "row_itemsize of 'w' is 32, which is not possible"),
        ({"product_s": -0.5}, r"product_s of 'w' is -0\.5, which is not possible"),
    ],
)
def test_an_impossible_tensor_is_named_with_its_field(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        check_profile(make_profile(**fields))


@pytest.mark.parametrize("field", ["forward_s", "backward_s"])
def test_a_layer_with_a_negative_time_is_named(field: str) -> None:
    with pytest.raises(PlanError, match=f"{field} of 'fc' is -1, which is not possible"):
        check_profile(make_profile(replace(LAYER, **{field: -1.0})))


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(PlanError, match="it has the tensor 'w' twice"):
        check_profile(Profile(layers=(LAYER, LAYER)))
    with pytest.raises(PlanError, match="it has the tensor 'w' twice"):
        check_plan(replace(PLAN, choices=(CHOICE, CHOICE)))


def test_too_many_tensors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MOST_TENSORS", 1)
    check_plan(PLAN)
    with pytest.raises(PlanError, match="it has 2 tensors, but at most 1 are possible"):
        check_plan(replace(PLAN, choices=(CHOICE, replace(CHOICE, tensor="b"))))


def test_tensors_that_are_possible_alone_may_be_too_many_together() -> None:
    large = [replace(WEIGHT, name=f"w{number}", shape=(1 << 18, 1 << 18)) for number in range(17)]
    check_profile(Profile(layers=(replace(LAYER, tensors=tuple(large[:16])),)))
    with pytest.raises(PlanError, match="the number of parameters is"):
        check_profile(Profile(layers=(replace(LAYER, tensors=tuple(large)),)))


def test_a_script_whose_layers_take_no_time_was_not_measured() -> None:
    rates = {"flops_per_s": 1e10, "shard_flops_per_s": 1e9, "add_bytes_per_s": 1e9, "has_gates": True}
    check_measured(Measured(profile=make_profile(), **rates))
    with pytest.raises(PlanError, match="its layers take no time"):
        check_measured(Measured(profile=make_profile(replace(LAYER, forward_s=0.0, backward_s=0.0)), **rates))
    for rate in ("flops_per_s", "shard_flops_per_s", "add_bytes_per_s"):
        with pytest.raises(PlanError, match=f"{rate} is 0, which is not possible"):
            check_measured(Measured(profile=make_profile(), **{**rates, rate: 0.0}))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"workers": -1}, "workers is -1, which is not possible"),
        ({"servers": -1}, "servers is -1, which is not possible"),
        ({"step_s": 0.0}, "step_s is 0: every step takes some time"),
        ({"compute_s": 0.0}, "compute_s is 0: every step takes some time"),
        ({"alone": {"dense": float("inf")}}, "dense is inf, which is not possible"),
        ({"choices": (replace(CHOICE, shape=(-4, 8)),)}, "a length of 'w' is -4"),
        ({"choices": (replace(CHOICE, bytes_out=-1.0),)}, "bytes_out of 'w' is -1"),
        ({"choices": (replace(CHOICE, push_bytes=-1.0),)}, "push_bytes of 'w' is -1"),
        ({"choices": (replace(CHOICE, alone_s=-1.0),)}, "alone_s of 'w' is -1"),
        ({"choices": (replace(CHOICE, break_even=-1.0),)}, "break_even of 'w' is -1"),
    ],
)
def test_an_impossible_plan_is_refused_with_its_field(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        check_plan(replace(PLAN, **fields))
