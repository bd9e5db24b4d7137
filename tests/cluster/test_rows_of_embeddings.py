"""Rows of embeddings give the same results as whole gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.support.factored_nets import PASSES, WIDTH, WORDS, Step, check, make_words, numbers, seed_of, words
from tests.support.workers import on_workers


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
def test_an_embedding_whose_gradient_is_read_by_a_hook(rank: int) -> None:
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
def test_an_embedding_used_outside_its_layer(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        outputs = model(words(5, seed=seed_of(index, rank)))
        F.linear(outputs, model.module.weight).square().sum().backward()

    for options in ({}, {"sparse": True}):
        check(rank, lambda options=options: make_words(**options), step)
