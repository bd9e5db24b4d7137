"""Replayed layers: ordinary modules to autograd and wrappers, with gradients that appear after their time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from undertow.tools.lab.replay.layers import Cost, ReplayedEmbedding, ReplayedLayer, ReplayedLinear

FIRST_VALUE = 0.25
COST = Cost(forward_s=1.0, input_s=2.0, weight_s=4.0)
ROWS = 6


class Stopwatch:
    """Device that only records its operations."""

    gradient = FIRST_VALUE

    def __init__(self) -> None:
        self.operations_s: list[float] = []

    def compute(self, seconds: float) -> None:
        self.operations_s.append(seconds)


@pytest.fixture
def device() -> Any:
    return Stopwatch()


@pytest.fixture
def conv(device: Any) -> ReplayedLayer:
    return ReplayedLayer(device, COST, [("weight", (30,)), ("bias", (3,)), ("norm.weight", (3,)), ("norm.bias", (3,))])


@pytest.fixture
def linear(device: Any) -> ReplayedLinear:
    return ReplayedLinear(device, COST, rows=ROWS, sizes=(5, 4))


@pytest.fixture
def embedding(device: Any) -> ReplayedEmbedding:
    return ReplayedEmbedding(device, COST, sizes=(7, 3))


CALLS: dict[str, Callable[[Any], torch.Tensor]] = {
    "conv": lambda layer: layer(torch.zeros(1)),
    "linear": lambda layer: layer(torch.zeros(ROWS, 5)),
    "embedding": lambda layer: layer(torch.tensor([0, 6, 6])),
}


@pytest.fixture(params=CALLS)
def layer_and_call(request: pytest.FixtureRequest) -> tuple[nn.Module, Callable[[Any], torch.Tensor]]:
    return request.getfixturevalue(request.param), CALLS[request.param]


def test_forward_and_backward_take_their_time_once(layer_and_call: Any, device: Stopwatch) -> None:
    layer, call = layer_and_call
    output = call(layer)
    assert device.operations_s == [1.0]
    output.sum().backward()
    assert device.operations_s == [1.0, 6.0]


def test_without_gradients_only_forward_takes_time(layer_and_call: Any, device: Stopwatch) -> None:
    layer, call = layer_and_call
    with torch.no_grad():
        output = call(layer)
    assert device.operations_s == [1.0]
    assert not output.requires_grad


def test_every_parameter_gets_a_gradient_of_its_own_shape(layer_and_call: Any) -> None:
    layer, call = layer_and_call
    call(layer).sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.shape == parameter.shape
        assert torch.equal(parameter.grad, torch.full(parameter.shape, FIRST_VALUE))


def test_the_lent_memory_itself_becomes_the_gradient(layer_and_call: Any) -> None:
    """A copy would cost CPU time: without one, what is written into the gradient is still there the next time."""
    layer, call = layer_and_call
    for step in range(3):
        layer.zero_grad()
        call(layer).sum().backward()
        for parameter in layer.parameters():
            assert torch.equal(parameter.grad, torch.full(parameter.shape, float(step) if step else FIRST_VALUE))
            parameter.grad.fill_(step + 1)


def test_gradients_stay_in_the_same_memory_step_by_step(layer_and_call: Any) -> None:
    layer, call = layer_and_call
    places = set()
    for _ in range(3):
        layer.zero_grad()
        call(layer).sum().backward()
        places.add(tuple(parameter.grad.data_ptr() for parameter in layer.parameters()))
    assert len(places) == 1


def test_gradients_of_two_passes_add_up(layer_and_call: Any) -> None:
    layer, call = layer_and_call
    for _ in range(2):
        call(layer).sum().backward()
    for parameter in layer.parameters():
        assert torch.allclose(parameter.grad, torch.full(parameter.shape, 2 * FIRST_VALUE))


def test_a_gradient_that_somebody_keeps_is_not_written_over(layer_and_call: Any) -> None:
    layer, call = layer_and_call
    call(layer).sum().backward()
    kept = [parameter.grad for parameter in layer.parameters()]
    layer.zero_grad()
    call(layer).sum().backward()
    for parameter, old in zip(layer.parameters(), kept, strict=True):
        parameter.grad.fill_(9)
        assert torch.equal(old, torch.full(old.shape, FIRST_VALUE))


def test_a_gradient_is_there_when_its_backward_time_has_passed_and_not_before(
    layer_and_call: Any, device: Stopwatch
) -> None:
    layer, call = layer_and_call
    seen = []
    for parameter in layer.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: seen.append(list(device.operations_s)))
    call(layer).sum().backward()
    assert seen == [[1.0, 6.0]] * len(seen)
    assert len(seen) == len(list(layer.parameters()))


def test_a_frozen_parameter_gets_no_gradient(conv: ReplayedLayer) -> None:
    conv.bias.requires_grad_(False)
    conv(torch.zeros(1)).sum().backward()
    assert conv.bias.grad is None
    assert conv.weight.grad is not None


def test_a_copy_has_memory_of_its_own(layer_and_call: Any) -> None:
    layer, call = layer_and_call
    call(layer).sum().backward()
    copied = copy.deepcopy(layer)
    copied.zero_grad()
    call(copied).sum().backward()
    for mine, theirs in zip(layer.parameters(), copied.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.grad.data_ptr() != theirs.grad.data_ptr()
        assert theirs.grad.shape == theirs.shape


def test_a_state_goes_from_one_layer_to_another(layer_and_call: Any) -> None:
    layer, _ = layer_and_call
    other = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_()
    other.load_state_dict(layer.state_dict())
    for mine, theirs in zip(layer.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_names_with_dots_become_parameters(conv: ReplayedLayer) -> None:
    assert [name for name, _ in conv.named_parameters()] == ["weight", "bias", "norm_weight", "norm_bias"]


# A fully connected layer


def test_it_is_a_linear_layer_to_whoever_looks(linear: ReplayedLinear) -> None:
    assert isinstance(linear, nn.Linear)
    assert (linear.in_features, linear.out_features) == (5, 4)
    assert (linear.weight.shape, linear.bias.shape) == ((4, 5), (4,))
    assert linear.weight.device.type == "cpu"
    assert torch.isfinite(linear.weight).all()


def test_it_may_have_no_bias(device: Any) -> None:
    linear = ReplayedLinear(device, COST, rows=ROWS, sizes=(5, 4), bias=False)
    assert [name for name, _ in linear.named_parameters()] == ["weight"]
    linear(torch.zeros(ROWS, 5)).sum().backward()
    assert linear.weight.grad is not None


def test_ordinary_hooks_see_activations_and_deltas(linear: ReplayedLinear) -> None:
    seen: dict[str, Any] = {}
    linear.register_forward_pre_hook(lambda module, given: seen.update(before=given[0].shape))
    linear.register_forward_hook(lambda module, given, made: seen.update(given=given[0].shape, made=made.shape))
    linear.register_full_backward_hook(lambda module, gave, took: seen.update(gave=gave[0].shape, took=took[0].shape))
    linear(torch.zeros(ROWS, 5, requires_grad=True)).sum().backward()
    assert seen == {"before": (ROWS, 5), "given": (ROWS, 5), "made": (ROWS, 4), "gave": (ROWS, 5), "took": (ROWS, 4)}
    assert linear.weight.grad is not None


def test_factors_are_handed_over_instead_of_the_weights_gradient(linear: ReplayedLinear, device: Stopwatch) -> None:
    taken: list[Any] = []
    linear.take_factors = lambda activations, deltas: (
        taken.append((activations, deltas, list(device.operations_s), linear.weight.grad)) is None
    )
    given = torch.rand(ROWS, 5)
    linear(given).backward(torch.full((ROWS, 4), 3.0))
    [(activations, deltas, operations_s, weight_gradient)] = taken
    assert torch.equal(activations, given)
    assert torch.equal(deltas, torch.full((ROWS, 4), 3.0))
    assert operations_s == device.operations_s == [1.0, 2.0]  # not the 4 s of the weight's gradient
    assert weight_gradient is None
    assert linear.weight.grad is None
    assert torch.equal(linear.bias.grad, torch.full((4,), FIRST_VALUE))


def test_factors_are_no_longer_handed_over_when_nobody_takes_them(linear: ReplayedLinear, device: Stopwatch) -> None:
    linear.take_factors = lambda activations, deltas: True
    linear(torch.zeros(ROWS, 5)).sum().backward()
    linear.take_factors = None
    linear(torch.zeros(ROWS, 5)).sum().backward()
    assert linear.weight.grad is not None
    assert device.operations_s == [1.0, 2.0, 1.0, 6.0]


def test_factors_that_are_refused_are_made_a_gradient_of(linear: ReplayedLinear, device: Stopwatch) -> None:
    linear.take_factors = lambda activations, deltas: False
    linear(torch.zeros(ROWS, 5)).sum().backward()
    assert linear.weight.grad is not None
    assert sum(device.operations_s) == 7.0


def test_the_layer_before_gets_its_delta_while_factors_are_taken(linear: ReplayedLinear) -> None:
    linear.take_factors = lambda activations, deltas: True
    given = torch.zeros(ROWS, 5, requires_grad=True)
    linear(given).sum().backward()
    assert given.grad is not None
    assert given.grad.shape == given.shape


@pytest.mark.parametrize("shares", [1, 2, 8])
def test_rebuilding_takes_time_in_proportion_to_the_rows(
    linear: ReplayedLinear, device: Stopwatch, shares: int
) -> None:
    gradient = linear.rebuild(torch.zeros(ROWS * shares, 5), torch.zeros(ROWS * shares, 4))
    assert device.operations_s == [pytest.approx(4.0 * shares)]
    assert gradient.shape == linear.weight.shape


def test_what_was_rebuilt_can_be_the_gradient(linear: ReplayedLinear) -> None:
    linear.take_factors = lambda activations, deltas: (
        setattr(linear.weight, "grad", linear.rebuild(activations, deltas)) is None
    )
    for _ in range(2):
        linear.zero_grad()
        linear(torch.zeros(ROWS, 5)).sum().backward()
        assert linear.weight.grad.shape == linear.weight.shape


def test_factors_of_different_lengths_do_not_belong_together(linear: ReplayedLinear) -> None:
    with pytest.raises(AssertionError, match="row by row"):
        linear.rebuild(torch.zeros(3, 5), torch.zeros(2, 4))


# An embedding


def test_it_is_an_embedding_to_whoever_looks(embedding: ReplayedEmbedding) -> None:
    assert isinstance(embedding, nn.Embedding)
    assert (embedding.num_embeddings, embedding.embedding_dim) == (7, 3)
    assert embedding(torch.tensor([1, 2, 1, 0])).shape == (4, 3)


def test_rows_are_handed_over_instead_of_the_gradient(embedding: ReplayedEmbedding, device: Stopwatch) -> None:
    taken: list[Any] = []
    embedding.take_rows = lambda tokens, rows: taken.append((tokens, rows, list(device.operations_s))) is None
    tokens = torch.tensor([1, 2, 1, 0])
    embedding(tokens).backward(torch.full((4, 3), 2.0))
    [(given, rows, operations_s)] = taken
    assert torch.equal(given, tokens)
    assert torch.equal(rows, torch.full((4, 3), 2.0))
    assert operations_s == [1.0, 6.0]
    assert embedding.weight.grad is None


def test_rows_that_are_refused_are_made_a_gradient_of(embedding: ReplayedEmbedding) -> None:
    embedding.take_rows = lambda tokens, rows: False
    embedding(torch.tensor([1, 2])).sum().backward()
    assert embedding.weight.grad is not None


def test_the_gradient_is_rebuilt_out_of_everybodys_rows(embedding: ReplayedEmbedding, device: Stopwatch) -> None:
    gradient = embedding.rebuild(torch.tensor([1, 2, 1]), torch.zeros(3, 3))
    assert gradient.shape == embedding.weight.shape
    assert sum(device.operations_s) == 0
    with pytest.raises(AssertionError, match="one row per token"):
        embedding.rebuild(torch.tensor([1, 2]), torch.zeros(3, 3))


def test_an_embedding_in_mid_model_passes_the_chain_on(embedding: ReplayedEmbedding) -> None:
    chain = torch.zeros(4, 2, requires_grad=True)
    embedding(torch.tensor([1]), chain).sum().backward()
    assert chain.grad is not None
    assert chain.grad.shape == chain.shape
    assert embedding.weight.grad is not None
