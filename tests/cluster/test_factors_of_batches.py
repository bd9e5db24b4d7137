"""Factors and rows of inputs, layers and batches of any shape."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.support.factored_nets import ALL, WIDTH, WORDS, batch, check, learn, make_net, numbers, seed_of, words
from tests.support.workers import on_workers
from undertow.plan.plan import Plan

# Inputs of any shape


@on_workers(2)
def test_linear_layers_take_inputs_of_any_rank(rank: int) -> None:
    for shape in ((WIDTH,), (5, WIDTH), (2, 3, WIDTH), (2, 1, 3, WIDTH)):
        for has_bias in (True, False):

            def make(bias: bool = has_bias) -> nn.Module:
                torch.manual_seed(0)
                return nn.Sequential(nn.Linear(WIDTH, 24, bias=bias), nn.Tanh(), nn.Linear(24, 8, bias=bias))

            def step(model: nn.Module, index: int, rank: int, form: tuple[int, ...] = shape) -> None:
                model.zero_grad()
                # The gradient of a sum is one number, expanded.
                model(numbers(*form, seed=seed_of(index, rank))).sum().backward()

            check(rank, make, step, gathered=ALL, wholes=set())


@on_workers(2)
def test_inputs_may_want_a_gradient_or_not_be_contiguous(rank: int) -> None:
    seen: dict[bool, list[torch.Tensor]] = {}

    def step(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        inputs = numbers(WIDTH, 2, 3, seed=seed_of(index, rank)).permute(2, 1, 0).requires_grad_()
        model(inputs).square().sum().backward()
        kept = seen.setdefault(isinstance(model.plan, Plan), [])
        kept.append(inputs.grad.clone())

    check(rank, make_net, step, gathered=ALL, wholes=set())
    torch.testing.assert_close(seen[True], seen[False] * 2)


@on_workers(2)
def test_frozen_weights_and_biases(rank: int) -> None:
    def make_frozen(name: str) -> nn.Module:
        net = make_net()
        net.get_parameter(name).requires_grad_(False)
        return net

    check(rank, lambda: make_frozen("0.weight"), learn, gathered={"2.weight"}, wholes=set())
    check(rank, lambda: make_frozen("2.weight"), learn, gathered={"0.weight"}, wholes=set())
    check(rank, lambda: make_frozen("2.bias"), learn, gathered=ALL, wholes=set())


@on_workers(2)
def test_temporarily_frozen_and_unfrozen_weights(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.module[0].weight.requires_grad_(index not in (2, 3))
        learn(model, index, rank)

    check(rank, make_net, step, gathered=ALL, passes=7)


@on_workers(2)
def test_other_types(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        model(batch(index, rank).to(model.module[0].weight.dtype)).square().sum().backward()

    for dtype, rtol in ((torch.float64, 1e-12), (torch.bfloat16, 0.05)):
        model = check(rank, lambda dtype=dtype: make_net().to(dtype), step, gathered=ALL, rtol=rtol, wholes=set())
        assert model.module[0].weight.grad.dtype is dtype


@on_workers(2)
def test_autocast(rank: int) -> None:
    def step(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(batch(index, rank))
        assert outputs.dtype is torch.bfloat16
        outputs.float().square().sum().backward()

    check(rank, make_net, step, gathered=ALL, rtol=0.05, wholes=set())


@on_workers(2)
def test_autocast_in_only_one_of_two_calls_and_on_only_one_rank(rank: int) -> None:
    def step(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=rank == 0):
            outputs = model(batch(index, rank)).float()
        (outputs.square().sum() + model(batch(index, rank)).square().sum()).backward()

    check(rank, make_net, step, gathered=ALL, rtol=0.05, wholes=set())


class Functional(nn.Module):
    """A net that uses a weight in its layer and outside it."""

    def __init__(self, layer_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.layer_first = layer_first

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.layer_first:
            return F.linear(torch.tanh(self.layer(inputs)), self.layer.weight, self.layer.bias)
        return self.layer(torch.tanh(F.linear(inputs, self.layer.weight, self.layer.bias)))


@on_workers(2)
def test_a_weight_used_outside_its_layer(rank: int) -> None:
    for layer_first in (True, False):
        check(rank, lambda first=layer_first: Functional(first), learn, wholes={"layer.weight"})


@on_workers(2)
def test_a_weight_used_outside_its_layer_under_autocast(rank: int) -> None:
    def step(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(batch(index, rank))
        outputs.float().square().sum().backward()

    for layer_first in (True, False):
        check(rank, lambda first=layer_first: Functional(first), step, rtol=0.05)


@on_workers(2)
def test_a_weight_used_outside_its_layer_while_gradients_accumulate(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        with model.no_sync():
            model(batch(index, rank)).square().sum().backward()
        model(batch(index + 50, rank)).square().sum().backward()

    for layer_first in (True, False):
        check(rank, lambda first=layer_first: Functional(first), step)


@on_workers(2)
def test_a_weight_looked_up_sparsely_outside_its_layer(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        found = F.embedding(words(3, seed=index, of=8), model.module[2].weight, sparse=True)
        (model(batch(index, rank)).square().sum() + found.square().sum()).backward()

    check(rank, make_net, step)


@on_workers(2)
def test_layers_called_several_times_and_shared_layers(rank: int) -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.tied = nn.Linear(WIDTH, WIDTH, bias=False)
            self.other = nn.Linear(WIDTH, WIDTH)
            self.other.weight = self.tied.weight

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                inputs = torch.tanh(self.layer(inputs))
            return self.other(self.tied(inputs))

    def learn_together(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        with model.no_sync():
            model(batch(index, rank)).square().sum().backward()
        model(batch(index + 50, rank)).square().sum().backward()

    check(rank, Again, learn, gathered={"layer.weight"}, wholes=set())
    check(rank, Again, learn_together, gathered={"layer.weight"})


@on_workers(2)
def test_empty_layers_and_many_tiny_ones(rank: int) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of an empty layer
            empty = nn.Linear(3, 0)
        return nn.Sequential(nn.Linear(WIDTH, 3), *(nn.Linear(3, 3) for _ in range(40)), empty)

    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        model(batch(index, rank)).backward()

    check(rank, lambda: nn.Sequential(make(), Sum()), step)


class Sum(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.sum()


# Batches of any size


@on_workers(2)
def test_batches_differ_between_ranks_and_may_be_empty(rank: int) -> None:
    def step(model: nn.Module, index: int, rank: int) -> None:
        rows = [(5, 5), (5, 2), (0, 3), (0, 0), (700, 1), (1, 0)][index][rank]
        model.zero_grad()
        model(batch(index, rank, rows)).square().sum().backward()

    check(rank, make_net, step, gathered=ALL, wholes=set(), passes=6)


@on_workers(3)
def test_a_layer_that_some_ranks_do_not_use(rank: int) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.ways = nn.ModuleList(nn.Linear(WIDTH, 8) for _ in range(3))

        def forward(self, inputs: torch.Tensor, way: int) -> torch.Tensor:
            return self.ways[way](inputs)

    def step(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        model(batch(index, rank), (rank % 2) if index < 3 else 0).square().sum().backward()

    gathered = {f"ways.{index}.weight" for index in range(3)}
    model = check(rank, Branches, step, gathered=gathered, wholes=set(), passes=5)
    assert model.module.ways[1].weight.grad is None
    assert model.module.ways[2].weight.grad is None


@on_workers(2)
def test_values_that_are_not_finite_arrive_unchanged(rank: int) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words = nn.Embedding(WORDS, WIDTH)
            self.out = nn.Linear(WIDTH, 8)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.out(self.words(tokens))

    def step(model: nn.Module, index: int, rank: int) -> None:
        factors = torch.ones(5, 8)
        if rank == 1 and index == 2:
            factors[0, 0], factors[1, 1] = float("nan"), float("inf")
        model.zero_grad()
        (model(words(5, seed=index)) * factors).sum().backward()

    model = check(rank, Mixed, step, gathered={"words.weight", "out.weight"}, wholes=set(), passes=3)
    assert model.module.out.weight.grad[0].isnan().all()
    assert model.module.out.weight.grad[1].isinf().all()
    assert model.module.out.weight.grad[2:].isfinite().all()
    assert model.module.words.weight.grad.isnan().any()
