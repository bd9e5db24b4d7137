"""A linear layer that hands over its factors computes the same outputs, and its factors give its gradient."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from undertow.torch.factors.collector import FactorCollector, Wanted
from undertow.torch.factors.linear import FactoredLinear, LinearForm
from undertow.torch.factors.swapping import restore, swap

SHAPES = [(5,), (4, 5), (2, 3, 5), (2, 1, 3, 5), (0, 5), (2, 0, 5)]


def make_pair(
    wanted: Wanted, *, bias: bool = True, dtype: torch.dtype = torch.float32
) -> tuple[nn.Linear, Any, FactorCollector]:
    """Return a plain layer and a copy with a collector."""
    torch.manual_seed(0)
    plain = nn.Linear(5, 3, bias=bias, dtype=dtype)
    layer = copy.deepcopy(plain)
    collector = FactorCollector(layer.weight, LinearForm(layer.weight), lambda: wanted)
    swap(layer, FactoredLinear, collector)
    return plain, layer, collector


@pytest.mark.parametrize("wants_input", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_and_all_gradients_are_those_of_a_plain_layer(
    shape: tuple[int, ...], bias: bool, wants_input: bool
) -> None:
    for wanted in Wanted:
        plain, layer, collector = make_pair(wanted, bias=bias)
        values = torch.randn(shape)
        inputs = [values.clone().requires_grad_(wants_input) for _ in range(2)]
        outputs = [one(given) for one, given in zip((plain, layer), inputs, strict=True)]
        assert torch.equal(*outputs)
        for output in outputs:
            output.square().sum().backward()
        if wants_input:
            torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
        if bias:
            torch.testing.assert_close(layer.bias.grad, plain.bias.grad)
        if wanted is Wanted.FACTORS:
            assert layer.weight.grad is None
            activations, deltas = collector.take().factors
            assert len(activations) == len(deltas) == values.numel() // 5
            torch.testing.assert_close(deltas.t() @ activations, plain.weight.grad)
        else:
            torch.testing.assert_close(layer.weight.grad, plain.weight.grad)


@pytest.mark.parametrize("wanted", [Wanted.GRADIENT, Wanted.BOTH])
def test_gradients_of_gradients_are_right(wanted: Wanted) -> None:
    _, layer, _ = make_pair(wanted, dtype=torch.float64)
    inputs = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    weight, bias = layer.weight, layer.bias

    def run(inputs: torch.Tensor, *_: torch.Tensor) -> Any:
        return layer(inputs).tanh()

    assert torch.autograd.gradcheck(run, (inputs, weight, bias))
    assert torch.autograd.gradgradcheck(run, (inputs, weight, bias))


def test_double_backward_gets_gradients_even_where_factors_are_wanted() -> None:
    plain, layer, collector = make_pair(Wanted.FACTORS)
    inputs = torch.randn(4, 5)
    for one in (plain, layer):
        (gradient,) = torch.autograd.grad(one(inputs).square().sum(), one.weight, create_graph=True)
        gradient.square().sum().backward()
    made = collector.combine([collector.take()], torch.float32)
    torch.testing.assert_close(made, plain.weight.grad)


def test_double_backward_under_autocast_reaches_the_weight() -> None:
    plain, layer, _ = make_pair(Wanted.GRADIENT)
    values = torch.randn(4, 5)
    for one in (plain, layer):
        inputs = values.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = one(inputs)
        (gradient,) = torch.autograd.grad(outputs.float().square().sum(), inputs, create_graph=True)
        gradient.square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad, rtol=0.05, atol=0.05)


def test_under_autocast_factors_have_its_type_and_gradients_the_layers() -> None:
    plain, layer, collector = make_pair(Wanted.FACTORS)
    inputs = torch.randn(4, 5, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = layer(inputs)
        assert torch.equal(outputs, plain(inputs))
    assert outputs.dtype is torch.bfloat16
    outputs.sum().backward()
    assert [factor.dtype for factor in collector.take().factors] == [torch.bfloat16] * 2
    assert inputs.grad is not None
    assert inputs.grad.dtype is layer.bias.grad.dtype is torch.float32


@pytest.mark.parametrize("layer_first", [False, True])
def test_other_uses_of_weight_and_bias_under_autocast_reach_them(layer_first: bool) -> None:
    gradients = []
    for one in make_pair(Wanted.GRADIENT)[:2]:
        inputs = torch.ones(4, 5)
        with torch.autocast("cpu", torch.bfloat16):
            first = one(inputs) if layer_first else F.linear(inputs * 2, one.weight, one.bias)
            second = F.linear(inputs * 2, one.weight, one.bias) if layer_first else one(inputs)
        (first.float().square().sum() + second.float().square().sum()).backward()
        gradients.append((one.weight.grad, one.bias.grad))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0.02, atol=0.02)


def test_a_replaced_weight_does_not_feed_the_collector() -> None:
    plain, layer, collector = make_pair(Wanted.FACTORS)
    inputs = torch.randn(4, 5)
    for one in (plain, layer):
        other = {"weight": one.weight * 3, "bias": one.bias}
        torch.func.functional_call(one, other, (inputs,)).square().sum().backward()
    assert not collector.take().factors
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad)


def test_a_weight_without_an_input_gradient_may_change_before_backward() -> None:
    plain, layer, collector = make_pair(Wanted.FACTORS)
    inputs = torch.randn(4, 5)
    for one in (plain, layer):
        outputs = one(inputs)
        with torch.no_grad():
            one.weight.zero_()
        outputs.square().sum().backward()
    activations, deltas = collector.take().factors
    torch.testing.assert_close(deltas.t() @ activations, plain.weight.grad)


def test_an_input_changed_before_backward_is_an_error_as_in_torch() -> None:
    _, layer, _ = make_pair(Wanted.FACTORS)
    inputs = torch.randn(4, 5)
    outputs = layer(inputs)
    inputs.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


class Odd(torch.Tensor):
    """A tensor subclass."""


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_under_tracers_and_transforms_the_layer_is_a_plain_one() -> None:
    _, layer, collector = make_pair(Wanted.FACTORS)
    inputs = torch.randn(4, 5)
    with torch.no_grad():
        assert layer(inputs).grad_fn is None
    layer(inputs.as_subclass(Odd)).sum().backward()
    layer.weight.requires_grad_(False)
    layer(inputs).sum().backward()
    layer.weight.requires_grad_()
    each = torch.vmap(torch.func.grad(lambda row: layer(row).sum()))(inputs)
    assert each.shape == inputs.shape
    _, tangent = torch.func.jvp(layer, (inputs,), (inputs,))
    assert tangent.shape == (4, 3)
    assert torch.fx.symbolic_trace(nn.Sequential(layer))(inputs).shape == (4, 3)
    assert not collector.take().factors


def test_a_restored_layer_is_an_ordinary_one() -> None:
    plain, layer, _ = make_pair(Wanted.FACTORS)
    assert type(layer) is not nn.Linear
    assert isinstance(layer, nn.Linear)
    assert repr(layer) == repr(plain)
    restore(layer)
    assert type(layer) is nn.Linear
    assert vars(layer).keys() == vars(plain).keys()
    restore(layer)
    assert type(layer) is nn.Linear


def test_a_layer_constructed_from_anothers_class_is_a_plain_one() -> None:
    _, layer, collector = make_pair(Wanted.FACTORS)
    other = type(layer)(5, 2)
    other(torch.ones(1, 5)).sum().backward()
    assert other.weight.grad is not None
    assert not collector.take().is_present


def test_joined_factors_give_the_mean_of_all_workers() -> None:
    weight = nn.Parameter(torch.zeros(3, 5))
    form = LinearForm(weight)
    calls = [(torch.randn(rows, 5), torch.randn(rows, 3)) for rows in (2, 0, 4)]
    expected = sum(deltas.t() @ activations for activations, deltas in calls)
    assert form.join(calls[:1])[0] is calls[0][0]
    joined = form.join(calls)
    torch.testing.assert_close(form.make([joined], 4), expected / 4)
    torch.testing.assert_close(form.make(calls, 4), expected / 4)
    assert torch.equal(form.make([], 4), torch.zeros(3, 5))
    assert torch.equal(form.make(calls[1:2], 4), torch.zeros(3, 5))
    assert [field.width for field in form.fields] == [5, 3]
    assert form.split(torch.ones(3, 5)) is None


def test_factors_of_calls_in_different_precision_can_be_joined() -> None:
    form = LinearForm(nn.Parameter(torch.zeros(3, 5)))
    joined = form.join(
        [(torch.ones(1, 5).bfloat16(), torch.ones(1, 3).bfloat16()), (torch.ones(2, 5), torch.ones(2, 3))]
    )
    assert [factor.dtype for factor in joined] == [torch.float32] * 2
    assert torch.equal(form.make([joined], 1), torch.full((3, 5), 3.0))


def test_values_that_are_not_finite_stay_so() -> None:
    form = LinearForm(nn.Parameter(torch.zeros(3, 5)))
    deltas = torch.tensor([[float("nan"), float("inf"), 1.0]])
    made = form.make([(torch.ones(1, 5), deltas), (torch.ones(1, 5), torch.ones(1, 3))], 2)
    assert made[0].isnan().all()
    assert made[1].isposinf().all()
    assert (made[2] == 1).all()


def test_a_custom_rebuild_gets_all_factors() -> None:
    form = LinearForm(nn.Parameter(torch.zeros(3, 5)), lambda activations, deltas: deltas.t() @ activations)
    made = form.make([(torch.ones(2, 5), torch.ones(2, 3)), (torch.ones(1, 5), torch.ones(1, 3))], 2)
    assert torch.equal(made, torch.full((3, 5), 3.0))
