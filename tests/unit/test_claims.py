"""Gradients that were never synchronised are noticed before an optimizer steps with them."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.slow_group import SlowGroup
from undertow.errors import ConfigError
from undertow.runtime import process
from undertow.torch import DistributedDataParallel, claims, flush, parallelize

pytestmark = pytest.mark.usefixtures("group")

BATCH = torch.arange(12.0).reshape(3, 4) / 12


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def make(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


def wrap(net: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(net, init_sync=False, **options)


def train(called: Callable[[torch.Tensor], torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    called(BATCH).sum().backward()
    optimizer.step()


def refuses(called: Callable[[torch.Tensor], torch.Tensor], optimizer: torch.optim.Optimizer) -> str:
    """The words in which a step was refused; no weight has changed by then."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in parameters]
    with pytest.raises(ConfigError) as caught:
        train(called, optimizer)
    assert all(map(torch.equal, before, parameters))
    return str(caught.value)


def test_the_result_of_parallelize_is_thrown_away() -> None:
    net = Net()
    optimizer = make(net)
    parallelize(net, optimizer, init_sync=False)
    gc.collect()
    words = refuses(net, optimizer)
    assert "'body.weight'" in words
    assert "parallelize" in words


def test_the_wrapper_is_thrown_away() -> None:
    net = Net()
    wrap(net)
    gc.collect()
    words = refuses(net, make(net))
    assert "'head.bias'" in words
    assert "model, optimizer = parallelize(model, optimizer)" in words


def test_the_inner_module_is_called_past_the_wrapper() -> None:
    net = Net()
    model = wrap(net)
    words = refuses(model.module, make(net))
    assert "'body.weight', 'body.bias', 'head.weight', 'head.bias' were never averaged" in words
    assert "Call the model that parallelize or DistributedDataParallel returned" in words


def test_a_part_is_always_called_past_the_wrapper() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    optimizer.zero_grad()
    model.module.head.requires_grad_(False)
    model(BATCH).sum().backward()
    model.module.head.requires_grad_(True)
    net.head(BATCH).sum().backward()
    with pytest.raises(ConfigError, match=r"gradients of 'head.weight', 'head.bias' were never"):
        optimizer.step()


def test_parameters_are_added_after_wrapping() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    train(model, optimizer)
    net.head = nn.Sequential(net.head, nn.Linear(2, 2))
    optimizer.add_param_group({"params": net.head[1].parameters()})
    words = refuses(model, optimizer)
    assert words.startswith("gradients of 'head.1.weight', 'head.1.bias' are not averaged")
    assert "Add them before" in words


def test_a_new_optimizer_with_parameters_that_get_gradients_later() -> None:
    net = Net()
    model = wrap(net)
    net.extra = nn.Linear(4, 2)
    optimizer = make(net)
    train(model, optimizer)
    assert "'extra.weight'" in refuses(lambda x: model(x) + net.extra(x), optimizer)


def test_a_closure_computes_the_gradients() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    before = net.head.weight.detach().clone()

    def closure() -> torch.Tensor:
        loss = model.module(BATCH).sum()
        loss.backward()
        return loss

    with pytest.raises(ConfigError, match="never averaged"):
        optimizer.step(closure)
    optimizer.zero_grad()
    with pytest.raises(ConfigError, match="never averaged"):
        optimizer.step(closure=closure)
    assert torch.equal(net.head.weight, before)


def test_a_module_that_is_wrapped_again_is_claimed_anew() -> None:
    net = Net()
    wrap(net)
    gc.collect()
    model, optimizer = wrap(net), make(net)
    train(model, optimizer)
    net.head.register_parameter("more", nn.Parameter(torch.zeros(2)))
    del model
    gc.collect()
    model = wrap(net)
    train(lambda x: model(x) + net.head.more, make(net))


def test_local_steps_under_no_sync_are_legitimate() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    with model.no_sync():
        train(model, optimizer)


def test_gradients_that_are_accumulated_first_are_synchronised_later() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    model.module(BATCH).sum().backward()
    model(BATCH).sum().backward()
    optimizer.step()


def test_gradients_that_were_thrown_away_do_not_count() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    model.module(BATCH).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    train(model, optimizer)


def test_a_model_that_was_synchronised_may_be_trained_on_alone(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    train(model, optimizer)
    with caplog.at_level(logging.WARNING):
        train(model.module, optimizer)
        train(model.module, optimizer)
    assert len([record for record in caplog.records if "drift apart" in record.getMessage()]) == 1
    del model
    gc.collect()
    train(net, make(net))


def test_parameters_of_no_wrapped_module_and_ignored_ones_are_the_users_business() -> None:
    net, other = Net(), Net()
    net._ddp_params_and_buffers_to_ignore = ["head.weight", "head.bias"]  # type: ignore[assignment]
    model = wrap(net)
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.1)
    train(lambda x: model(x) + other(x), optimizer)


def test_parameters_that_are_unfrozen_later_take_part() -> None:
    net = Net()
    net.body.requires_grad_(False)
    model, optimizer = wrap(net), make(net)
    train(model, optimizer)
    net.body.requires_grad_(True)
    train(model, optimizer)


def test_two_wrappers_around_the_same_parameters() -> None:
    net = Net()
    first, second = wrap(net), wrap(net.head)
    optimizer = make(net)
    train(first, optimizer)
    with first.no_sync():
        train(first, optimizer)
    train(second, torch.optim.SGD(net.head.parameters(), lr=0.1))
    del second
    gc.collect()
    train(first, optimizer)


def test_overlapped_training_goes_on(group: SlowGroup) -> None:
    net = Net()
    model, optimizer = parallelize(net, make(net), init_sync=False)
    for _ in range(3):
        train(model, optimizer)
    flush(model)


def test_nothing_is_checked_after_the_ranks_have_parted() -> None:
    net = Net()
    model = wrap(net)
    assert claims._stop is not None
    process.shutdown()
    assert claims._stop is None
    train(model.module, make(net))


def test_a_step_looks_at_no_parameter_when_nothing_is_suspicious(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    train(model, optimizer)
    monkeypatch.setattr(claims, "_parameters_of", None)
    train(model, optimizer)
