"""Which layers can hand over factors, why others cannot, and their classes before and after."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from undertow.plan.profile import LayerKind
from undertow.torch.factors.collector import FactorCollector, Wanted
from undertow.torch.factors.layers import find_kind, find_layers, make_layer
from undertow.torch.factors.linear import LinearForm


class Doubled(nn.Linear):
    """A layer with its own forward, whose use of the weight is unknown."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


class Named(nn.Linear):
    """A subclass without any change."""

    def __init__(self, name: str) -> None:
        super().__init__(4, 4)
        self.name = name


class Handing(nn.Module):
    """A module that hands over its factors itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 5))
        self.take_factors: Any = None
        self.product_s = 0.5

    def rebuild(self, activations: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
        return deltas.t() @ activations


def find_names(net: nn.Module) -> tuple[dict[str, LayerKind], dict[str, str]]:
    names = {parameter: name for name, parameter in net.named_parameters()}
    layers, obstacles = find_layers(net)
    return {names[layer.weight]: layer.kind for layer in layers}, {names[w]: text for w, text in obstacles.items()}


def make_collector(layer: Any, wanted: Wanted = Wanted.FACTORS) -> FactorCollector:
    return FactorCollector(layer.weight, layer.form, lambda: wanted)


def test_linear_layers_and_embeddings_are_found() -> None:
    net = nn.ModuleDict(
        {
            "linear": nn.Linear(4, 4),
            "named": Named("mine"),
            "words": nn.Embedding(9, 4),
            "sparse": nn.Embedding(9, 4, sparse=True),
            "bags": nn.EmbeddingBag(9, 4),
            "deeper": nn.Sequential(nn.Sequential(nn.Linear(4, 4))),
            "conv": nn.Conv1d(4, 4, 1),
            "norm": nn.LayerNorm(4),
            "lstm": nn.LSTM(4, 4),
        }
    )
    kinds, obstacles = find_names(net)
    assert kinds == {
        "linear.weight": LayerKind.LINEAR,
        "named.weight": LayerKind.LINEAR,
        "words.weight": LayerKind.EMBEDDING,
        "sparse.weight": LayerKind.EMBEDDING,
        "bags.weight": LayerKind.EMBEDDING,
        "deeper.0.0.weight": LayerKind.LINEAR,
    }
    assert obstacles == {}
    assert [find_kind(net[name]) for name in ("conv", "lstm", "norm")] == [
        LayerKind.CONV,
        LayerKind.LSTM,
        LayerKind.OTHER,
    ]


def test_layers_that_do_more_than_multiply_or_look_up_are_not_found() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of an empty layer
        empty = nn.Linear(4, 0)
    net = nn.Sequential(
        Doubled(4, 4),
        nn.Bilinear(4, 4, 4),
        nn.Embedding(9, 4, max_norm=1.0),
        nn.Embedding(9, 4, scale_grad_by_freq=True),
        nn.EmbeddingBag(9, 4, mode="max"),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.utils.spectral_norm(nn.Linear(4, 4)),
        empty,
    )
    assert find_names(net) == ({}, {})


def test_a_weight_shared_by_modules_is_sent_whole() -> None:
    net = nn.ModuleDict({"words": nn.Embedding(9, 4), "out": nn.Linear(4, 9, bias=False), "alone": nn.Linear(4, 4)})
    net["out"].weight = net["words"].weight
    kinds, obstacles = find_names(net)
    assert kinds == {"alone.weight": LayerKind.LINEAR}
    assert obstacles == {"words.weight": "it is shared by 'words' and 'out'"}


def test_a_module_that_is_found_twice_is_one_layer() -> None:
    layer = nn.Linear(4, 4)
    assert len(find_layers(nn.Sequential(layer, layer))[0]) == 1


def test_gradients_of_unusual_types_are_sent_whole() -> None:
    kinds, obstacles = find_names(nn.Linear(4, 4, dtype=torch.complex64))
    assert kinds == {}
    assert obstacles == {"weight": "gradients of type torch.complex64 are only sent whole"}


@pytest.mark.parametrize(
    "net",
    [nn.Linear(4, 3), Named("mine"), nn.Embedding(9, 4), nn.EmbeddingBag(9, 4)],
    ids=lambda net: type(net).__name__,
)
def test_an_attached_layer_has_another_class_but_its_copies_do_not(net: nn.Module) -> None:
    plain, before = type(net), dict(vars(net))
    layer = make_layer(net)
    assert layer is not None
    layer.attach(make_collector(layer))
    assert type(net) is not plain
    assert isinstance(net, plain)
    assert (type(net).__module__, type(net).__qualname__) == (plain.__module__, plain.__qualname__)
    for other in (copy.deepcopy(net), copy.copy(net), pickle.loads(pickle.dumps(net))):  # noqa: S301
        assert type(other) is plain
        assert vars(other).keys() == before.keys()
    assert b"undertow" not in pickle.dumps(net)
    layer.detach()
    assert type(net) is plain
    assert vars(net).keys() == before.keys()
    layer.detach()


def test_a_layer_attached_twice_hands_over_to_the_last_collector() -> None:
    net = nn.Linear(4, 4)
    layer = make_layer(net)
    assert layer is not None
    collectors = [make_collector(layer), make_collector(layer)]
    for collector in collectors:
        layer.attach(collector)
    net(torch.ones(2, 4)).sum().backward()
    assert [collector.take().is_present for collector in collectors] == [False, True]
    layer.detach()
    assert type(net) is nn.Linear


def test_a_layer_attached_elsewhere_is_found_again() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Embedding(9, 4))
    for layer in find_layers(net)[0]:
        layer.attach(make_collector(layer))
    assert find_names(net)[0] == {"0.weight": LayerKind.LINEAR, "1.weight": LayerKind.EMBEDDING}
    for layer in find_layers(net)[0]:
        layer.attach(make_collector(layer))
        layer.detach()
    assert [type(module) for module in net] == [nn.Linear, nn.Embedding]


def test_a_sparse_embedding_stays_as_it_is() -> None:
    net = nn.Embedding(9, 4, sparse=True)
    layer = make_layer(net)
    assert layer is not None
    collector = make_collector(layer)
    layer.attach(collector)
    assert type(net) is nn.Embedding
    net(torch.tensor([5, 2, 5])).sum().backward()
    known = collector.take()
    assert known.whole is None
    assert known.factors[0].tolist() == [[2], [5]]
    made = collector.combine([known, known], torch.float32)
    assert made is not None
    assert made.is_sparse


def test_a_module_may_hand_over_factors_itself() -> None:
    net = Handing()
    layer = make_layer(net)
    assert layer is not None
    assert layer.kind is LayerKind.LINEAR
    assert layer.product_s == 0.5
    assert isinstance(layer.form, LinearForm)
    wanted = [Wanted.FACTORS]
    collector = FactorCollector(net.weight, layer.form, lambda: wanted[0])
    layer.attach(collector)
    assert net.take_factors(torch.ones(2, 5), torch.ones(2, 3)) is True
    known = collector.take()
    assert torch.equal(collector.combine([known], torch.float32), torch.full((3, 5), 2.0))  # type: ignore[arg-type]
    for wanted[0] in (Wanted.GRADIENT, Wanted.BOTH):
        assert net.take_factors(torch.ones(2, 5), torch.ones(2, 3)) is False
    assert not collector.take().is_present
    layer.detach()
    assert net.take_factors is None
