"""Walking a network: shapes follow torch's rules, and errors name the node that does not fit."""

from __future__ import annotations

import pytest

from undertow.tools.zoo.model import read_layers
from undertow.tools.zoo.network import (
    AuxiliaryHead,
    Conv,
    GlobalPool,
    Linear,
    Network,
    Node,
    Pool,
    Pooling,
    Residual,
    Shape,
    branches,
    chain,
    walk,
)

LAST = Linear(name="last", out=5)


def taken_by_last(*parts: Node, shape: Shape = (4, 9, 9)) -> Shape:
    """Return the input shape of a layer after these parts."""
    return walk(Network(input=shape, body=chain(*parts, LAST)))[-1].taken


def conv(name: str = "conv", out: int = 6, **how: object) -> Conv:
    return Conv(name=name, out=out, **{"kernel": (3, 3), **how})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "made"),
    [
        (conv(), (6, 7, 7)),
        (conv(padding=(1, 1)), (6, 9, 9)),
        (conv(stride=2), (6, 4, 4)),
        (conv(kernel=(1, 7), padding=(0, 3)), (6, 9, 9)),
        (conv(kernel=(7, 1)), (6, 3, 9)),
        (GlobalPool(), (4, 1, 1)),
        (LAST, (5, 1, 1)),
        (branches(conv("a"), conv("b", 2)), (8, 7, 7)),
        (AuxiliaryHead(chain(conv(), GlobalPool())), (4, 9, 9)),
        (Residual(conv(out=4, padding=(1, 1))), (4, 9, 9)),
        (Residual(conv("a", padding=(1, 1)), conv("b", kernel=(1, 1))), (6, 9, 9)),
    ],
)
def test_a_node_makes_this_shape(node: Node, made: Shape) -> None:
    assert taken_by_last(node) == made


@pytest.mark.parametrize(
    ("length", "how", "made"),
    [
        (9, {"kernel": 3, "stride": 2}, 4),
        (10, {"kernel": 3, "stride": 2}, 4),
        (10, {"kernel": 3, "stride": 2, "ceil": True}, 5),
        (9, {"kernel": 3, "stride": 2, "ceil": True}, 4),
        (10, {"kernel": 3, "stride": 2, "padding": 1}, 5),
        # The window beyond the edge would start in the padding.
        (5, {"kernel": 2, "stride": 2, "padding": 1, "ceil": True}, 3),
        (6, {"kernel": 2, "stride": 2, "padding": 1, "ceil": True}, 4),
        (7, {"kernel": 1, "stride": 3, "padding": 0, "ceil": True}, 3),
    ],
)
@pytest.mark.parametrize("pooling", list(Pooling))
def test_a_pooling_makes_this_length(pooling: Pooling, length: int, how: dict[str, int], made: int) -> None:
    pool = Pool(pooling=pooling, **how)  # type: ignore[arg-type]
    assert taken_by_last(pool, shape=(4, length, length)) == (4, made, made)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (conv(kernel=(11, 11)), r"conv leaves nothing of \(4, 9, 9\)"),
        (Pool(pooling=Pooling.MAX, kernel=10, stride=1), "a pooling of 10 leaves nothing of 9"),
        (branches(conv("a"), conv("b", stride=2)), "branches of different sizes"),
        (Residual(conv()), r"adds \(4, 9, 9\) to \(6, 7, 7\)"),
        (conv(groups=3), "cannot be cut into 3 groups"),
    ],
)
def test_what_does_not_fit_is_named(node: Node, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        taken_by_last(node)


def test_layers_are_visited_in_the_order_of_the_forward_pass() -> None:
    body = chain(
        conv("first", 4, padding=(1, 1)),
        Residual(conv("body", 4, padding=(1, 1)), conv("shortcut", 4, kernel=(1, 1))),
        AuxiliaryHead(conv("head")),
        branches(conv("left"), conv("right")),
        LAST,
    )
    names = [visit.node.name for visit in walk(Network(input=(3, 8, 8), body=body))]
    assert names == ["first", "body", "shortcut", "head", "left", "right", "last"]


def test_groups_divide_tensors_and_flops() -> None:
    (whole,) = read_layers(Network(input=(4, 9, 9), body=conv(out=8)))
    (halves,) = read_layers(Network(input=(4, 9, 9), body=conv(out=8, groups=2)))
    assert whole.tensors[0].shape == (8, 4, 3, 3)
    assert halves.tensors[0].shape == (8, 2, 3, 3)
    assert whole.flops == 2 * halves.flops == 2 * 8 * 4 * 9 * 7 * 7


def test_a_linear_layer_takes_everything_flat() -> None:
    (layer,) = read_layers(Network(input=(4, 9, 9), body=LAST))
    assert [tensor.shape for tensor in layer.tensors] == [(5, 324), (5,)]
    assert layer.flops == 2 * 5 * 324
