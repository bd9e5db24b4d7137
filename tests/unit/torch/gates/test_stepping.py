"""The user's own optimizer steps some parameters at a time, with the same bits as one process."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests.support.slow_group import MEAN, SlowGroup
from tests.support.stepping import BATCH, adam, check, equal, make_net, make_twin, momentum, nets, optimizers, train
from undertow.torch import parallelize
from undertow.torch.pending.pending_tensors import find_gate

SEPARABLE: dict[str, Callable[..., Any]] = {
    "SGD": functools.partial(optim.SGD, lr=0.1),
    "SGD, momentum": momentum,
    "SGD, nesterov": functools.partial(momentum, nesterov=True),
    "SGD, maximize": functools.partial(momentum, maximize=True),
    "SGD, foreach": functools.partial(momentum, foreach=True),
    "SGD, fused": functools.partial(momentum, fused=True),
    "Adam": adam,
    "Adam, maximize": functools.partial(adam, maximize=True),
    "Adam, foreach": functools.partial(adam, foreach=True),
    "Adam, fused": functools.partial(adam, fused=True),
    "Adam, a tensor as rate": lambda parameters: optim.Adam(parameters, lr=torch.tensor(0.01)),
    "AdamW, amsgrad": functools.partial(optim.AdamW, lr=0.01, amsgrad=True),
    "AdamW, foreach": functools.partial(optim.AdamW, lr=0.01, foreach=True),
    "AdamW, fused": functools.partial(optim.AdamW, lr=0.01, amsgrad=True, fused=True),
    "RMSprop": functools.partial(optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "RMSprop, foreach": functools.partial(optim.RMSprop, lr=0.01, foreach=True),
    "Adagrad": functools.partial(optim.Adagrad, lr=0.1, lr_decay=0.1),
    "Adagrad, fused": functools.partial(optim.Adagrad, lr=0.1, fused=True),
    "Adadelta": optim.Adadelta,
    "Adamax": functools.partial(optim.Adamax, lr=0.01),
    "NAdam": functools.partial(optim.NAdam, lr=0.01),
    "NAdam, foreach": functools.partial(optim.NAdam, lr=0.01, foreach=True),
    "RAdam": functools.partial(optim.RAdam, lr=0.01),
    "Rprop": functools.partial(optim.Rprop, lr=0.01),
    "ASGD": functools.partial(optim.ASGD, lr=0.01, t0=2),
    "Adafactor": functools.partial(optim.Adafactor, lr=0.01),
}


@pytest.mark.parametrize("make_optimizer", SEPARABLE.values(), ids=SEPARABLE)
def test_partial_steps_give_the_bits_of_a_whole_step(group: SlowGroup, make_optimizer: Callable[..., Any]) -> None:
    twin = make_twin(group, make_optimizer)
    train(twin, group)
    check(twin)


def test_partial_steps_of_muon_give_the_same_bits(group: SlowGroup) -> None:
    twin = make_twin(group, functools.partial(optim.Muon, lr=0.01), make_net(bias=False))
    train(twin, group)
    check(twin)


def test_partial_steps_of_sparse_gradients_give_the_same_bits(group: SlowGroup) -> None:
    twin = make_twin(group, functools.partial(optim.SparseAdam, lr=0.01), nn.Embedding(10, 8, sparse=True))
    train(twin, group, torch.tensor([1, 4, 4, 7]))
    check(twin)


# Hyperparameters are those at the time of step().


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("is_early", [True, False])
def test_a_scheduler_changes_the_rate_of_later_steps_only(group: SlowGroup, rate: Any, is_early: bool) -> None:
    schedulers: list[Any] = []

    def make_optimizer(parameters: Any) -> optim.Optimizer:
        made = optim.SGD(parameters, lr=copy.deepcopy(rate), momentum=0.9)
        if is_early:
            schedulers.append(lr_scheduler.ExponentialLR(made, 0.5))
        return made

    twin = make_twin(group, make_optimizer)  # and torch has no reason to warn of the order of steps
    if not is_early:
        schedulers += [lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in optimizers(twin)]
    train(twin, group, after=lambda: [scheduler.step() for scheduler in schedulers])
    check(twin)


def test_an_earlier_scheduler_still_notices_a_missing_step(group: SlowGroup) -> None:
    net = make_net()
    optimizer = momentum(net.parameters())
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    parallelize(net, optimizer)
    with pytest.warns(UserWarning, match=r"before `optimizer.step\(\)`"):
        scheduler.step()


def test_a_cycle_of_rate_and_momentum(group: SlowGroup) -> None:
    twin = make_twin(group, adam)
    cycles = [lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9) for optimizer in optimizers(twin)]
    train(twin, group, after=lambda: [cycle.step() for cycle in cycles])
    check(twin)


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
def test_a_rate_changed_by_hand_after_a_step_does_not_affect_it(group: SlowGroup, rate: Any) -> None:
    twin = make_twin(group, lambda parameters: optim.SGD(parameters, lr=copy.deepcopy(rate), momentum=0.9))
    twin.train(BATCH)
    for optimizer in optimizers(twin):
        of_group = optimizer.param_groups[0]
        if isinstance(rate, float):
            of_group["lr"] = 100.0
        else:
            of_group["lr"].fill_(100.0)
    check(twin)


def test_tensors_in_a_hyperparameter_are_those_of_the_step(group: SlowGroup) -> None:
    twin = make_twin(group, lambda parameters: optim.Adam(parameters, betas=(torch.tensor(0.9), torch.tensor(0.999))))
    twin.train(BATCH)
    for optimizer in optimizers(twin):
        optimizer.param_groups[0]["betas"][0].fill_(0.1)
    check(twin)


# Several groups, models and optimizers.


def test_parameter_groups_keep_their_own_hyperparameters(group: SlowGroup) -> None:
    def make_optimizer(parameters: Any) -> optim.Optimizer:
        first, second, *rest = parameters
        return optim.SGD([{"params": [first, second], "lr": 0.5}, {"params": rest, "momentum": 0.9}], lr=0.1)

    twin = make_twin(group, make_optimizer)
    train(twin, group)
    check(twin)


def test_a_group_may_be_added_while_steps_are_deferred(group: SlowGroup) -> None:
    twin = make_twin(group, lambda parameters: momentum(list(parameters)[:2]))
    train(twin, group)
    for net, optimizer in zip(nets(twin), optimizers(twin), strict=True):
        optimizer.add_param_group({"params": list(net.parameters())[2:], "lr": 0.3})
    train(twin, group)
    check(twin)


def test_parameters_without_optimizer_only_get_gradients(group: SlowGroup) -> None:
    twin = make_twin(group, lambda parameters: momentum(list(parameters)[:3]))
    train(twin, group)
    check(twin)
    assert equal([p.grad for p in twin.module.parameters()], [p.grad for p in twin.plain.parameters()])


def test_parameters_outside_the_model_are_stepped_immediately(group: SlowGroup) -> None:
    scales = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    spare = iter(scales)
    twin = make_twin(group, lambda parameters: momentum([*parameters, next(spare)]))
    for _ in range(3):
        for scale in scales:
            scale.grad = torch.tensor([1.0, 2.0, 3.0])
        twin.backward(BATCH)
        twin.step()
    assert torch.equal(*scales)
    assert find_gate(twin.module[0].weight)
    check(twin)


def test_one_optimizer_of_two_models(group: SlowGroup) -> None:
    firsts, seconds = [make_net(), make_net()], [make_net(), make_net()]
    ours, theirs = (adam([*one.parameters(), *two.parameters()]) for one, two in zip(firsts, seconds, strict=True))
    first, _ = parallelize(firsts[0], ours)
    second, _ = parallelize(seconds[0], ours)
    group.deliver_all()
    for is_both in (True, False, True, False):
        for optimizer, one, two in ((ours, first, second), (theirs, firsts[1], seconds[1])):
            optimizer.zero_grad()
            one(BATCH).sum().backward()
            if is_both:
                two(BATCH * 2).sum().backward()
        for parameter in (*firsts[1].parameters(), *seconds[1].parameters()):
            if parameter.grad is not None:
                parameter.grad.mul_(MEAN)
        ours.step()
        theirs.step()
    assert group.pending
    assert equal([*first.parameters(), *second.parameters()], [*firsts[1].parameters(), *seconds[1].parameters()])
    assert equal(ours.state_dict(), theirs.state_dict())


def test_two_optimizers_of_one_model(group: SlowGroup) -> None:
    ours, theirs = make_net(), make_net()
    halves = [[adam(list(net.parameters())[:3]), momentum(list(net.parameters())[3:])] for net in (ours, theirs)]
    model, *returned = parallelize(ours, *halves[0])
    assert all(map(lambda a, b: a is b, returned, halves[0]))
    group.deliver_all()
    for first in (0, 1, 1, 0):
        for net, optimizers_of in ((model, halves[0]), (theirs, halves[1])):
            net.zero_grad()
            net(BATCH).sum().backward()
            for parameter in theirs.parameters() if net is theirs else ():
                parameter.grad.mul_(MEAN)
            optimizers_of[first].step()
            optimizers_of[1 - first].step()
    assert equal(list(ours.parameters()), list(theirs.parameters()))
    assert equal([half.state_dict() for half in halves[0]], [half.state_dict() for half in halves[1]])


def test_two_optimizers_of_the_same_parameters_step_in_order(group: SlowGroup) -> None:
    ours, theirs = make_net(), make_net()
    model, *two = parallelize(ours, adam(ours.parameters()), momentum(ours.parameters()))
    plain = [adam(theirs.parameters()), momentum(theirs.parameters())]
    model(BATCH).sum().backward()
    theirs(BATCH).sum().backward()
    for parameter in theirs.parameters():
        parameter.grad.mul_(MEAN)
    for optimizer in (*two, *plain):
        optimizer.step()
    assert equal(list(ours.parameters()), list(theirs.parameters()))


# Hooks and closures.


def test_hooks_around_a_step_fire_once_each_and_in_the_order_of_torch(group: SlowGroup) -> None:
    twin = make_twin(group)
    told: dict[Any, list[str]] = {optimizer: [] for optimizer in optimizers(twin)}

    def tell(what: str) -> Callable[..., None]:
        return lambda optimizer, arguments, options: told[optimizer].append(what)

    handles = [
        register_optimizer_step_post_hook(tell("after, of all")),
        register_optimizer_step_pre_hook(tell("before, of all")),
    ]
    for optimizer in optimizers(twin):
        optimizer.register_step_post_hook(tell("after"))
        optimizer.register_step_pre_hook(tell("before"))
    train(twin, group, steps=3)
    check(twin)
    for handle in handles:
        handle.remove()
    assert told[twin.optimizer] == ["before, of all", "before", "after", "after, of all"] * 3
    assert told[twin.optimizer] == told[twin.plain_optimizer]


def test_hooks_may_change_gradients_and_rates(group: SlowGroup) -> None:
    def before(optimizer: Any, arguments: Any, options: Any) -> None:
        optimizer.param_groups[0]["lr"] *= 0.5
        optimizer.param_groups[0]["params"][0].grad.clamp_(-0.1, 0.1)

    def after(optimizer: Any, arguments: Any, options: Any) -> None:
        optimizer.param_groups[0]["lr"] *= 3
        with torch.no_grad():
            optimizer.param_groups[0]["params"][2].mul_(0.5)

    twin = make_twin(group)
    for optimizer in optimizers(twin):
        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
    for _ in range(3):
        twin.train(BATCH)
    check(twin)


def test_a_closure_is_called_once_and_gives_the_loss(group: SlowGroup) -> None:
    twin = make_twin(group)
    losses: list[float] = []

    def closure_of(net: nn.Module, optimizer: Any, factor: int) -> Callable[[], float]:
        def closure() -> float:
            optimizer.zero_grad()
            loss = net(BATCH).sum()
            (loss * factor).backward()
            losses.append(loss.item())
            return loss.item()

        return closure

    for _ in range(3):
        with torch.no_grad():
            ours = twin.optimizer.step(closure_of(twin.model, twin.optimizer, 1))
            theirs = twin.plain_optimizer.step(closure=closure_of(twin.plain, twin.plain_optimizer, MEAN))
        assert ours == theirs
    assert len(losses) == 6
    check(twin)


# Steps without gradients, and with the same gradients again.


def test_a_second_step_with_the_same_gradients(group: SlowGroup) -> None:
    twin = make_twin(group, adam)
    twin.train(BATCH)
    twin.step()
    twin.step()
    check(twin)


def test_a_step_without_gradients_changes_nothing(group: SlowGroup) -> None:
    twin = make_twin(group, adam)
    twin.step()
    for _ in range(2):
        twin.train(BATCH)
        for optimizer in optimizers(twin):
            optimizer.zero_grad()
        twin.step()
    check(twin)


@pytest.mark.parametrize("is_none", [True, False])
def test_gradients_zeroed_before_the_step_are_not_used(group: SlowGroup, is_none: bool) -> None:
    twin = make_twin(group)
    for is_skipped in (False, True, False):
        twin.backward(BATCH)
        if is_skipped:
            for optimizer in optimizers(twin):
                optimizer.zero_grad(set_to_none=is_none)
        twin.step()
        for optimizer in optimizers(twin):
            optimizer.zero_grad(set_to_none=is_none)
    check(twin)
    assert all(p.grad is None if is_none else not p.grad.any() for p in twin.module.parameters())
