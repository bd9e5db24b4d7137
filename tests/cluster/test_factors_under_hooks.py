"""Factors and rows with hooks, double backward, checkpointing, transforms and compilers."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import undertow
import undertow.torch
from tests.support.factored_nets import (
    ALL,
    PASSES,
    WIDTH,
    WORDS,
    batch,
    check,
    learn,
    make_net,
    make_words,
    seed_of,
    words,
)
from tests.support.workers import on_workers


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
def test_double_backward(rank: int) -> None:
    def penalty(model: nn.Module, index: int, rank: int) -> None:
        """Add a penalty as in a WGAN: the gradient of the inputs is part of the loss."""
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
def test_double_backward_under_autocast(rank: int) -> None:
    def penalty(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        inputs = batch(index, rank).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(inputs).float()
        (gradient,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
        gradient.square().sum().backward()

    check(rank, make_net, penalty, rtol=0.05)


@on_workers(2)
def test_double_backward_of_an_embedding(rank: int) -> None:
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
def test_gradients_of_autograd_grad_are_not_sent(rank: int) -> None:
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
def test_autograd_grad_while_other_gradients_accumulate(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        with model.no_sync():
            model(batch(index, rank)).square().sum().backward()
            loss = model(batch(index + 50, rank)).square().sum()
        torch.autograd.grad(loss, [model.module[0].weight, model.module[2].weight])
        model(batch(index + 100, rank)).square().sum().backward()

    check(rank, make_net, step, gathered=ALL)


@on_workers(2)
def test_a_backward_for_some_parameters_only(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        loss = model(batch(index, rank)).square().sum()
        loss.backward(inputs=[model.module[2].weight, model.module[0].bias])

    model = check(rank, make_net, step, gathered=ALL, wholes=set())
    assert model.module[0].weight.grad is None


@on_workers(2)
def test_two_backward_passes_through_one_graph(rank: int) -> None:
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
def test_reentrant_checkpoints_with_factors(rank: int) -> None:
    check(rank, lambda: Checkpointed(True), learn)


@on_workers(2)
def test_other_checkpoints_while_plans_change(rank: int) -> None:
    check(rank, lambda: Checkpointed(False), learn, gathered={"layers.0.weight", "layers.2.weight"}, wholes=set())


@on_workers(2)
def test_layers_with_replaced_weights(rank: int) -> None:
    """One step ahead, as in MAML: the loss uses other weights, computed from the layers' own."""

    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        own = dict(model.module.named_parameters())
        inner = model.module(batch(index, rank)).square().sum() * 0.1
        gradients = torch.autograd.grad(inner, list(own.values()), create_graph=True)
        ahead = {name: own[name] - 0.5 * gradient for name, gradient in zip(own, gradients, strict=True)}
        after = torch.func.functional_call(model.module, ahead, (batch(index + 50, rank),)).square().sum()
        # Its backward runs first and opens the pass.
        (model(batch(index, rank)).square().sum() + after).backward()

    check(rank, make_net, step)


@on_workers(2)
def test_rows_of_replaced_weights(rank: int) -> None:
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
