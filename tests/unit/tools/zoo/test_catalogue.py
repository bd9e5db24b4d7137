"""Every network of the zoo: its parameters, its flops, and what follows from its shapes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from undertow.errors import ConfigError
from undertow.tools import zoo
from undertow.tools.zoo import MODELS, Layer, LayerKind, Model, Tensor, find_model

NAMES = ["alexnet", "vgg19", "vgg19-22k", "googlenet", "inception-v3", "resnet50", "resnet152", "sockeye"]


def layer_of(model: str, name: str) -> Layer:
    (layer,) = (layer for layer in MODELS[model].layers if layer.name == name)
    return layer


def test_the_zoo_offers_these_names_and_models() -> None:
    assert zoo.__all__ == ["MODELS", "NETWORKS", "Layer", "LayerKind", "Model", "Tensor", "find_model"]
    assert list(MODELS) == NAMES
    assert len(MODELS) == len(NAMES)
    assert [model.name for model in MODELS.values()] == NAMES


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [
        ("alexnet", 60_965_224, 16),
        ("vgg19", 143_667_240, 38),
        ("vgg19-22k", 229_052_817, 38),
        ("googlenet", 6_998_552, 116),
        ("inception-v3", 27_161_264, 292),
        ("resnet50", 25_557_032, 161),
        ("resnet152", 60_192_808, 467),
        ("sockeye", 27_733_534, 29),
    ],
)
def test_parameters_are_as_published(name: str, parameters: int, tensors: int) -> None:
    model = MODELS[name]
    assert model.parameters == parameters == sum(layer.size for layer in model.layers)
    assert len(model.tensors) == tensors
    assert len({tensor.name for tensor in model.tensors}) == tensors
    assert len({layer.name for layer in model.layers}) == len(model.layers)


def test_inception_without_its_auxiliary_head_is_as_published() -> None:
    layers = MODELS["inception-v3"].layers
    assert sum(layer.size for layer in layers if not layer.name.startswith("AuxLogits")) == 23_834_568


@pytest.mark.parametrize(
    ("model", "layer", "size"),
    [
        ("alexnet", "fc6", 37_752_832),
        ("alexnet", "fc7", 16_781_312),
        ("alexnet", "fc8", 4_097_000),
        ("vgg19", "fc6", 102_764_544),
        ("vgg19", "fc7", 16_781_312),
        ("vgg19", "fc8", 4_097_000),
        ("vgg19-22k", "fc8", 89_482_577),
        ("googlenet", "fc", 1_025_000),
        ("inception-v3", "fc", 2_049_000),
        ("resnet50", "fc", 2_049_000),
        ("sockeye", "source", 8_802_304),
    ],
)
def test_the_largest_layers_are_as_published(model: str, layer: str, size: int) -> None:
    assert layer_of(model, layer).size == size


@pytest.mark.parametrize(
    ("name", "multiply_adds", "tolerance"),
    [
        ("alexnet", 0.72e9, 0.01),
        ("vgg19", 19.63e9, 0.01),
        ("googlenet", 1.55e9, 0.05),
        ("inception-v3", 5.71e9, 0.01),
        ("resnet50", 4.09e9, 0.01),
        ("resnet152", 11.51e9, 0.01),
    ],
)
def test_flops_are_as_known(name: str, multiply_adds: float, tolerance: float) -> None:
    assert MODELS[name].flops == pytest.approx(2 * multiply_adds, rel=tolerance)


@pytest.mark.parametrize(
    ("model", "layer", "workers"),
    [
        ("vgg19", "fc6", 220),
        ("vgg19", "fc7", 128),
        ("vgg19", "fc8", 50),
        ("vgg19-22k", "fc8", 216),
        ("inception-v3", "fc", 42),
        ("resnet50", "fc", 42),
        ("googlenet", "fc", 8),
        ("alexnet", "fc6", 22),
        ("alexnet", "fc7", 16),
        ("alexnet", "fc8", 6),
    ],
)
def test_factors_break_even_where_poseidon_says(model: str, layer: str, workers: int) -> None:
    linear = layer_of(model, layer)
    assert linear.kind is LayerKind.LINEAR
    rows, columns = linear.tensors[0].shape
    samples = MODELS[model].batch * linear.vectors
    assert round(2 * rows * columns / (samples * (rows + columns))) == workers


@pytest.mark.parametrize(
    ("name", "batch", "samples_per_s"),
    [
        ("alexnet", 256, 1024.0),
        ("vgg19", 32, 38.2),
        ("vgg19-22k", 32, 34.6),
        ("googlenet", 128, 257.0),
        ("inception-v3", 32, 43.2),
        ("resnet50", 32, 110.0),
        ("sockeye", 32, 100.0),
    ],
)
def test_rates_are_as_published(name: str, batch: int, samples_per_s: float) -> None:
    assert (MODELS[name].batch, MODELS[name].samples_per_s) == (batch, samples_per_s)


def test_an_unpublished_rate_is_scaled_by_flops_and_says_so() -> None:
    known, scaled = MODELS["resnet50"], MODELS["resnet152"]
    assert scaled.samples_per_s == pytest.approx(110 * known.flops / scaled.flops)
    assert scaled.flops_per_s == pytest.approx(known.flops_per_s)
    estimates = [name for name in NAMES if "estimate" in MODELS[name].source]
    assert estimates == ["resnet152", "sockeye"]


@pytest.mark.parametrize("name", NAMES)
def test_times_and_shares_add_up(name: str) -> None:
    model = MODELS[name]
    assert sum(model.shares) == pytest.approx(1)
    assert len(model.shares) == len(model.layers)
    assert model.forward_s + model.backward_s == pytest.approx(model.iteration_s)
    assert model.backward_s == pytest.approx(2 * model.forward_s)
    assert model.flops_per_s == pytest.approx(3 * model.flops * model.samples_per_s)
    assert model.title
    assert model.source.endswith(".")


def test_alexnet_takes_a_quarter_of_a_second() -> None:
    assert MODELS["alexnet"].iteration_s == 0.25


def test_a_batch_norm_belongs_to_its_convolution() -> None:
    assert layer_of("resnet50", "layer1.0.downsample.0") == Layer(
        name="layer1.0.downsample.0",
        kind=LayerKind.CONV,
        tensors=(
            Tensor("layer1.0.downsample.0.weight", (256, 64, 1, 1)),
            Tensor("layer1.0.downsample.1.weight", (256,)),
            Tensor("layer1.0.downsample.1.bias", (256,)),
        ),
        flops=2.0 * 256 * 64 * 56 * 56,
    )


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("alexnet", ["conv1.weight", "conv1.bias", "conv2.weight", "fc6.weight", "fc8.bias"]),
        ("vgg19", ["conv1_1.weight", "conv3_4.bias", "conv5_4.weight", "fc7.weight"]),
        ("googlenet", ["conv1.conv.weight", "inception3a.branch2.1.conv.bias", "inception5b.branch4.1.conv.weight"]),
        ("inception-v3", ["Conv2d_1a_3x3.bn.bias", "Mixed_7c.branch3x3dbl_3b.conv.weight", "AuxLogits.fc.weight"]),
        ("resnet50", ["conv1.weight", "bn1.weight", "layer1.0.bn1.weight", "layer4.2.conv3.weight", "fc.bias"]),
        ("resnet152", ["layer3.35.bn3.bias"]),
        ("sockeye", ["source.weight", "encoder.1.bias_hh_l0", "decoder.0.weight_ih_l0", "output.bias"]),
    ],
)
def test_tensors_have_their_usual_names(model: str, names: list[str]) -> None:
    assert set(names) <= {tensor.name for tensor in MODELS[model].tensors}


def test_layers_come_in_the_order_of_the_forward_pass() -> None:
    assert [layer.name for layer in MODELS["resnet50"].layers[:6]] == [
        "conv1",
        "layer1.0.conv1",
        "layer1.0.conv2",
        "layer1.0.conv3",
        "layer1.0.downsample.0",
        "layer1.1.conv1",
    ]
    inception = [layer.name for layer in MODELS["inception-v3"].layers]
    assert inception[-1] == "fc"
    assert inception.index("Mixed_6e.branch_pool.conv") + 1 == inception.index("AuxLogits.conv0.conv")
    assert all(model.layers[-1].kind is LayerKind.LINEAR for model in MODELS.values())


def test_sockeye_begins_with_its_largest_layer_and_counts_tokens() -> None:
    model = MODELS["sockeye"]
    assert model.layers[0].kind is LayerKind.EMBEDDING
    assert model.layers[0].size == max(layer.size for layer in model.layers)
    assert model.parameters == pytest.approx(27.7e6, rel=0.01)
    assert [layer.name for layer in model.layers if layer.kind is LayerKind.LSTM] == [
        *("encoder.0", "encoder.1"),
        *("decoder.0", "decoder.1"),
    ]
    assert (layer_of("sockeye", "output").vectors, layer_of("sockeye", "source").vectors) == (25, 25)
    assert layer_of("sockeye", "output").flops == 2.0 * 512 * 7710 * 25
    assert layer_of("sockeye", "encoder.0").flops == 2.0 * (4 * 512) * (512 + 512) * 25


def test_kinds_are_lower_case_words() -> None:
    assert [kind.value for kind in LayerKind] == ["conv", "linear", "lstm", "embedding", "other"]


def test_a_model_is_found_by_name() -> None:
    assert find_model("vgg19") is MODELS["vgg19"]


@pytest.mark.parametrize(
    ("name", "meant"), [("resnet-50", "resnet50"), ("Sockeye", "sockeye"), ("vgg19_22k", "vgg19-22k")]
)
def test_a_mistyped_model_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown model '{name}'; did you mean '{meant}'[?] known: alexnet, vgg19, "):
        find_model(name)


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'bert'; known: alexnet, .*, sockeye$"):
        find_model("bert")
    with pytest.raises(KeyError):
        MODELS["bert"]


def test_importing_the_zoo_makes_no_model_and_imports_no_framework() -> None:
    code = (
        "import sys, undertow.tools.zoo as zoo, undertow.tools.zoo.catalogue as catalogue; list(zoo.MODELS);"
        "assert not {'torch', 'numpy'} & set(sys.modules); assert not catalogue._make.cache_info().currsize"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_a_model_of_ones_own_works_too() -> None:
    layers = (
        Layer(name="a", kind=LayerKind.OTHER, tensors=(Tensor("a.x", (2, 3)), Tensor("a.y", ())), flops=1.0),
        Layer(name="b", kind=LayerKind.OTHER, tensors=(), flops=3.0),
    )
    model = Model(name="own", title="Own", layers=layers, batch=2, samples_per_s=4.0, source="None.")
    assert (model.parameters, model.flops, model.shares) == (7, 4.0, (0.25, 0.75))
    assert (model.iteration_s, model.flops_per_s) == (0.5, 48.0)
