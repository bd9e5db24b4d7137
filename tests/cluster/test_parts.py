"""Gradients that travel in parts come out as those that travel whole, whatever the user does with them."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import itertools
import pickle
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import undertow
import undertow.torch
from tests.workers import on_workers, run_workers
from undertow.plan.plan import Choice, Plan
from undertow.plan.scheme import Scheme
from undertow.torch import DistributedDataParallel, flush, parallelize, verify_replicas

WIDTH = 16
WORDS = 40
LIMITS = {"UNDERTOW_SMALLEST_SLICE": "1024", "UNDERTOW_LARGEST_SLICE": "16384"}
LINEAR = (Scheme.FACTORS, Scheme.FACTORS_TO_SHARD)
PASSES = 4  # a plan that is given is followed from the third on

Step = Callable[[nn.Module, int, int], Any]  # the wrapped model, the number of the pass, the rank
Seen = list[list[torch.Tensor | None]]  # the gradients after each pass, and at last the parameters


def plan_parts(net: nn.Module, linear: Scheme = Scheme.FACTORS) -> Plan:
    """In parts whatever can be."""
    schemes: dict[str, Scheme] = {}
    for name, module in net.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.EmbeddingBag)):
            prefix = f"{name}." if name else ""
            schemes[f"{prefix}weight"] = linear if isinstance(module, nn.Linear) else Scheme.ROWS
    choices = tuple(
        Choice(
            tensor=name,
            shape=tuple(parameter.shape),
            scheme=schemes.get(name, Scheme.DENSE),
            bytes_out=4096.0,
            push_bytes=4096.0,
            alone_s=0.0,
            reason="",
        )
        for name, parameter in net.named_parameters()
    )
    return Plan(policy=linear.value, workers=2, choices=choices, step_s=0.0, compute_s=0.0, alone={})


def train(rank: int, make: Callable[[], nn.Module], step: Step, *, plan: Any, passes: int = PASSES) -> tuple[Any, Seen]:
    net = make()
    model = DistributedDataParallel(net, plan=plan(net) if callable(plan) else plan)
    seen: Seen = []
    for index in range(passes):
        step(model, index, rank)
        seen.append([_copy(parameter.grad) for parameter in net.parameters()])
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.05 * parameter.grad)
    seen.append([_copy(parameter) for parameter in net.parameters()])
    return model, seen


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().to_dense().clone()


def check(
    rank: int,
    make: Callable[[], nn.Module],
    step: Step,
    *,
    gathered: set[str] | None = None,
    wholes: set[str] | None = None,
    passes: int = PASSES,
    rtol: float = 1e-5,
) -> Any:
    """With parts and without, all gradients of all passes are the same; `gathered` really came in parts."""
    _, expected = train(rank, make, step, plan="dense", passes=passes)
    has_linear = any(isinstance(module, nn.Linear) for module in make().modules())
    for linear in LINEAR if has_linear else LINEAR[:1]:
        model, seen = train(rank, make, step, plan=functools.partial(plan_parts, linear=linear), passes=passes)
        for index, (ours, theirs) in enumerate(zip(seen, expected, strict=True)):
            compare(ours, theirs, f"{linear.value}, pass {index}", rtol)
        found = find_gathered(model)
        assert gathered is None or found == gathered, found
        assert wholes is None or find_wholes(model) == wholes, find_wholes(model)
        if all(bool(tensor.isfinite().all()) for tensor in seen[-1] if tensor is not None):
            verify_replicas(model.module)
    return model


def compare(
    ours: Sequence[torch.Tensor | None], theirs: Sequence[torch.Tensor | None], where: str, rtol: float
) -> None:
    assert [one is None for one in ours] == [one is None for one in theirs], where
    for one, other in zip(ours, theirs, strict=True):
        if one is not None:
            torch.testing.assert_close(
                one, other, rtol=rtol, atol=rtol / 10, equal_nan=True, msg=lambda text: f"{where}: {text}"
            )


def find_gathered(model: Any) -> set[str]:
    return {one.name(index) for one in model._synchroniser._gradients for index in one.sources}


def find_wholes(model: Any) -> set[str]:
    return {name for one in model._synchroniser._gradients for name in one.find_wholes()}


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def words(*shape: int, seed: int, of: int = WORDS) -> torch.Tensor:
    return torch.randint(of, shape, generator=torch.Generator().manual_seed(seed))


def seed_of(index: int, rank: int) -> int:
    return 1000 + 10 * index + rank


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, 8))


ALL = {"0.weight", "2.weight"}


def batch(index: int, rank: int, rows: int = 5) -> torch.Tensor:
    return numbers(rows, WIDTH, seed=seed_of(index, rank))


def learn(model: nn.Module, index: int, rank: int) -> None:
    model.zero_grad()
    model(batch(index, rank)).square().sum().backward()


# Inputs of any form


@on_workers(2)
def test_linear_layers_take_inputs_of_any_rank(rank: int) -> None:
    for shape in ((WIDTH,), (5, WIDTH), (2, 3, WIDTH), (2, 1, 3, WIDTH)):
        for has_bias in (True, False):

            def make(bias: bool = has_bias) -> nn.Module:
                torch.manual_seed(0)
                return nn.Sequential(nn.Linear(WIDTH, 24, bias=bias), nn.Tanh(), nn.Linear(24, 8, bias=bias))

            def step(model: nn.Module, index: int, rank: int, form: tuple[int, ...] = shape) -> None:
                model.zero_grad()
                # A sum's gradient is one number, expanded.
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
def test_a_weight_that_is_frozen_for_a_while_and_one_that_is_unfrozen(rank: int) -> None:
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
    """A weight that is used by its layer, and beside it."""

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
def test_a_weight_that_is_used_beside_its_layer_too(rank: int) -> None:
    for layer_first in (True, False):
        check(rank, lambda first=layer_first: Functional(first), learn, wholes={"layer.weight"})


@on_workers(2)
def test_a_weight_that_is_used_beside_its_layer_in_autocast(rank: int) -> None:
    def step(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(batch(index, rank))
        outputs.float().square().sum().backward()

    for layer_first in (True, False):
        check(rank, lambda first=layer_first: Functional(first), step, rtol=0.05)


@on_workers(2)
def test_a_weight_that_is_used_beside_its_layer_while_gradients_add_up(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        with model.no_sync():
            model(batch(index, rank)).square().sum().backward()
        model(batch(index + 50, rank)).square().sum().backward()

    for layer_first in (True, False):
        check(rank, lambda first=layer_first: Functional(first), step)


@on_workers(2)
def test_a_weight_that_is_looked_up_sparsely_beside_its_layer(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        found = F.embedding(words(3, seed=index, of=8), model.module[2].weight, sparse=True)
        (model(batch(index, rank)).square().sum() + found.square().sum()).backward()

    check(rank, make_net, step)


@on_workers(2)
def test_a_layer_that_is_called_several_times_and_one_that_is_shared(rank: int) -> None:
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
def test_what_is_not_finite_arrives_as_it_is(rank: int) -> None:
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


# Gradients that add up


@on_workers(2)
def test_gradients_that_add_up_without_synchronisation(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        with model.no_sync():
            for part in range(3):
                model(batch(index + 50 * part, rank, rows=part + 1)).square().sum().backward()
        assert model.module[0].weight.grad is not None  # for whoever looks
        model(batch(index + 200, rank)).square().sum().backward()

    check(rank, make_net, step, gathered=ALL)


@on_workers(2)
def test_adding_up_does_not_spoil_a_layer_for_its_parts(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        with model.no_sync():
            model(batch(index, rank)).square().sum().backward()
        model(batch(index + 50, rank)).square().sum().backward()

    _, seen = train(rank, make_net, step, plan="dense", passes=14)
    model, ours = train(rank, make_net, step, plan="factors", passes=14)
    torch.testing.assert_close(ours, seen, rtol=1e-4, atol=1e-5)
    assert find_gathered(model) == ALL


def add_up(change: Callable[[nn.Parameter], None]) -> Step:
    """Two backward passes, and something in between."""

    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        with model.no_sync():
            model(batch(index, rank)).square().sum().backward()
        for parameter in model.parameters():
            change(parameter)
        model(batch(index + 50, rank)).square().sum().backward()

    return step


@torch.no_grad()
def halve_in_place(parameter: nn.Parameter) -> None:
    parameter.grad.mul_(0.5)


def halve_twice(parameter: nn.Parameter) -> None:
    # The second product may come to lie where the first gradient was.
    parameter.grad = parameter.grad * 0.5
    parameter.grad = parameter.grad * 0.5


def halve_data(parameter: nn.Parameter) -> None:
    parameter.grad.data.mul_(0.5)


def replace(parameter: nn.Parameter) -> None:
    parameter.grad = torch.ones_like(parameter)


def forget(parameter: nn.Parameter) -> None:
    parameter.grad = None


def zero(parameter: nn.Parameter) -> None:
    parameter.grad.zero_()


def swap_data(parameter: nn.Parameter) -> None:
    parameter.grad.data = torch.full_like(parameter, 2.0)


@on_workers(2)
def test_the_user_changes_a_gradient_between_two_backward_passes(rank: int) -> None:
    for change in (halve_in_place, replace, forget, zero, swap_data):
        check(rank, make_net, add_up(change))


@on_workers(2)
def test_a_gradient_that_is_replaced_twice_may_lie_where_it_was(rank: int) -> None:
    check(rank, make_net, add_up(halve_twice))


@on_workers(2)
def test_a_gradient_that_is_changed_behind_autograds_back(rank: int) -> None:
    check(rank, make_net, add_up(halve_data))


@on_workers(2)
def test_clipping_between_two_backward_passes(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        with model.no_sync():
            model(batch(index, rank)).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        model(batch(index + 50, rank)).square().sum().backward()

    check(rank, make_net, step)


@on_workers(2)
def test_gradients_that_are_set_to_zero_or_never_forgotten(rank: int) -> None:
    def step_zero(model: Any, index: int, rank: int) -> None:
        model.zero_grad(set_to_none=False)
        model(batch(index, rank)).square().sum().backward()

    def step_never(model: Any, index: int, rank: int) -> None:
        model(batch(index, rank)).square().sum().backward()

    check(rank, make_net, step_zero, gathered=ALL, wholes=set())
    check(rank, make_net, step_never, gathered=ALL, wholes=ALL)


@on_workers(2)
def test_gradients_add_up_on_zeros(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad(set_to_none=False)
        with model.no_sync():
            model(batch(index, rank)).square().sum().backward()
        model(batch(index + 50, rank)).square().sum().backward()

    check(rank, make_net, step)


@on_workers(2)
def test_gradients_add_up_on_what_was_left(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        with model.no_sync():  # and nobody has called zero_grad since the last mean
            model(batch(index, rank)).square().sum().backward()
        model(batch(index + 50, rank)).square().sum().backward()

    check(rank, make_net, step)


@on_workers(2)
def test_gradients_add_up_on_one_rank_only(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        if rank == index % 2:
            with model.no_sync():
                model(batch(index, rank)).square().sum().backward()
        model(batch(index + 50, rank)).square().sum().backward()

    check(rank, make_net, step)


@on_workers(2)
def test_embeddings_add_up(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        with model.no_sync():
            for part in range(2):
                model(words(4, seed=seed_of(index + 50 * part, rank))).square().sum().backward()
        model(words(6, seed=seed_of(index + 200, rank))).square().sum().backward()

    for options in ({}, {"sparse": True}):
        check(rank, lambda options=options: make_words(**options), step, gathered={"weight"})


# Who looks on


@on_workers(2)
def test_hooks_on_a_weight_see_its_gradient(rank: int) -> None:
    def make_hooked(kind: str, calls: list[Any]) -> nn.Module:
        net = make_net()
        if kind == "tensor":
            net[0].weight.register_hook(lambda gradient: calls.append(gradient.shape) or gradient * 2)
        elif kind == "several":
            torch.autograd.graph.register_multi_grad_hook(
                [net[0].weight, net[2].weight], lambda gradients: calls.append([one.shape for one in gradients])
            )
        else:
            net[0].weight.register_post_accumulate_grad_hook(lambda parameter: calls.append(parameter.grad.shape))
        return net

    for kind in ("tensor", "post", "several"):
        calls: list[Any] = []
        check(rank, lambda kind=kind, calls=calls: make_hooked(kind, calls), learn)
        assert len(calls) == 3 * PASSES


@on_workers(2)
def test_hooks_on_modules(rank: int) -> None:
    calls: list[Any] = []

    def make() -> nn.Module:
        net = make_net()
        net[2].register_full_backward_hook(lambda module, inputs, outputs: calls.append(inputs[0].shape))
        net[2].register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 2,))
        return net

    check(rank, make, learn, gathered=ALL, wholes=set())
    assert calls == [(5, 24)] * 3 * PASSES


@on_workers(2)
def test_graphs_of_the_graph(rank: int) -> None:
    def penalty(model: nn.Module, index: int, rank: int) -> None:
        """As in a WGAN: the gradient of the inputs is part of the loss."""
        model.zero_grad()
        inputs = batch(index, rank).requires_grad_()
        (gradient,) = torch.autograd.grad(model(inputs).square().sum(), inputs, create_graph=True)
        (model(inputs).sum() + gradient.square().sum()).backward()

    def whole_graph(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        model(batch(index, rank)).square().sum().backward(create_graph=True)
        for parameter in model.parameters():
            parameter.grad = parameter.grad.detach()

    def weight_penalty(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        loss = model(batch(index, rank)).square().sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        (loss + sum(gradient.square().sum() for gradient in gradients) * 1e-2).backward()

    warnings.filterwarnings("ignore", message="Using backward.. with create_graph")
    for step in (penalty, whole_graph, weight_penalty):
        check(rank, make_net, step)


@on_workers(2)
def test_graphs_of_the_graph_in_autocast(rank: int) -> None:
    def penalty(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        inputs = batch(index, rank).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(inputs).float()
        (gradient,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
        gradient.square().sum().backward()

    check(rank, make_net, penalty, rtol=0.05)


@on_workers(2)
def test_graphs_of_the_graph_of_an_embedding(rank: int) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words = nn.Embedding(WORDS, WIDTH)
            self.out = nn.Linear(WIDTH, 8)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.out(torch.tanh(self.words(tokens)))

    def step(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        loss = model(words(5, seed=seed_of(index, rank))).square().sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        (loss + sum(gradient.square().sum() for gradient in gradients) * 1e-3).backward()

    check(rank, Mixed, step)


@on_workers(2)
def test_gradients_that_are_asked_for_go_nowhere(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        inputs = batch(index, rank).requires_grad_()
        loss = model(inputs).square().sum()
        asked = torch.autograd.grad(loss, [inputs, model.module[0].weight], retain_graph=True)
        assert all(bool(one.any()) for one in asked)
        assert model.module[0].weight.grad is None
        loss.backward()

    check(rank, make_net, step, gathered=ALL, wholes=set())


@on_workers(2)
def test_gradients_that_are_asked_for_while_others_add_up(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        with model.no_sync():
            model(batch(index, rank)).square().sum().backward()
            loss = model(batch(index + 50, rank)).square().sum()
        torch.autograd.grad(loss, [model.module[0].weight, model.module[2].weight])
        model(batch(index + 100, rank)).square().sum().backward()

    check(rank, make_net, step, gathered=ALL)


@on_workers(2)
def test_a_backward_that_is_for_some_parameters_only(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        loss = model(batch(index, rank)).square().sum()
        loss.backward(inputs=[model.module[2].weight, model.module[0].bias])

    model = check(rank, make_net, step, gathered=ALL, wholes=set())
    assert model.module[0].weight.grad is None


@on_workers(2)
def test_a_graph_that_is_walked_twice(rank: int) -> None:
    def step(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        loss = model(batch(index, rank)).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    check(rank, make_net, step)


class Checkpointed(nn.Module):
    def __init__(self, is_reentrant: bool) -> None:
        super().__init__()
        self.layers = make_net()
        self.is_reentrant = is_reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.layers[:2], inputs.requires_grad_(), use_reentrant=self.is_reentrant)
        return checkpoint(self.layers[2], hidden, use_reentrant=self.is_reentrant)


@on_workers(2)
def test_checkpoints_that_are_reentrant(rank: int) -> None:
    check(rank, lambda: Checkpointed(True), learn)


@on_workers(2)
def test_checkpoints_that_are_not_while_plans_come_and_go(rank: int) -> None:
    check(rank, lambda: Checkpointed(False), learn, gathered={"layers.0.weight", "layers.2.weight"}, wholes=set())


@on_workers(2)
def test_layers_with_other_weights_put_in(rank: int) -> None:
    """One step ahead, as in MAML: the loss is that of other weights, made of the layers' own."""

    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        own = dict(model.module.named_parameters())
        inner = model.module(batch(index, rank)).square().sum() * 0.1
        gradients = torch.autograd.grad(inner, list(own.values()), create_graph=True)
        ahead = {name: own[name] - 0.5 * gradient for name, gradient in zip(own, gradients, strict=True)}
        after = torch.func.functional_call(model.module, ahead, (batch(index + 50, rank),)).square().sum()
        # Its backward comes first, and opens the pass.
        (model(batch(index, rank)).square().sum() + after).backward()

    check(rank, make_net, step)


@on_workers(2)
def test_rows_of_other_weights_put_in(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        other = {"weight": model.module.weight * 3}
        after = torch.func.functional_call(model.module, other, (words(4, seed=seed_of(index + 50, rank)),))
        (model(words(5, seed=seed_of(index, rank))).square().sum() + after.square().sum()).backward()

    check(rank, make_words, step)


@on_workers(2)
def test_transforms_of_torch_func(rank: int) -> None:
    warnings.filterwarnings("ignore", message=".*torch.jit.script")  # torch's own

    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        model(batch(index, rank)).square().sum().backward()
        before = [parameter.grad.clone() for parameter in model.parameters()]
        own = {name: parameter.detach() for name, parameter in model.module.named_parameters()}

        def loss_of(parameters: Any, row: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model.module, parameters, (row,)).square().sum()

        each = torch.vmap(torch.func.grad(loss_of), (None, 0))(own, batch(index, rank))
        outputs, tangents = torch.func.jvp(lambda row: loss_of(own, row), (batch(index, rank),), (batch(1, rank),))
        assert each["0.weight"].shape == (5, 24, WIDTH)
        assert outputs.shape == tangents.shape == ()
        assert all(torch.equal(one.grad, other) for one, other in zip(model.parameters(), before, strict=True))

    check(rank, make_net, step, gathered=ALL, wholes=set())


@on_workers(2)
def test_a_weight_that_changes_before_a_backward_that_does_not_need_it(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        outputs = model(batch(index, rank))
        with torch.no_grad():
            model.module.weight.mul_(0.9)  # no gradient goes through it
        outputs.square().sum().backward()

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(WIDTH, 8)

    check(rank, make, step, gathered={"weight"}, wholes=set())


@on_workers(2)
def test_a_compiled_net(rank: int) -> None:
    warnings.simplefilter("default")  # torch's own, many

    def step(model: Any, index: int, rank: int) -> None:
        compiled = torch.compile(model.module, backend="eager") if not hasattr(model, "compiled") else model.compiled
        vars(model)["compiled"] = compiled
        model.zero_grad()
        (model(batch(index, rank)).square().sum() + compiled(batch(index + 50, rank)).square().sum()).backward()

    check(rank, make_net, step)
    check(rank, lambda: torch.compile(make_net(), backend="eager"), learn)
    undertow.barrier()


# Embeddings


def make_words(**options: Any) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(WORDS, WIDTH, **options)


def make_bag(**options: Any) -> nn.EmbeddingBag:
    torch.manual_seed(0)
    return nn.EmbeddingBag(WORDS, WIDTH, **options)


@on_workers(2)
def test_embeddings_of_every_kind(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        tokens = words(*[(5,), (2, 3), (0,), (2, 2, 2)][index % 4], seed=seed_of(index, rank) if index < 4 else index)
        model.zero_grad()
        model(tokens).to(torch.float64).square().sum().backward()

    for options in ({}, {"padding_idx": 3}, {"sparse": True}, {"sparse": True, "padding_idx": -1}):
        check(rank, lambda options=options: make_words(**options), step, gathered={"weight"}, wholes=set(), passes=8)
    check(rank, lambda: make_words().double(), step, gathered={"weight"}, rtol=1e-12)
    check(rank, lambda: make_words().bfloat16(), step, gathered={"weight"}, rtol=0.02)
    check(rank, lambda: make_words(scale_grad_by_freq=True), step, gathered=set())


@on_workers(2)
def test_bags_of_every_kind(rank: int) -> None:
    def make_step(form: str) -> Step:
        def step(model: Any, index: int, rank: int) -> None:
            seed = seed_of(index, rank)
            model.zero_grad()
            if form == "offsets":
                outputs = model(words(7, seed=seed), torch.tensor([0, 3, 3]))
            elif form == "weights":
                weights = numbers(2, 4, seed=seed).requires_grad_()
                outputs = model(words(2, 4, seed=seed), per_sample_weights=weights)
            else:
                outputs = model(words(3, 4, seed=seed))
            outputs.square().sum().backward()
            assert form != "weights" or bool(weights.grad.any())

        return step

    for form in ("offsets", "table"):
        for mode in ("sum", "mean"):
            for more in ({}, {"padding_idx": 3}, {"sparse": True}):
                options = {"mode": mode, **more}
                check(
                    rank,
                    lambda options=options: make_bag(**options),
                    make_step(form),
                    gathered={"weight"},
                    wholes=set(),
                )
    check(rank, lambda: make_bag(mode="sum"), make_step("weights"), gathered={"weight"}, wholes=set())
    check(rank, lambda: make_bag(mode="max"), make_step("offsets"), gathered=set())


@on_workers(2)
def test_an_embedding_whose_gradient_somebody_looks_at(rank: int) -> None:
    calls: list[Any] = []

    def make(**options: Any) -> nn.Module:
        net = make_words(**options)
        net.weight.register_hook(lambda gradient: calls.append(gradient.layout))
        return net

    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        model(words(5, seed=seed_of(index, rank))).square().sum().backward()

    check(rank, make, step)
    assert calls == [torch.strided] * 2 * PASSES
    check(rank, lambda: make(sparse=True), step)


@on_workers(2)
def test_an_embedding_that_is_used_beside_its_layer(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        outputs = model(words(5, seed=seed_of(index, rank)))
        F.linear(outputs, model.module.weight).square().sum().backward()

    for options in ({}, {"sparse": True}):
        check(rank, lambda options=options: make_words(**options), step)


# What a planned net is to others


def check_plain(net: nn.Module) -> None:
    for module in net.modules():
        assert type(module).__mro__[:2] == getattr(nn, type(module).__name__).__mro__[:2]
        assert not any("undertow" in name for name in vars(module))


@on_workers(2)
def test_copies_and_files_know_nothing_of_it(rank: int) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Sequential(make_words()), *make_net())

    net = make()
    model = DistributedDataParallel(net, plan=plan_parts(net))
    for index in range(3):
        model.zero_grad()
        model(words(5, seed=seed_of(index, rank))).square().sum().backward()
    assert find_gathered(model) == {"0.0.weight", "1.weight", "3.weight"}
    assert type(net[1]) is not nn.Linear
    assert type(net[1]).__name__ == "Linear"
    assert isinstance(net[1], nn.Linear)
    assert list(net.state_dict()) == list(make().state_dict())
    assert "undertow" not in repr(net)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    tokens = words(5, seed=7)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)):  # noqa: S301
        check_plain(other)
        assert torch.equal(other(tokens), net(tokens))
        other(tokens).sum().backward()
        assert other[1].weight.grad is not None
    check_plain(copy.deepcopy(model).module)
    again = type(net[1])(3, 3)  # as some libraries make one like another
    assert again(torch.ones(3)).shape == (3,)
    undertow.barrier()


@on_workers(2)
def test_a_copy_of_the_wrapper_trains_on(rank: int) -> None:
    model, _ = train(rank, make_net, learn, plan=plan_parts)
    dense, _ = train(rank, make_net, learn, plan="dense")
    other = copy.deepcopy(model)
    for index in range(3):
        learn(other, index, rank)
        learn(dense, index, rank)
        for ours, theirs in zip(other.parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    assert find_gathered(other) == ALL


@on_workers(2)
def test_a_net_that_is_wrapped_again_can_be_planned_again(rank: int) -> None:
    net = make_net()
    for _ in range(2):
        model = DistributedDataParallel(net, plan=plan_parts(net))
        for index in range(3):
            learn(model, index, rank)
        assert find_gathered(model) == ALL
        expected = [_copy(parameter.grad) for parameter in net.parameters()]
        dense = copy.deepcopy(net)
        dense_model = DistributedDataParallel(dense, plan="dense")
        learn(dense_model, 2, rank)
        torch.testing.assert_close([parameter.grad for parameter in dense.parameters()], expected)
        del model


# Plans that change


def choose_schemes(model: Any) -> dict[str, str]:
    plan = model._synchroniser.planning.plan
    return {} if plan is None else {name: scheme.value for name, scheme in plan.schemes.items()}


def change_rows(rank: int) -> list[set[str]]:
    """Poseidon's rule changes its mind at K = 32 rows: the layers are 64 wide, and there are two workers."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))

    gathered = []

    def step(model: Any, index: int, rank: int) -> None:
        rows = [4, 200, 4][index // 12] + 3 * rank
        model.zero_grad()
        with model.no_sync() if index % 5 == 3 else contextlib.nullcontext():
            model(numbers(rows, 64, seed=seed_of(index, rank))).square().mean().backward()
        if index % 5 == 3:
            model(numbers(rows, 64, seed=seed_of(index + 50, rank))).square().mean().backward()
        gathered.append(find_gathered(model))

    _, expected = train(rank, make, step, plan="dense", passes=36)
    gathered.clear()
    model, seen = train(rank, make, step, plan="poseidon", passes=36)
    for index, (ours, theirs) in enumerate(zip(seen, expected, strict=True)):
        compare(ours, theirs, f"pass {index}", 1e-4)
    verify_replicas(model.module)
    return gathered


def test_the_plan_follows_the_batch_in_mid_training() -> None:
    first, second = run_workers(2, change_rows, environment=LIMITS)
    assert first == second
    changes = [names for names, before in itertools.pairwise([*first, None]) if names != before]
    assert changes == [set(), ALL, set(), ALL]


@on_workers(2, environment=LIMITS)
def test_named_plans_take_what_they_can(rank: int) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words = nn.Embedding(200, 64)
            self.hidden = nn.Linear(64, 64)
            self.unused = nn.Linear(64, 64)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.hidden(self.words(tokens))

    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        model(words(5, seed=seed_of(index, rank), of=200)).square().mean().backward()

    _, expected = train(rank, Mixed, step, plan="dense", passes=8)
    for plan, parts in (
        ("dense", set()),
        ("factors", {"hidden.weight"}),
        ("factors-to-shard", {"hidden.weight"}),
        ("poseidon", {"hidden.weight"}),
        ("rows", {"words.weight"}),
        ("auto", None),  # whatever it finds to be the fastest
    ):
        model, seen = train(rank, Mixed, step, plan=plan, passes=8)
        for index, (ours, theirs) in enumerate(zip(seen, expected, strict=True)):
            compare(ours, theirs, f"{plan}, pass {index}", 1e-5)
        assert parts is None or find_gathered(model) == parts, plan
        assert plan == "dense" or set(choose_schemes(model)) == {name for name, _ in model.module.named_parameters()}


@on_workers(3)
def test_ranks_run_out_of_input_while_others_go_on(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        if index not in (3, 5):
            learn(model, index, rank)
            return
        with model.join(divide_by_initial_world_size=index == 3):
            for turn in range(1 + rank):
                if turn == 1:
                    with model.no_sync():
                        model(batch(index + 30, rank)).square().sum().backward()
                learn(model, index + 40 + turn, rank)
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.sub_(0.05 * parameter.grad)
        model.zero_grad()

    check(rank, make_net, step, gathered=ALL, passes=8)


@on_workers(2, environment={"UNDERTOW_WAIT_FREE": "off"})
def test_parts_that_leave_when_backward_has_ended(rank: int) -> None:
    check(rank, make_net, learn, gathered=ALL, wholes=set())


@on_workers(2, environment=LIMITS)
def test_parts_larger_than_any_slice_and_layers_smaller_than_one(rank: int) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(WIDTH, 300), nn.Tanh(), nn.Linear(300, 2), nn.Linear(2, 2))

    def step(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        model(batch(index, rank, rows=3000 if rank else 3)).square().mean().backward()

    check(rank, make, step, gathered={"0.weight", "2.weight", "3.weight"}, wholes=set(), rtol=1e-4)


@on_workers(2)
def test_ranks_with_different_numbers_of_threads_stay_the_same(rank: int) -> None:
    """They may multiply differently: only shards multiply for all of them."""
    torch.set_num_threads(1 + rank)

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(100, 300), nn.Tanh(), nn.Linear(300, 50))

    def step(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        model(numbers(700, 100, seed=seed_of(index, rank))).square().mean().backward()

    _, expected = train(rank, make, step, plan="dense")
    for linear, gathered in ((Scheme.FACTORS, set()), (Scheme.FACTORS_TO_SHARD, ALL)):
        model, seen = train(rank, make, step, plan=functools.partial(plan_parts, linear=linear))
        assert find_gathered(model) == gathered
        compare(seen[-1], expected[-1], linear.value, 1e-4)
        verify_replicas(model.module)


@on_workers(2)
def test_sums_of_16_bits_that_would_overflow_do_not(rank: int) -> None:
    def make() -> nn.Module:
        net = nn.Linear(2, 2, bias=False).half()
        nn.init.zeros_(net.weight)
        return net

    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        (model(torch.full((1, 2), 200.0, dtype=torch.half)) * 300).sum().backward()
        assert (model.module.weight.grad == 60000).all()

    check(rank, make, step, gathered={"weight"}, passes=3)


# The other door


def train_both_doors(
    rank: int, step: Callable[[Any, Any, int, int], None], make: Callable[[], nn.Module] = make_net, passes: int = 6
) -> None:
    """`step` gets the model and the optimizer; all parameters come out the same."""
    for linear in (None, *LINEAR):
        parameters = []
        for overlaps in (False, True):
            net = make()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-2)
            plan = "dense" if linear is None else plan_parts(net, linear)
            model = parallelize(net, optimizer, plan=plan)[0] if overlaps else DistributedDataParallel(net, plan=plan)
            for index in range(passes):
                step(model, optimizer, index, rank)
            flush(model)
            verify_replicas(net)
            parameters.append([_copy(parameter) for parameter in net.parameters()])
        if linear is None:
            expected = parameters[0]
        for ours in parameters:
            compare(ours, expected, str(linear), 1e-5)
        compare(*parameters, f"both doors with {linear}", 0.0)  # type: ignore[arg-type]


def test_the_other_door() -> None:
    """What happens late there happens right."""
    run_workers(2, use_other_door)


def use_other_door(rank: int) -> None:
    def plain(model: Any, optimizer: Any, index: int, rank: int) -> None:
        optimizer.zero_grad()
        model(batch(index, rank)).square().sum().backward()
        optimizer.step()

    def zero(model: Any, optimizer: Any, index: int, rank: int) -> None:
        model(batch(index, rank)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=index % 2 == 0)

    def clip(model: Any, optimizer: Any, index: int, rank: int) -> None:
        optimizer.zero_grad()
        model(batch(index, rank)).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    def add_up(model: Any, optimizer: Any, index: int, rank: int) -> None:
        optimizer.zero_grad()
        with model.no_sync():
            model(batch(index, rank)).square().sum().backward()
        model(batch(index + 50, rank)).square().sum().backward()
        optimizer.step()

    def skip_step(model: Any, optimizer: Any, index: int, rank: int) -> None:
        model(batch(index, rank)).square().sum().backward()
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()

    def add_up_late(model: Any, optimizer: Any, index: int, rank: int) -> None:
        """The last mean may still be on its way, and is added to."""
        model(batch(index, rank)).square().sum().backward()
        with model.no_sync():
            model(batch(index + 50, rank)).square().sum().backward()
        if index % 2:
            model(batch(index + 60, rank)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def pass_by(model: Any, optimizer: Any, index: int, rank: int) -> None:
        """No hook runs in front of these."""
        optimizer.zero_grad()
        net = model.module
        outputs = model(batch(index, rank)) + net[2].forward(torch.tanh(net[0].forward(batch(index + 50, rank))))
        outputs.square().sum().backward()
        optimizer.step()

    def first_by_hand(model: Any, optimizer: Any, index: int, rank: int) -> None:
        optimizer.zero_grad()
        by_hand = model.module[0].forward(batch(index + 50, rank)).square().sum() * 0.1
        (model(batch(index, rank)).square().sum() + by_hand).backward()
        optimizer.step()

    def scale(model: Any, optimizer: Any, index: int, rank: int) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer.zero_grad()
        factor = float("inf") if index == 3 and rank else 1.0
        scaler.scale(model(batch(index, rank)).square().sum() * factor).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()

    for step in (plain, zero, clip, add_up, skip_step, add_up_late, pass_by, first_by_hand, scale):
        try:
            train_both_doors(rank, step)
        except Exception as error:
            error.add_note(f"in {step.__name__}")
            raise


# That it is worth it


class Products(TorchDispatchMode):
    """Of products with a result of this shape, over how many rows they went."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.rows: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        if function._schema.name in ("aten::mm", "aten::addmm") and tuple(result.shape) == self.shape:
            self.rows.append(args[-1].shape[0])
        return result


@on_workers(2)
def test_nobody_makes_a_product_of_his_own(rank: int) -> None:
    for linear, rows in ((Scheme.FACTORS, [10]), (Scheme.FACTORS_TO_SHARD, [])):  # of all; the shards make theirs aside
        net = make_net()
        model = DistributedDataParallel(net, plan=plan_parts(net, linear))
        has_none: list[bool] = []
        net[0].bias.register_hook(lambda gradient, net=net, seen=has_none: seen.append(net[2].weight.grad is None))
        for index in range(4):
            model.zero_grad()
            with Products((24, WIDTH)) as products:
                model(batch(index, rank)).square().sum().backward()
            assert products.rows == (rows if index > 1 else [5])
        assert has_none == [False, False, True, True]  # while backward came past it
        undertow.barrier()
