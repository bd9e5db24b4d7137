"""Gradient scalers, averages and other precisions, which affect a step or read its results."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import optim

from tests.support.slow_group import MEAN, SlowGroup
from tests.support.stepping import BATCH, adam, check, equal, make_net, make_twin, momentum, nets, optimizers, train
from undertow.torch import parallelize


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_gradient_scaler_skips_the_steps_that_it_should(group: SlowGroup, is_fused: bool) -> None:
    twin = make_twin(group, functools.partial(adam, fused=is_fused))
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2) for _ in range(2)]
    for factor in (1.0, 1.0, float("inf"), 1.0, float("nan"), 1.0):
        for net, optimizer, scaler in zip((twin.model, twin.plain), optimizers(twin), scalers, strict=True):
            optimizer.zero_grad()
            scaler.scale(net(BATCH).sum() * factor).backward()
            for parameter in net.parameters() if net is twin.plain else ():
                parameter.grad.mul_(MEAN)
            scaler.step(optimizer)
            scaler.update()
    assert scalers[0].state_dict() == scalers[1].state_dict()
    check(twin)


def test_a_gradient_scaler_does_not_affect_an_earlier_deferred_step(group: SlowGroup) -> None:
    firsts, seconds = [make_net(), make_net()], [make_net(), make_net()]
    made = [adam([*one.parameters(), *two.parameters()], fused=True) for one, two in zip(firsts, seconds, strict=True)]
    models = [parallelize(net, made[0])[0] for net in (firsts[0], seconds[0])]
    group.deliver_all()
    for one, two, optimizer, factor in ((*models, made[0], 1), (firsts[1], seconds[1], made[1], MEAN)):
        (one(BATCH).sum() * factor).backward()
        optimizer.step()
        optimizer.zero_grad()
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(two(BATCH).sum() * factor).backward()
        scaler.step(optimizer)
    assert equal(made[0].state_dict(), made[1].state_dict())
    assert equal(list(firsts[0].parameters()), list(firsts[1].parameters()))


def test_a_scale_given_by_hand_applies_to_one_step(group: SlowGroup) -> None:
    twin = make_twin(group, functools.partial(adam, fused=True))
    for scale in (4.0, 8.0):
        twin.backward(BATCH)
        for optimizer in optimizers(twin):
            optimizer.grad_scale = torch.tensor(scale)
        twin.step()
        for optimizer in optimizers(twin):
            del optimizer.grad_scale
            optimizer.zero_grad()
    check(twin)


def test_an_average_of_all_weights_so_far(group: SlowGroup) -> None:
    twin = make_twin(group)
    averages = [optim.swa_utils.AveragedModel(net) for net in nets(twin)]
    train(twin, group, after=lambda: [average.update_parameters(net) for average, net in zip(averages, nets(twin))])  # noqa: B905
    assert equal(averages[0].state_dict(), averages[1].state_dict())


def test_a_moving_average_sees_updated_weights(group: SlowGroup) -> None:
    twin = make_twin(group)
    averages = [[parameter.detach().clone() for parameter in net.parameters()] for net in nets(twin)]

    @torch.no_grad()
    def follow() -> None:
        for average, net in zip(averages, nets(twin), strict=True):
            for mean, parameter in zip(average, net.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)

    train(twin, group, after=follow)
    assert equal(*averages)


@pytest.mark.parametrize(
    "make_optimizer",
    [adam, functools.partial(optim.Muon, lr=0.01), functools.partial(optim.Adafactor, lr=0.01)],
    ids=["Adam", "Muon", "Adafactor"],
)
def test_a_forward_in_lower_precision_steps_in_full_precision(group: SlowGroup, make_optimizer: Any) -> None:
    twin = make_twin(group, make_optimizer, make_net(bias=False))
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            twin.optimizer.zero_grad()
            twin.plain_optimizer.zero_grad()
            twin.backward(BATCH)
        twin.step()
    with torch.autocast("cpu", torch.bfloat16):
        assert equal(twin.model(BATCH), twin.plain(BATCH))
    check(twin)


@pytest.mark.parametrize("make_optimizer", [momentum, adam], ids=["SGD", "Adam"])
def test_a_forward_in_inference_mode_creates_ordinary_state(group: SlowGroup, make_optimizer: Any) -> None:
    twin = make_twin(group, make_optimizer)
    for _ in range(3):
        twin.train(BATCH)
        with torch.inference_mode():
            assert equal(twin.model(BATCH), twin.plain(BATCH))
    train(twin, group)
    check(twin)
