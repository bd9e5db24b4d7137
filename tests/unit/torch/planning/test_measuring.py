"""A survey of the first passes with a fake clock, and the rows that each layer sees."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from undertow.plan.profile import LayerKind, Profile
from undertow.torch.factors.layers import find_layers
from undertow.torch.modules.hooks import ForwardHook
from undertow.torch.planning.measuring import MEASURED, WARM_UP, RowCounter, Survey


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Slow(nn.Linear):
    """A layer that takes a given time."""

    def __init__(self, clock: Clock, duration_s: float) -> None:
        super().__init__(2, 2)
        self.clock = [clock]  # in a list, so that it does not belong to the compared state
        self.duration_s = duration_s

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.clock[0].now_s += self.duration_s
        return super().forward(input)


class Net(nn.Module):
    """A net whose layers are used in another order than defined, one twice, one never, with a pause in between."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.unused = Slow(clock, 1000.0)
        self.last = Slow(clock, 4.0)
        self.first = Slow(clock, 1.0)
        self.clock = [clock]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output = self.first(input)
        self.clock[0].now_s += 0.5  # time without parameters belongs to the layer before
        return self.first(self.last(output))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def net(clock: Clock) -> Net:
    return Net(clock)


def run_pass(survey: Survey, net: Net, clock: Clock, *, backward_s: float = 1.0) -> None:
    survey.start_forward()
    net(torch.ones(1, 2))
    clock.now_s += 0.25  # the loss
    survey.start_backward()
    for parameter, duration_s in (
        (net.last.bias, 2.0),
        (net.last.weight, 1.0),
        (net.first.bias, 0.0),
        (net.first.weight, 3.0),
    ):
        clock.now_s += backward_s * duration_s
        survey.ready(parameter)
    clock.now_s += 100.0  # nobody's
    survey.end_backward()


def make_profile(survey: Survey, net: nn.Module, **options: Any) -> Profile:
    names = {parameter: name for name, parameter in net.named_parameters()}
    return survey.make_profile(names, options.get("layers", {}), options.get("obstacles", {}))


def survey_all(net: Net, clock: Clock) -> Survey:
    survey = Survey(net, clock)
    for _ in range(WARM_UP + MEASURED):
        run_pass(survey, net, clock)
    return survey


# The survey


def test_times_are_those_of_each_layer_in_the_order_of_use(net: Net, clock: Clock) -> None:
    profile = make_profile(survey_all(net, clock), net)
    assert [layer.name for layer in profile.layers] == ["first", "last", "unused"]
    assert [layer.forward_s for layer in profile.layers] == [1.0 + 0.5 + 1.0 + 0.25, 4.0, 0.0]
    assert [layer.backward_s for layer in profile.layers] == [3.0, 3.0, 0.0]
    assert [tensor.name for tensor in profile.layers[1].tensors] == ["last.weight", "last.bias"]


def test_the_first_pass_only_warms_up(net: Net, clock: Clock) -> None:
    survey = Survey(net, clock)
    seen = []
    for _ in range(WARM_UP + MEASURED + 1):
        seen.append((survey.is_measuring, survey.is_over))
        run_pass(survey, net, clock)
    assert seen == [(False, False)] * WARM_UP + [(True, False)] * MEASURED + [(False, True)]


def test_a_slow_first_pass_does_not_count(net: Net, clock: Clock) -> None:
    survey = Survey(net, clock)
    net.last.duration_s = 0.001  # faster than any later pass
    for _ in range(WARM_UP):
        run_pass(survey, net, clock, backward_s=0.0)
    net.last.duration_s = 4.0
    for _ in range(MEASURED):
        run_pass(survey, net, clock)
    profile = make_profile(survey, net)
    assert [layer.forward_s for layer in profile.layers] == [2.75, 4.0, 0.0]
    assert [layer.backward_s for layer in profile.layers] == [3.0, 3.0, 0.0]


def test_the_shortest_time_of_each_layer_counts(net: Net, clock: Clock) -> None:
    survey = Survey(net, clock)
    for last_s, first_s, backward_s in ((9.0, 9.0, 9.0), (4.0, 7.0, 2.0), (6.0, 5.0, 3.0)):
        net.last.duration_s, net.first.duration_s = last_s, first_s
        run_pass(survey, net, clock, backward_s=backward_s)
    profile = make_profile(survey, net)
    assert [layer.forward_s for layer in profile.layers] == [2 * 5.0 + 0.75, 4.0, 0.0]
    assert [layer.backward_s for layer in profile.layers] == [6.0, 6.0, 0.0]


def test_a_forward_without_backward_is_forgotten(net: Net, clock: Clock) -> None:
    survey = Survey(net, clock)
    for _ in range(WARM_UP):
        run_pass(survey, net, clock)
    for _ in range(3):
        survey.start_forward()
        net(torch.ones(1, 2))
        clock.now_s += 50.0
    assert survey.is_measuring
    for _ in range(MEASURED):
        run_pass(survey, net, clock)
    assert [layer.forward_s for layer in make_profile(survey, net).layers] == [2.75, 4.0, 0.0]


def test_nothing_is_measured_after_the_last_pass(net: Net, clock: Clock) -> None:
    survey = survey_all(net, clock)
    before = make_profile(survey, net)
    net.last.duration_s = net.first.duration_s = 0.0
    run_pass(survey, net, clock, backward_s=0.0)
    assert make_profile(survey, net) == before


def test_gradients_of_other_modules_are_ignored(net: Net, clock: Clock) -> None:
    survey = Survey(net, clock)
    for _ in range(WARM_UP + MEASURED):
        survey.start_forward()
        net(torch.ones(1, 2))
        survey.start_backward()
        clock.now_s += 1.0
        survey.ready(nn.Parameter(torch.zeros(1)))
        clock.now_s += 2.0
        survey.ready(net.first.weight)
        survey.end_backward()
    assert make_profile(survey, net).layers[0].backward_s == 3.0


def test_a_shared_parameter_belongs_to_its_first_reader(net: Net, clock: Clock) -> None:
    net.last.weight = net.first.weight
    survey = Survey(net, clock)
    profile = make_profile(survey, net)
    owners = {tensor.name: layer.name for layer in profile.layers for tensor in layer.tensors}
    assert len(profile.tensors) == len(list(net.parameters()))
    assert owners["last.weight"] == owners["last.bias"]


def test_only_named_parameters_are_in_the_profile(net: Net, clock: Clock) -> None:
    """Frozen ones are not synchronised, and cost only time."""
    profile = survey_all(net, clock).make_profile({net.last.weight: "last.weight"}, {}, {})
    assert [tensor.name for tensor in profile.tensors] == ["last.weight"]
    assert profile.layers[0].forward_s == 4.0


def test_the_profile_has_kinds_shapes_and_obstacles() -> None:
    class Rebuilt(nn.Linear):
        product_s = 0.125

    net = nn.Sequential(
        nn.Embedding(7, 3), Rebuilt(3, 5), nn.Conv1d(1, 2, 3), nn.LSTM(2, 2), nn.Linear(2, 4).to(torch.float64)
    )
    layers, obstacles = find_layers(net)
    obstacles[net[4].weight] = "it is late"
    known = {layer.weight: layer for layer in layers if layer.weight is not net[4].weight}
    profile = make_profile(Survey(net, Clock()), net, layers=known, obstacles=obstacles)
    tensors = {tensor.name: tensor for tensor in profile.tensors}
    assert [tensors[name].kind for name in ("0.weight", "1.weight", "2.weight", "3.weight_hh_l0")] == [
        LayerKind.EMBEDDING,
        LayerKind.LINEAR,
        LayerKind.CONV,
        LayerKind.LSTM,
    ]
    assert tensors["1.weight"].product_s == 0.125
    assert (tensors["1.weight"].shape, tensors["1.bias"].shape) == ((5, 3), (5,))
    assert {tensor.rows for tensor in profile.tensors} == {0.0}
    late = tensors["4.weight"]
    assert (late.kind, late.obstacle, late.itemsize) == (LayerKind.OTHER, "it is late", 8)


# Its hooks


def hooks_of(module: nn.Module) -> list[Any]:
    return [hook for part in module.modules() for hook in part._forward_pre_hooks.values()]


def test_hooks_are_there_only_while_a_forward_is_measured(net: Net, clock: Clock) -> None:
    survey = Survey(net, clock)
    for _ in range(WARM_UP + MEASURED + 2):
        survey.start_forward()
        assert bool(hooks_of(net)) is survey.is_measuring
        net(torch.ones(1, 2))
        survey.start_backward()
        assert not hooks_of(net)
        survey.end_backward()


def test_a_forward_without_backward_leaves_one_set_of_hooks(net: Net, clock: Clock) -> None:
    survey = Survey(net, clock)
    for _ in range(WARM_UP):
        run_pass(survey, net, clock)
    counts = []
    for _ in range(3):
        survey.start_forward()
        counts.append(len(hooks_of(net)))
    assert counts == [3, 3, 3]


def copy_through_file(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    copied: nn.Module = torch.load(file, weights_only=False)
    return copied


WAYS_TO_COPY = [copy.deepcopy, copy_through_file]


@pytest.mark.parametrize("duplicate", WAYS_TO_COPY)
def test_a_copy_of_the_module_is_not_measured(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    clock = Clock()
    survey = Survey(net, clock)
    for _ in range(WARM_UP):
        survey.start_forward()
        survey.start_backward()
        survey.end_backward()
    survey.start_forward()
    assert len(hooks_of(net)) == 2
    copied = duplicate(net)
    assert not any(isinstance(hook, ForwardHook) for hook in hooks_of(copied))
    clock.now_s += 7.0
    copied(torch.ones(1, 2))
    survey.start_backward()
    assert make_profile(survey, net).compute_s == 0.0


# Rows


def watch(module: nn.Module) -> RowCounter:
    counter = RowCounter()
    names = {parameter: name for name, parameter in module.named_parameters()}
    for layer in find_layers(module)[0]:
        counter.watch(layer, names[layer.weight])
    return counter


def run(counter: RowCounter, module: nn.Module, *inputs: torch.Tensor) -> None:
    for input in inputs:
        module(input)
    counter.end_pass()


def test_rows_of_a_linear_layer_are_samples_times_positions() -> None:
    net = nn.Linear(4, 3)
    counter = watch(net)
    run(counter, net, torch.ones(5, 4))
    assert counter.take() == {"weight": 5.0}
    run(counter, net, torch.ones(5, 7, 4))
    assert counter.take() == {"weight": 35.0}
    run(counter, net, torch.ones(4))
    assert counter.take() == {"weight": 1.0}
    run(counter, net, torch.ones(0, 4))
    assert counter.take() == {"weight": 0.0}


def test_rows_are_averaged_over_passes_since_the_last_call() -> None:
    net = nn.Linear(4, 3)
    counter = watch(net)
    run(counter, net, torch.ones(2, 4))
    run(counter, net, torch.ones(6, 4))
    assert counter.take() == {"weight": 4.0}
    run(counter, net)
    run(counter, net, torch.ones(6, 4))
    assert counter.take() == {"weight": 3.0}
    assert counter.take() == {}


def test_several_calls_of_a_layer_in_one_pass_add_up() -> None:
    """Including those of passes that only accumulate."""
    net = nn.Linear(4, 3)
    counter = watch(net)
    run(counter, net, torch.ones(2, 4), torch.ones(3, 4))
    assert counter.take() == {"weight": 5.0}


def test_touched_rows_are_counted_once_and_then_estimated_from_tokens() -> None:
    net = nn.Embedding(10, 3)
    counter = watch(net)
    run(counter, net, torch.tensor([[1, 1, 2, 2]]))
    assert counter.take() == {"weight": 2.0}
    run(counter, net, torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]]))  # half of its tokens, as before
    assert counter.take() == {"weight": 4.0}


def test_an_empty_batch_does_not_count_touched_rows() -> None:
    net = nn.Embedding(10, 3)
    counter = watch(net)
    run(counter, net, torch.empty(0, dtype=torch.int64))
    assert counter.take() == {"weight": 0.0}
    run(counter, net, torch.tensor([3, 3, 3, 3]))
    assert counter.take() == {"weight": 1.0}


def test_bags_count_their_touched_rows() -> None:
    net = nn.EmbeddingBag(10, 3, mode="sum")
    counter = watch(net)
    run(counter, net, torch.tensor([[1, 1], [1, 2]]))
    assert counter.take() == {"weight": 2.0}


def test_an_input_passed_by_name_counts() -> None:
    net = nn.Linear(4, 3)
    counter = watch(net)
    net(input=torch.ones(5, 4))
    counter.end_pass()
    assert counter.take() == {"weight": 5.0}


def test_calls_without_gradient_are_not_counted() -> None:
    net = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3))
    counter = watch(net)
    with torch.no_grad():
        net(torch.arange(10))
    with torch.inference_mode():
        net(torch.arange(10))
    run(counter, net, torch.tensor([1, 1]))
    assert counter.take() == {"0.weight": 1.0, "1.weight": 2.0}


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputation_in_backward_is_counted_once(use_reentrant: bool) -> None:
    net = nn.Linear(4, 3)
    counter = watch(net)
    for _ in range(2):
        output = checkpoint(net, torch.ones(5, 4, requires_grad=True), use_reentrant=use_reentrant)
        counter.end_pass()
        output.sum().backward()
    assert counter.take() == {"weight": 5.0}


@pytest.mark.parametrize("duplicate", WAYS_TO_COPY)
def test_calls_of_a_copied_module_are_not_counted(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    counter = watch(net)
    copied = duplicate(net)
    run(counter, copied, torch.ones(9, 4))
    copied(torch.ones(9, 4))
    assert counter.take() == {}


def test_a_layer_works_after_its_counter_is_deleted() -> None:
    net = nn.Linear(4, 3)
    watch(net)
    gc.collect()
    assert net(torch.ones(2, 4)).shape == (2, 3)
