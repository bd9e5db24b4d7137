"""Models that compute for real have the same tensors, shapes and flops as the zoo's networks."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from undertow.tools.lab.real import REAL_NAMES
from undertow.tools.lab.real.models import ConvNet, Gpt, GptShape, Sockeye
from undertow.tools.zoo import MODELS, NETWORKS
from undertow.tools.zoo.model import read_layers
from undertow.tools.zoo.network import Conv, Network, Residual, Size, branches, chain, walk
from undertow.tools.zoo.sockeye import Dimensions, sockeye_layers

BOTH_SIZES = pytest.mark.parametrize("size", list(Size))
EVERY_NETWORK = pytest.mark.parametrize("name", list(NETWORKS))


def build(name: str, size: Size) -> ConvNet:
    """Create the model on the meta device: shapes without numbers, so a whole VGG19-22K costs nothing."""
    with torch.device("meta"):
        return ConvNet(NETWORKS[name](size))


def images_for(model: ConvNet, count: int) -> torch.Tensor:
    return torch.empty(count, *model.network.input, device="meta")


def shapes(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


@BOTH_SIZES
@EVERY_NETWORK
def test_torch_has_the_same_tensors_makes_the_same_shapes_and_counts_the_same_flops(name: str, size: Size) -> None:
    model = build(name, size)
    layers, visits = read_layers(model.network), walk(model.network)
    assert shapes(model) == {tensor.name: tensor.shape for layer in layers for tensor in layer.tensors}
    seen: list[tuple[str, tuple[int, ...]]] = []
    for visit in visits:
        model.get_submodule(visit.node.name).register_forward_hook(
            lambda _layer, _taken, made, name=visit.node.name: seen.append((name, (*made.shape[1:], 1, 1)[:3]))
        )
    with FlopCounterMode(display=False) as counter:
        model(images_for(model, count=3))
    assert seen == [(visit.node.name, visit.made) for visit in visits]
    assert counter.get_total_flops() == 3 * sum(layer.flops for layer in layers)


@EVERY_NETWORK
def test_at_cifar_size_only_the_classifiers_and_the_first_flat_layer_change(name: str) -> None:
    published = {tensor.name: tensor.shape for tensor in MODELS[name].tensors}
    layers = read_layers(NETWORKS[name](Size.CIFAR))
    small = {tensor.name: tensor.shape for layer in layers for tensor in layer.tensors}
    assert set(small) == set(published)
    changed = {tensor.rpartition(".")[0] for tensor, shape in small.items() if shape != published[tensor]}
    assert changed <= {"fc6", "fc8", "fc", "AuxLogits.fc"}


def test_resnet50_keeps_every_name_and_shape_but_the_classifier() -> None:
    published = {tensor.name: tensor.shape for tensor in MODELS["resnet50"].tensors}
    small = shapes(build("resnet50", Size.CIFAR))
    assert len(small) == 161
    assert {name for name in small if small[name] != published[name]} == {"fc.weight", "fc.bias"}


@pytest.mark.parametrize(("name", "logits"), [("googlenet", [10]), ("vgg19-22k", [21841]), ("inception-v3", [10, 10])])
def test_images_become_logits_of_the_main_path_and_of_the_auxiliary_head(name: str, logits: list[int]) -> None:
    model = build(name, Size.CIFAR)
    assert [tuple(made.shape) for made in model(images_for(model, count=2))] == [(2, classes) for classes in logits]


def test_a_residual_adds_and_a_branch_concatenates() -> None:
    one = Conv(name="at.one", out=1, kernel=(1, 1), relu=False)
    two = Conv(name="at.two", out=1, kernel=(1, 1), bias=False)
    model = ConvNet(
        Network(input=(1, 1, 1), body=chain(Residual(one), branches(two, Conv(name="3", out=1, kernel=(1, 1)))))
    )
    for name, value in {"at.one.weight": -3.0, "at.one.bias": 7.0, "at.two.weight": 2.0, "3.weight": -1.0}.items():
        torch.nn.init.constant_(model.get_parameter(name), value)
    x = torch.tensor([1.0, 2.0, 5.0]).view(3, 1, 1, 1)
    # relu(x - 3x + 7), then twice that, and relu of its negative.
    assert model(x)[0].flatten(1).tolist() == [[10.0, 0.0], [6.0, 0.0], [0.0, 0.0]]


def test_a_batch_norm_stands_behind_its_convolution() -> None:
    body = Conv(name="conv", out=2, kernel=(1, 1), norm="bn", relu=False)
    made = ConvNet(Network(input=(1, 8, 8), body=body))(torch.randn(4, 1, 8, 8))[0]
    assert torch.allclose(made.mean(dim=(0, 2, 3)), torch.zeros(2), atol=1e-5)
    assert torch.allclose(made.std(dim=(0, 2, 3)), torch.ones(2), atol=1e-2)


@pytest.mark.parametrize("dims", [Dimensions(), Dimensions(source_words=30, target_words=20, units=8, tokens=4)])
def test_the_translator_has_the_tensors_of_the_zoo(dims: Dimensions) -> None:
    with torch.device("meta"):
        model = Sockeye(dims)
    assert shapes(model) == {tensor.name: tensor.shape for layer in sockeye_layers(dims) for tensor in layer.tensors}


def test_the_translator_uses_its_layers_in_the_order_of_the_zoo() -> None:
    dims = Dimensions(source_words=30, target_words=20, units=8, tokens=4)
    model, seen = Sockeye(dims), []
    names = [layer.name for layer in sockeye_layers(dims)]
    for name in names:
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: seen.append(name))
    logits = model(torch.randint(30, (3, 4)), torch.randint(20, (3, 4)))
    assert logits.shape == (3, 4, 20)
    first_use = sorted(names, key=seen.index)
    # The decoder's initial state of each layer is computed right after that layer of the encoder.
    assert set(first_use[1:5]) == set(names[1:5])
    assert first_use[:1] + first_use[5:] == names[:1] + names[5:]


def test_the_decoder_goes_on_where_it_was() -> None:
    model = Sockeye(Dimensions(source_words=30, target_words=20, units=8, tokens=4))
    calls: list[tuple[object, object]] = []  # the state before and after each word
    model.get_submodule("decoder.1").register_forward_hook(lambda _, taken, made: calls.append((taken[1], made[1])))
    model(torch.randint(30, (3, 4)), torch.randint(20, (3, 4)))
    assert len(calls) == 4
    assert all(before is after for (before, _), (_, after) in zip(calls[1:], calls[:-1], strict=True))


def test_the_translator_does_not_see_words_to_come() -> None:
    torch.manual_seed(0)
    model = Sockeye(Dimensions(source_words=30, target_words=20, units=8, tokens=4))
    source, fed = torch.randint(30, (1, 4)), torch.randint(20, (1, 4))
    other = fed.clone()
    other[0, 2] = (other[0, 2] + 1) % 20
    same = (model(source, fed) == model(source, other)).all(dim=2)[0]
    assert same.tolist() == [True, True, False, False]


def test_the_gpt_has_one_to_three_million_parameters() -> None:
    with torch.device("meta"):
        assert 1e6 < sum(parameter.numel() for parameter in Gpt(GptShape()).parameters()) < 3e6


def test_the_gpt_does_not_see_bytes_to_come() -> None:
    torch.manual_seed(0)
    model = Gpt(GptShape(width=16, depth=2, heads=2, context=8))
    text = torch.randint(256, (1, 8))
    other = text.clone()
    other[0, 5] = (other[0, 5] + 1) % 256
    same = torch.isclose(model(text), model(other), atol=1e-6).all(dim=2)[0]
    assert same.tolist() == [True] * 5 + [False] * 3


def test_the_gpt_knows_where_a_byte_stands() -> None:
    torch.manual_seed(0)
    model = Gpt(GptShape(width=16, depth=1, heads=2, context=4))
    first, second, *_ = model(torch.full((1, 4), 7))[0]
    assert not torch.allclose(first, second)


def test_listing_the_names_does_not_import_torch() -> None:
    code = "import sys; from undertow.tools.lab.real import *; print(*REAL_NAMES); assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert tuple(result.stdout.split()) == REAL_NAMES
