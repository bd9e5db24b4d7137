"""Whole replayed models: the published time, the published order, and an optimizer that costs nothing."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from undertow.tools.lab.bench.worker import count_gradient_bytes
from undertow.tools.lab.replay.layers import ReplayedEmbedding, ReplayedLinear
from undertow.tools.lab.replay.model import MOVED, ReplayedModel, ReplayedSGD, scale_rows, scale_shape
from undertow.tools.zoo import MODELS, Layer, LayerKind, Tensor, find_model

# As small as a tensor gets: only times and names matter here.
TINY = 1e5


class Stopwatch:
    """Device that only records its operations, in a list with other events."""

    gradient = 0.25

    def __init__(self) -> None:
        self.story: list[Any] = []

    def compute(self, seconds: float) -> None:
        self.story.append(seconds)

    @property
    def operations_s(self) -> list[float]:
        return [entry for entry in self.story if isinstance(entry, float)]


def make(name: str, **options: Any) -> tuple[ReplayedModel, Stopwatch]:
    device = Stopwatch()
    options = {"scale": TINY, **options}
    return ReplayedModel(find_model(name), device=device, **options), device  # type: ignore[arg-type]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int, batches: ReplayedModel) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(*batches.make_batch(0, step)).sum().backward()
        optimizer.step()


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_one_step_takes_the_published_time_and_forward_a_third_of_it(name: str) -> None:
    model, device = make(name)
    published = find_model(name)
    loss = model(*model.make_batch(0, 0)).sum()
    assert sum(device.operations_s) == pytest.approx(published.iteration_s / 3)
    assert len(device.operations_s) == len(published.layers)
    loss.backward()
    assert sum(device.operations_s) == pytest.approx(published.iteration_s)
    assert len(device.operations_s) == 2 * len(published.layers)


def test_each_layers_gradients_come_when_its_own_time_has_passed(name: str) -> None:
    """Gradients appear from the last layer to the first, each after its own backward time and before the next one's."""
    model, device = make(name)
    published = find_model(name)
    for layer_name, layer in model.layers.items():
        for parameter in layer.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, n=layer_name: device.story.append(n))
    loss = model(*model.make_batch(0, 0)).sum()
    device.story.clear()
    loss.backward()
    expected: list[Any] = []
    for layer, share in reversed(list(zip(published.layers, published.shares, strict=True))):
        expected.append(pytest.approx(published.backward_s * share))
        expected += [layer.name.replace(".", "_")] * len(layer.tensors)
    assert device.story == expected


def test_it_has_all_layers_and_tensors_of_the_zoo(name: str) -> None:
    model, _ = make(name, scale=10.0)
    published = find_model(name)
    assert len(model.layers) == len(published.layers)
    assert len(list(model.parameters())) == len(published.tensors)
    assert count_gradient_bytes(model) == pytest.approx(4 * published.parameters / 10, rel=0.01)


def test_every_parameter_of_it_gets_its_gradient(name: str) -> None:
    model, _ = make(name)
    model(*model.make_batch(0, 0)).sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.shape == parameter.shape


def test_another_batch_stretches_all_times(name: str) -> None:
    published = find_model(name)
    model, device = make(name, batch=3 * published.batch)
    model(*model.make_batch(0, 0)).sum().backward()
    assert model.batch == 3 * published.batch
    assert sum(device.operations_s) == pytest.approx(3 * published.iteration_s)


def test_inputs_and_outputs_of_the_fully_connected_layers_have_the_scaled_shapes() -> None:
    model, _ = make("alexnet", scale=100.0)
    seen = {}

    def look(module: Any, given: Any, made: Any) -> None:
        seen[module] = tuple(given[0].shape), tuple(made.shape)

    layers = [layer for layer in model.layers.values() if isinstance(layer, ReplayedLinear)]
    for layer in layers:
        layer.register_forward_hook(look)
    model(*model.make_batch(0, 0))
    rows = round(256 / 10)
    assert [seen[layer] for layer in layers] == [
        ((rows, 922), (rows, 410)),
        ((rows, 410), (rows, 410)),
        ((rows, 410), (rows, 100)),
    ]


def test_the_kinds_of_layers_are_those_of_the_zoo() -> None:
    model, _ = make("sockeye")
    kinds = {LayerKind.LINEAR: ReplayedLinear, LayerKind.EMBEDDING: ReplayedEmbedding}
    for layer, module in zip(find_model("sockeye").layers, model.layers.values(), strict=True):
        for kind, class_ in kinds.items():
            assert isinstance(module, class_) is (layer.kind is kind)


def test_factors_of_a_whole_model_have_their_shapes() -> None:
    model, device = make("sockeye", scale=100.0)
    taken: dict[str, tuple[Any, Any]] = {}
    for name, layer in model.layers.items():
        if isinstance(layer, ReplayedLinear):
            layer.take_factors = lambda a, d, n=name: taken.update({n: (a.shape, d.shape)}) is None
        if isinstance(layer, ReplayedEmbedding):
            layer.take_rows = lambda t, r, n=name: taken.update({n: (t.shape, r.shape)}) is None
    model(*model.make_batch(0, 0)).sum().backward()
    saved_s = 0.0
    for name, layer in model.layers.items():
        if isinstance(layer, ReplayedLinear):
            assert taken.pop(name) == ((layer.rows, layer.in_features), (layer.rows, layer.out_features))
            saved_s += layer.cost.weight_s
        if isinstance(layer, ReplayedEmbedding):
            tokens, rows = taken.pop(name)
            assert rows == (*tokens, layer.embedding_dim)
        if isinstance(layer, ReplayedLinear | ReplayedEmbedding):
            assert layer.weight.grad is None
    assert not taken
    assert saved_s > 0
    assert sum(device.operations_s) == pytest.approx(find_model("sockeye").iteration_s - saved_s)


@pytest.mark.parametrize("scale", [10.0, 5000.0, TINY])
def test_tokens_are_in_range(scale: float) -> None:
    model, _ = make("sockeye", scale=scale)
    for step in range(50):
        for tokens, (length, count) in zip(model.make_batch(1, step), model.tokens, strict=True):
            assert (tokens.shape, tokens.dtype) == ((count,), torch.int64)
            assert 0 <= int(tokens.min()) <= int(tokens.max()) < length


def test_tokens_depend_on_rank_and_step_alone() -> None:
    model, _ = make("sockeye", scale=10.0)
    batch = model.make_batch(1, 7)
    assert len(batch) == sum(layer.kind is LayerKind.EMBEDDING for layer in find_model("sockeye").layers)
    assert all(map(torch.equal, batch, model.make_batch(1, 7)))
    for rank, step in ((0, 7), (1, 8)):
        assert not all(map(torch.equal, batch, model.make_batch(rank, step)))


def test_an_image_model_needs_no_tokens() -> None:
    assert make("googlenet")[0].make_batch(0, 0) == ()


def test_a_copied_model_trains_like_the_first_and_apart_from_it() -> None:
    model, device = make("sockeye")
    copied = copy.deepcopy(model)
    for one in (model, copied):
        train(one, ReplayedSGD(one.parameters()), steps=3, batches=model)
    for mine, theirs in zip(model.parameters(), copied.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()
    assert sum(device.operations_s) == pytest.approx(3 * find_model("sockeye").iteration_s)


def test_a_state_goes_from_one_model_to_another() -> None:
    trained, _ = make("googlenet")
    train(trained, ReplayedSGD(trained.parameters()), steps=2, batches=trained)
    fresh, _ = make("googlenet")
    assert not _same(trained, fresh)
    assert not any(fresh.load_state_dict(trained.state_dict()))
    assert _same(trained, fresh)


def _same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


# The optimizer


def with_gradient(size: int, gradient: float) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(size))
    parameter.grad = torch.full((size,), gradient)
    return parameter


def test_only_the_first_elements_move() -> None:
    large, small = with_gradient(MOVED + 100, 2.0), with_gradient(3, 4.0)
    ReplayedSGD([large, small], lr=0.5).step()
    assert torch.equal(large[:MOVED], torch.full((MOVED,), -1.0))
    assert torch.equal(large[MOVED:], torch.zeros(100))
    assert torch.equal(small, torch.full((3,), -2.0))


def test_every_group_has_its_own_rate() -> None:
    slow, fast = with_gradient(2, 1.0), with_gradient(2, 1.0)
    optimizer = ReplayedSGD([{"params": [slow]}, {"params": [fast], "lr": 1.0}], lr=0.25)  # type: ignore[list-item]
    optimizer.step()
    assert (slow[0], fast[0]) == (-0.25, -1.0)


def test_a_scheduler_moves_the_rate() -> None:
    parameter = with_gradient(1, 1.0)
    optimizer = ReplayedSGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    assert parameter.item() == -1.75


def test_a_closure_is_called_with_gradients_enabled_and_its_loss_returned() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = ReplayedSGD([parameter], lr=1.0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (3 * parameter).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 6
    assert torch.equal(parameter, torch.full((2,), -2.0))
    assert optimizer.step() is None


def test_what_has_no_gradient_stays() -> None:
    idle = nn.Parameter(torch.ones(2))
    ReplayedSGD([idle]).step()
    assert torch.equal(idle, torch.ones(2))


def test_a_matrix_moves_along_its_first_row() -> None:
    parameter = nn.Parameter(torch.zeros(2, MOVED))
    parameter.grad = torch.ones(2, MOVED)
    ReplayedSGD([parameter], lr=1.0).step()
    assert torch.equal(parameter[0], torch.full((MOVED,), -1.0))
    assert torch.equal(parameter[1], torch.zeros(MOVED))


# Scaling


SCALES = (10.0, 100.0)
LINEAR = [
    pytest.param(name, layer, id=f"{name}-{layer.name}")
    for name in MODELS
    for layer in find_model(name).layers
    if layer.kind is LayerKind.LINEAR
]
EMBEDDINGS = [
    pytest.param(name, layer, id=f"{name}-{layer.name}")
    for name in MODELS
    for layer in find_model(name).layers
    if layer.kind is LayerKind.EMBEDDING
]


def make_layer(kind: LayerKind, *shapes: tuple[int, ...], vectors: int = 1) -> Layer:
    tensors = tuple(Tensor(f"t{index}", shape) for index, shape in enumerate(shapes))
    return Layer(name="layer", kind=kind, tensors=tensors, flops=1.0, vectors=vectors)


@pytest.mark.parametrize(("model", "layer"), LINEAR)
@pytest.mark.parametrize("scale", SCALES)
def test_a_matrix_shrinks_by_the_scale(model: str, layer: Layer, scale: float) -> None:
    rows, columns = layer.tensors[0].shape
    scaled_rows, scaled_columns = scale_shape(layer, layer.tensors[0], scale)
    if min(rows, columns) == 1:  # 1 cannot be halved: only the other side shrinks
        assert sorted((scaled_rows, scaled_columns)) == [1, pytest.approx(max(rows, columns) / math.sqrt(scale), abs=1)]
        return
    assert scaled_rows * scaled_columns == pytest.approx(rows * columns / scale, rel=0.03)
    assert scaled_rows / scaled_columns == pytest.approx(rows / columns, rel=0.03)  # the proportions stay


@pytest.mark.parametrize(("model", "layer"), LINEAR)
@pytest.mark.parametrize("scale", SCALES)
def test_factors_shrink_by_the_scale(model: str, layer: Layer, scale: float) -> None:
    batch = find_model(model).batch
    samples = batch * layer.vectors
    scaled_samples = scale_rows(layer, batch=batch, scale=scale)
    scaled_sizes = sum(scale_shape(layer, layer.tensors[0], scale))
    # Rounding may change half a row, and the lengths as much as above.
    rounding = 0.5 / (samples / math.sqrt(scale)) + 0.015
    assert scaled_samples * scaled_sizes == pytest.approx(
        samples * sum(layer.tensors[0].shape) / scale, rel=min(rounding, 0.07)
    )


@pytest.mark.parametrize(("model", "layer"), EMBEDDINGS)
@pytest.mark.parametrize("scale", SCALES)
def test_an_embedding_loses_rows_and_tokens_and_never_columns(model: str, layer: Layer, scale: float) -> None:
    batch = find_model(model).batch
    length, columns = layer.tensors[0].shape
    scaled = scale_shape(layer, layer.tensors[0], scale)
    assert scaled == (pytest.approx(length / scale, abs=0.5), columns)
    assert scale_rows(layer, batch=batch, scale=scale) == pytest.approx(batch * layer.vectors / scale, abs=0.5)


def test_the_zoo_has_both_kinds() -> None:
    assert LINEAR
    assert EMBEDDINGS


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_shrinks_by_the_scale(name: str) -> None:
    model = find_model(name)
    scaled = sum(math.prod(scale_shape(layer, tensor, 10.0)) for layer in model.layers for tensor in layer.tensors)
    assert scaled == pytest.approx(model.parameters / 10, rel=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_unscaled_is_as_published(name: str) -> None:
    model = find_model(name)
    for layer in model.layers:
        assert scale_rows(layer, batch=model.batch, scale=1.0) == model.batch * layer.vectors
        for tensor in layer.tensors:
            assert math.prod(scale_shape(layer, tensor, 1.0)) == tensor.size


@pytest.mark.parametrize("kind", LayerKind)
@pytest.mark.parametrize("scale", [10.0, 1e4, 1e12])
def test_tiny_tensors_never_vanish(kind: LayerKind, scale: float) -> None:
    layer = make_layer(kind, (1, 1), (1,), vectors=1)
    for tensor in layer.tensors:
        assert scale_shape(layer, tensor, scale) in ((1,) * len(tensor.shape), (1,))
    assert scale_rows(layer, batch=1, scale=scale) == 1


def test_a_linear_layers_bias_stays_as_long_as_its_output() -> None:
    layer = make_layer(LayerKind.LINEAR, (1000, 400), (1000,))
    assert [scale_shape(layer, tensor, 100.0) for tensor in layer.tensors] == [(100, 40), (100,)]


def test_a_scale_below_one_makes_everything_larger() -> None:
    layer = make_layer(LayerKind.CONV, (8, 4, 3, 3))
    assert scale_shape(layer, layer.tensors[0], 0.5) == (576,)
