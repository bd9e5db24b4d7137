"""Which optimizers defer steps, which wait, and what is refused."""

from __future__ import annotations

import functools
import logging
import types
from typing import Any

import pytest
import torch
from torch import nn, optim

from tests.support.slow_group import MEAN, SlowGroup, Twin
from undertow.errors import ConfigError
from undertow.torch import DistributedDataParallel, flush, parallelize
from undertow.torch.pending.pending_tensors import find_gate

BATCH = torch.arange(12.0).reshape(3, 4) / 12

sgd = functools.partial(optim.SGD, lr=0.1, momentum=0.9)


class Own(optim.SGD):
    """An optimizer with an unknown step."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Named(optim.SGD):
    """An optimizer that steps as SGD does, which is not known."""


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def steps_in_parts(group: SlowGroup, twin: Twin) -> bool:
    """Return whether steps are deferred, after a few steps, which are right in any case."""
    group.deliver_all()
    for _ in range(3):
        twin.train(BATCH)
    is_deferred = any(gate is not None and gate.is_deferred for gate in map(find_gate, twin.module.parameters()))
    flush(twin.model)
    assert all(map(torch.equal, twin.module.parameters(), twin.plain.parameters()))
    return is_deferred


def test_the_optimizer_remains_the_same_object_and_defers_steps(group: SlowGroup, caplog: Any) -> None:
    net = make_net()
    optimizer = sgd(net.parameters())
    assert parallelize(net, optimizer)[1] is optimizer
    assert steps_in_parts(group, Twin(make_net(), sgd))
    assert not caplog.records


@pytest.mark.parametrize("kind", [Own, Named])
def test_an_unknown_optimizer_waits_in_step_and_logs_it_once(
    group: SlowGroup, caplog: pytest.LogCaptureFixture, kind: type[optim.Optimizer]
) -> None:
    assert not steps_in_parts(group, Twin(make_net(), functools.partial(kind, lr=0.1)))
    assert [record.getMessage() for record in caplog.records] == [
        f"optimizer.step() waits for all gradients: {kind.__name__} is not known to update each parameter "
        "independently; pass separable=True to parallelize() if it does"
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_only_rank_0_logs_it(group: SlowGroup, caplog: pytest.LogCaptureFixture) -> None:
    group.rank = 1
    net = make_net()
    parallelize(net, Own(net.parameters(), lr=0.1), init_sync=False)
    assert not caplog.records


def test_lbfgs_waits_in_step_and_logs_it_once(group: SlowGroup, caplog: pytest.LogCaptureFixture) -> None:
    twin = Twin(make_net(), optim.LBFGS)
    group.deliver_all()

    def closure_of(net: nn.Module, optimizer: Any, factor: int) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = net(BATCH).square().sum()
            loss.backward()
            for parameter in net.parameters() if factor > 1 else ():
                parameter.grad.mul_(factor)
            return loss

        return closure

    for _ in range(2):
        ours = twin.optimizer.step(closure_of(twin.model, twin.optimizer, 1))
        theirs = twin.plain_optimizer.step(closure_of(twin.plain, twin.plain_optimizer, MEAN))
        assert torch.equal(ours, theirs)
    assert all(map(torch.equal, twin.module.parameters(), twin.plain.parameters()))
    assert [record.getMessage() for record in caplog.records] == [
        "optimizer.step() waits for all gradients: LBFGS steps all parameters together"
    ]


def test_separable_true_defers_steps_of_any_optimizer(group: SlowGroup, caplog: Any) -> None:
    assert steps_in_parts(group, Twin(make_net(), functools.partial(Own, lr=0.1), separable=True))
    assert not caplog.records


def test_separable_false_makes_any_optimizer_wait(group: SlowGroup, caplog: Any) -> None:
    assert not steps_in_parts(group, Twin(make_net(), sgd, separable=False))
    assert not caplog.records


def test_a_step_that_was_replaced_on_the_object_is_refused(group: SlowGroup) -> None:
    net = make_net()
    optimizer = sgd(net.parameters())
    optimizer.step = lambda closure=None: None
    with pytest.raises(ConfigError, match=r"^the step\(\) of this SGD was replaced on the object: call parallelize b"):
        parallelize(net, optimizer)


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_step_that_was_replaced_is_not_taken_for_a_scheduler(group: SlowGroup, is_inside: bool) -> None:
    net = make_net()
    optimizer = sgd(net.parameters())
    if is_inside:
        optimizer.step = types.MethodType(lambda self, closure=None: None, optimizer)
    optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    if not is_inside:
        optimizer.step = functools.wraps(optimizer.step)(lambda closure=None: None)
    with pytest.raises(ConfigError, match="was replaced on the object"):
        parallelize(net, optimizer)


def test_a_step_may_be_replaced_later(group: SlowGroup) -> None:
    twin = Twin(make_net(), sgd)
    calls: list[Any] = []
    step = twin.optimizer.step
    twin.optimizer.step = lambda closure=None: (calls.append(closure), step(closure))[1]
    assert steps_in_parts(group, twin)
    assert len(calls) == 3


def test_a_model_that_is_wrapped_already_is_not_wrapped_again(group: SlowGroup) -> None:
    net = make_net()
    wrapped = DistributedDataParallel(net)
    model, optimizer = parallelize(wrapped, sgd(net.parameters()))
    assert model is wrapped
    group.deliver_all()
    model(BATCH).sum().backward()
    optimizer.step()
    assert find_gate(net[0].weight)
    assert group.waits == 0


def test_options_for_a_model_that_is_wrapped_already_are_refused(group: SlowGroup) -> None:
    net = make_net()
    with pytest.raises(ConfigError, match="wrapped already: pass broadcast_buffers to its DistributedDataParallel"):
        parallelize(DistributedDataParallel(net), sgd(net.parameters()), broadcast_buffers=False)


def test_a_second_call_changes_nothing(group: SlowGroup, caplog: pytest.LogCaptureFixture) -> None:
    twin = Twin(make_net(), sgd)
    model, optimizer = parallelize(twin.model, twin.optimizer)
    assert model is twin.model
    assert optimizer is twin.optimizer
    assert steps_in_parts(group, twin)
    assert not caplog.records


def test_a_model_without_its_optimizer_is_refused(group: SlowGroup) -> None:
    with pytest.raises(ConfigError, match=r"^parallelize also needs the optimizer: model, optimizer = parallelize\("):
        parallelize(make_net())


def test_an_object_that_is_not_an_optimizer_is_refused_by_name(group: SlowGroup) -> None:
    net = make_net()
    with pytest.raises(
        ConfigError, match=r"^parallelize takes a model and its optimizers: float is not a torch optimizer$"
    ):
        parallelize(net, sgd(net.parameters()), 0.1)  # type: ignore[arg-type]
    assert not group.pending


def test_the_error_for_a_wrong_argument_order_shows_the_right_one(group: SlowGroup) -> None:
    net = make_net()
    with pytest.raises(ConfigError, match=r"not SGD: write parallelize\(model, optimizer\)$"):
        parallelize(sgd(net.parameters()), net)


def test_an_optimizer_of_another_model_is_refused(group: SlowGroup) -> None:
    with pytest.raises(ConfigError, match="this SGD holds no parameter of the model"):
        parallelize(make_net(), sgd(make_net().parameters()))
