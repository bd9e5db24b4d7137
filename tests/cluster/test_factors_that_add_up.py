"""Factors and rows that add up over several passes, and gradients that are changed in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.support.factored_nets import (
    ALL,
    Step,
    batch,
    check,
    find_gathered,
    make_net,
    make_words,
    seed_of,
    train,
    words,
)
from tests.support.workers import on_workers


@on_workers(2)
def test_gradients_accumulated_without_synchronisation(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        with model.no_sync():
            for part in range(3):
                model(batch(index + 50 * part, rank, rows=part + 1)).square().sum().backward()
        assert model.module[0].weight.grad is not None  # for the user to read
        model(batch(index + 200, rank)).square().sum().backward()

    check(rank, make_net, step, gathered=ALL)


@on_workers(2)
def test_accumulation_does_not_disable_factors_of_a_layer(rank: int) -> None:
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
    """Run two backward passes, and something in between."""

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
    # The second product may be allocated where the first gradient was.
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
def test_a_gradient_replaced_twice_may_have_its_first_address(rank: int) -> None:
    check(rank, make_net, add_up(halve_twice))


@on_workers(2)
def test_a_gradient_changed_without_autograds_knowledge(rank: int) -> None:
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
def test_gradients_set_to_zero_or_never_reset(rank: int) -> None:
    def step_zero(model: Any, index: int, rank: int) -> None:
        model.zero_grad(set_to_none=False)
        model(batch(index, rank)).square().sum().backward()

    def step_never(model: Any, index: int, rank: int) -> None:
        model(batch(index, rank)).square().sum().backward()

    check(rank, make_net, step_zero, gathered=ALL, wholes=set())
    check(rank, make_net, step_never, gathered=ALL, wholes=ALL)


@on_workers(2)
def test_gradients_accumulate_onto_zeros(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad(set_to_none=False)
        with model.no_sync():
            model(batch(index, rank)).square().sum().backward()
        model(batch(index + 50, rank)).square().sum().backward()

    check(rank, make_net, step)


@on_workers(2)
def test_gradients_accumulate_onto_earlier_ones(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        with model.no_sync():  # without zero_grad since the last mean
            model(batch(index, rank)).square().sum().backward()
        model(batch(index + 50, rank)).square().sum().backward()

    check(rank, make_net, step)


@on_workers(2)
def test_gradients_accumulate_on_one_rank_only(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        if rank == index % 2:
            with model.no_sync():
                model(batch(index, rank)).square().sum().backward()
        model(batch(index + 50, rank)).square().sum().backward()

    check(rank, make_net, step)


@on_workers(2)
def test_embeddings_accumulate(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        with model.no_sync():
            for part in range(2):
                model(words(4, seed=seed_of(index + 50 * part, rank))).square().sum().backward()
        model(words(6, seed=seed_of(index + 200, rank))).square().sum().backward()

    for options in ({}, {"sparse": True}):
        check(rank, lambda options=options: make_words(**options), step, gathered={"weight"})
