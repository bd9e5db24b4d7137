"""What `--scale` does to the zoo: every byte count is divided by it, nothing vanishes."""

from __future__ import annotations

import math

import pytest

from undertow.lab.replay.scaling import scale_rows, scale_shape
from undertow.zoo import MODELS, Kind, Layer, Tensor, find_model

SCALES = (10.0, 100.0)
LINEAR = [
    pytest.param(name, layer, id=f"{name}-{layer.name}")
    for name in MODELS
    for layer in find_model(name).layers
    if layer.kind is Kind.LINEAR
]
EMBEDDINGS = [
    pytest.param(name, layer, id=f"{name}-{layer.name}")
    for name in MODELS
    for layer in find_model(name).layers
    if layer.kind is Kind.EMBEDDING
]


def make_layer(kind: Kind, *shapes: tuple[int, ...], vectors: int = 1) -> Layer:
    tensors = tuple(Tensor(f"t{index}", shape) for index, shape in enumerate(shapes))
    return Layer(name="layer", kind=kind, tensors=tensors, flops=1.0, vectors=vectors)


@pytest.mark.parametrize(("model", "layer"), LINEAR)
@pytest.mark.parametrize("scale", SCALES)
def test_a_matrix_shrinks_by_the_scale(model: str, layer: Layer, scale: float) -> None:
    rows, columns = layer.tensors[0].shape
    scaled_rows, scaled_columns = scale_shape(layer, layer.tensors[0], scale)
    if min(rows, columns) == 1:  # there is no half of one: such a vector only loses what its other side loses
        assert sorted((scaled_rows, scaled_columns)) == [1, pytest.approx(max(rows, columns) / math.sqrt(scale), abs=1)]
        return
    assert scaled_rows * scaled_columns == pytest.approx(rows * columns / scale, rel=0.03)
    assert scaled_rows / scaled_columns == pytest.approx(rows / columns, rel=0.03)  # it stays the same kind of matrix


@pytest.mark.parametrize(("model", "layer"), LINEAR)
@pytest.mark.parametrize("scale", SCALES)
def test_factors_shrink_by_the_scale(model: str, layer: Layer, scale: float) -> None:
    batch = find_model(model).batch
    samples = batch * layer.vectors
    scaled_samples = scale_rows(layer, batch=batch, scale=scale)
    scaled_sizes = sum(scale_shape(layer, layer.tensors[0], scale))
    # A row is a row: half of one is what rounding may cost, and the lengths cost what they cost above.
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


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("scale", [10.0, 1e4, 1e12])
def test_tiny_tensors_never_vanish(kind: Kind, scale: float) -> None:
    layer = make_layer(kind, (1, 1), (1,), vectors=1)
    for tensor in layer.tensors:
        assert scale_shape(layer, tensor, scale) in ((1,) * len(tensor.shape), (1,))
    assert scale_rows(layer, batch=1, scale=scale) == 1


def test_a_linear_layers_bias_stays_as_long_as_its_output() -> None:
    layer = make_layer(Kind.LINEAR, (1000, 400), (1000,))
    assert [scale_shape(layer, tensor, 100.0) for tensor in layer.tensors] == [(100, 40), (100,)]


def test_a_scale_below_one_makes_everything_larger() -> None:
    layer = make_layer(Kind.CONV, (8, 4, 3, 3))
    assert scale_shape(layer, layer.tensors[0], 0.5) == (576,)
