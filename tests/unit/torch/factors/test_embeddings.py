"""An embedding that hands over its rows computes the same outputs, and its rows give its gradient."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from undertow.torch.factors.collector import FactorCollector, Wanted
from undertow.torch.factors.embeddings import EmbeddingForm, RowEmbedding, RowEmbeddingBag
from undertow.torch.factors.swapping import swap

WORDS, WIDTH = 10, 4
TOKENS = [torch.tensor(3), torch.tensor([1, 1, 5]), torch.tensor([[0, 9], [9, 2]]), torch.empty(0, dtype=torch.int64)]
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def make_pair(plain: nn.Module, wanted: Wanted) -> tuple[Any, Any, FactorCollector]:
    layer: Any = copy.deepcopy(plain)
    collector = FactorCollector(layer.weight, EmbeddingForm(layer.weight, is_sparse=False), lambda: wanted)
    swap(layer, RowEmbedding if isinstance(layer, nn.Embedding) else RowEmbeddingBag, collector)
    return plain, layer, collector


def check_gradient(plain: Any, layer: Any, collector: FactorCollector, wanted: Wanted) -> None:
    if wanted is not Wanted.FACTORS:
        assert layer.weight.grad.layout is torch.strided
        torch.testing.assert_close(layer.weight.grad, plain.weight.grad)
        return
    assert layer.weight.grad is None
    known = collector.take()
    assert known.whole is None
    numbers, values = known.factors
    assert torch.equal(numbers, torch.unique(numbers).view(-1, 1))  # each row once
    made = collector.combine([known], plain.weight.dtype)
    torch.testing.assert_close(made, plain.weight.grad)
    assert values.shape == (len(numbers), WIDTH)


@pytest.mark.parametrize("wanted", list(Wanted))
@pytest.mark.parametrize("tokens", TOKENS, ids=lambda tokens: str(tuple(tokens.shape)))
@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"padding_idx": -1}], ids=str)
def test_embeddings(options: dict[str, Any], tokens: torch.Tensor, wanted: Wanted) -> None:
    plain, layer, collector = make_pair(nn.Embedding(WORDS, WIDTH, **options), wanted)
    outputs = [one(tokens) for one in (plain, layer)]
    assert torch.equal(*outputs)
    for output in outputs:
        (output.square().sum() + output.sum()).backward()
    check_gradient(plain, layer, collector, wanted)


@pytest.mark.parametrize("dtype", TYPES)
def test_embeddings_of_other_types(dtype: torch.dtype) -> None:
    plain, layer, collector = make_pair(nn.Embedding(WORDS, WIDTH, dtype=dtype), Wanted.FACTORS)
    for one in (plain, layer):
        one(torch.tensor([1, 1, 5])).float().square().sum().backward()
    check_gradient(plain, layer, collector, Wanted.FACTORS)


@pytest.mark.parametrize("wanted", list(Wanted))
@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags(mode: str, padding: int | None, wanted: Wanted) -> None:
    tokens = torch.tensor([1, 1, 5, 0, 9, 9])
    for arguments, options in (
        ((tokens.view(2, 3),), {}),
        ((tokens, torch.tensor([0, 2, 2])), {}),
        ((tokens, torch.tensor([0, 2, 6])), {"include_last_offset": True}),
        ((tokens[:0], torch.tensor([0])), {}),
    ):
        bag = nn.EmbeddingBag(WORDS, WIDTH, mode=mode, padding_idx=padding, **options)
        plain, layer, collector = make_pair(bag, wanted)
        outputs = [one(*arguments) for one in (plain, layer)]
        assert torch.equal(*outputs)
        for output in outputs:
            (output.square().sum() + output.sum()).backward()
        check_gradient(plain, layer, collector, wanted)


@pytest.mark.parametrize("wanted", list(Wanted))
def test_weighted_bags(wanted: Wanted) -> None:
    plain, layer, collector = make_pair(nn.EmbeddingBag(WORDS, WIDTH, mode="sum"), wanted)
    weights = [torch.arange(6.0).view(2, 3).requires_grad_() for _ in range(2)]
    for one, weight in zip((plain, layer), weights, strict=True):
        one(torch.tensor([[1, 1, 5], [0, 9, 9]]), per_sample_weights=weight).square().sum().backward()
    check_gradient(plain, layer, collector, wanted)
    torch.testing.assert_close(weights[1].grad, weights[0].grad)


def test_a_replaced_weight_does_not_feed_the_collector() -> None:
    plain, layer, collector = make_pair(nn.Embedding(WORDS, WIDTH), Wanted.FACTORS)
    for one in (plain, layer):
        outputs = torch.func.functional_call(one, {"weight": one.weight * 3}, (torch.tensor([1, 5]),))
        outputs.square().sum().backward()
    assert not collector.take().factors
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad)


def test_double_backward_is_the_same() -> None:
    gradients = []
    for one in make_pair(nn.Embedding(WORDS, WIDTH), Wanted.GRADIENT)[:2]:
        (first,) = torch.autograd.grad(one(torch.tensor([1, 1, 5])).pow(3).sum(), one.weight, create_graph=True)
        gradients.append(torch.autograd.grad(first.square().sum(), one.weight)[0])
    torch.testing.assert_close(gradients[1], gradients[0])


def make_rows(*numbers: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.tensor(numbers, dtype=torch.float32).view(-1, 1).expand(-1, WIDTH)
    return torch.tensor(numbers, dtype=torch.int64).view(-1, 1), values + 1


def make_form(*, is_sparse: bool = False, dtype: torch.dtype = torch.float32) -> EmbeddingForm:
    return EmbeddingForm(nn.Parameter(torch.zeros(WORDS, WIDTH, dtype=dtype)), is_sparse=is_sparse)


def test_rows_of_several_calls_are_joined() -> None:
    numbers, values = make_form().join([make_rows(5, 2), make_rows(5), make_rows()])
    assert numbers.tolist() == [[2], [5]]
    assert values[:, 0].tolist() == [3.0, 12.0]


@pytest.mark.parametrize("is_sparse", [False, True])
def test_rows_of_all_workers_give_the_mean(is_sparse: bool) -> None:
    made = make_form(is_sparse=is_sparse).make([make_rows(2, 5), make_rows(5, 9), make_rows()], 4)
    assert made.is_sparse == is_sparse
    if is_sparse:
        assert made.is_coalesced()
        assert made.indices().tolist() == [[2, 5, 9]]
    expected = torch.zeros(WORDS, WIDTH)
    for number, value in ((2, 3), (5, 12), (9, 10)):
        expected[number] = value / 4
    assert torch.equal(made.to_dense(), expected)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_no_rows_give_zeros(is_sparse: bool) -> None:
    for parts in ([], [make_rows()], [make_rows(), make_rows()]):
        made = make_form(is_sparse=is_sparse).make(parts, 2)
        assert made.shape == (WORDS, WIDTH)
        assert not made.to_dense().any()


def test_16_bit_rows_are_summed_in_32_bits() -> None:
    # In 16 bits, 256 + 1 is 256.
    rows = [(torch.tensor([[3]]), torch.full((1, WIDTH), value).bfloat16()) for value in (256.0, 1.0, 1.0, 2.0)]
    made = make_form(dtype=torch.bfloat16).make(rows, 4)
    assert (made[3] == 65).all()


def test_only_a_gradient_of_rows_can_be_split() -> None:
    form = make_form()
    assert form.split(torch.ones(WORDS, WIDTH)) is None
    assert form.split(torch.ones(WORDS, WIDTH).to_sparse()) is None  # one number for each element
    rows = torch.zeros(WORDS, WIDTH).index_fill(0, torch.tensor([4]), 2.0).to_sparse(1)
    numbers, values = form.split(rows)  # type: ignore[misc]
    assert numbers.tolist() == [[4]]
    assert values.tolist() == [[2.0] * WIDTH]


def test_values_that_are_not_finite_stay_so() -> None:
    numbers, values = make_rows(2, 5)
    values[0], values[1] = float("nan"), float("inf")
    made = make_form().make([(numbers, values), make_rows(2, 5)], 2)
    assert made[2].isnan().all()
    assert made[5].isposinf().all()
    assert not made[[0, 1, 3, 4, 6, 7, 8, 9]].any()
