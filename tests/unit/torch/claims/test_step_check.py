"""Gradients that were never synchronised are noticed before an optimizer steps with them."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from tests.support.slow_group import SlowGroup
from undertow.errors import ConfigError
from undertow.runtime import process
from undertow.torch import DistributedDataParallel, flush, parallelize
from undertow.torch.claims import claims, other_means, step_check

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


class TorchsOwn(TorchDistributedDataParallel):
    """Holds a module as torch's own class does."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self.module(x)


def test_a_wrapper_thrown_away_and_then_one_of_torchs_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    wrap(net)
    gc.collect()
    model, optimizer = TorchsOwn(net), make(net)
    train(model, optimizer)
    assert not caplog.records
    with monkeypatch.context() as patch:
        patch.setattr(step_check, "find_averaged", None)  # it looks at every object, and is not called again
        train(model, optimizer)
    del model
    gc.collect()
    assert "'head.bias'" in refuses(net, make(net))


def test_a_wrapper_thrown_away_and_then_an_optimizer_of_horovods(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    wrap(net)
    gc.collect()
    optimizer = make(net)
    optimizer.skip_synchronize = None  # type: ignore[attr-defined]
    train(net, optimizer)
    assert not caplog.records


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """How many the script has called."""
    count: list[int | None] = [7]
    for module in (step_check, other_means):
        monkeypatch.setattr(module, "count_collectives", lambda: count[0])
    return count


@pytest.mark.parametrize("mistake", ["gone", "past", "added"])
@pytest.mark.parametrize("count", [7, 8, None])
def test_where_the_script_calls_collectives_a_warning_takes_the_place_of_the_error(
    collectives: list[int | None], caplog: pytest.LogCaptureFixture, mistake: str, count: int | None
) -> None:
    net = Net()
    model = wrap(net)
    called: Any = net if mistake == "past" else model
    if mistake == "gone":
        called = net
        del model
        gc.collect()
    if mistake == "added":
        net.head = nn.Sequential(net.head, nn.Linear(2, 2))
    optimizer = make(net)
    collectives[0] = count
    if count == 7:
        refuses(called, optimizer)
        return
    for _ in range(2):
        train(called, optimizer)
    [words] = [record.getMessage() for record in caplog.records]
    assert "Unless the script averages them by other means, the replicas drift apart" in words


@pytest.mark.parametrize("library", ["mpi4py", "horovod"])
def test_libraries_whose_calls_cannot_be_counted_make_it_a_warning(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    net = Net()
    wrap(net)
    gc.collect()
    monkeypatch.setitem(sys.modules, library, sys)
    train(net, make(net))


def test_own_collectives_are_no_sign_of_other_means(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [SimpleNamespace(_get_sequence_number_for_group=lambda: 3)] * 2
    monkeypatch.setattr(other_means.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(other_means.dist.distributed_c10d, "_world", SimpleNamespace(pg_map=groups))
    monkeypatch.setattr(other_means, "_own", 0)
    before = process.count_own_calls()
    assert other_means.count_collectives() == before + 6
    other_means.note_own_collective()
    assert other_means.count_collectives() == before + 5
    monkeypatch.setattr(other_means.dist.distributed_c10d, "_world", SimpleNamespace(pg_map=[object()]))
    assert other_means.count_collectives() is None


def test_a_part_that_a_wrapper_left_out_may_be_trained_when_it_is_gone() -> None:
    net = Net()
    net.head.requires_grad_(False)
    model = wrap(net)
    train(model, make(net))
    del model
    gc.collect()
    net.head.requires_grad_(True)
    train(net, torch.optim.SGD(net.head.parameters(), lr=0.1))


def test_one_rank_may_train_a_new_or_frozen_head_of_a_model_that_was_trained_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A linear probe: the wrapper is still there, but is called no more."""
    net = Net()
    net.head.requires_grad_(False)
    model = wrap(net)
    train(model, make(net))
    net.head.requires_grad_(True)
    train(net, torch.optim.SGD(net.head.parameters(), lr=0.1))
    net.head = nn.Linear(4, 3)
    net.body.requires_grad_(False)
    train(net, torch.optim.SGD(net.head.parameters(), lr=0.1))
    assert len([record for record in caplog.records if "drift apart" in record.getMessage()]) <= 1


def test_a_new_head_that_is_trained_through_the_wrapper_is_refused_at_any_step() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    train(model, optimizer)
    net.extra = nn.Linear(4, 2)
    own = torch.optim.SGD(net.extra.parameters(), lr=0.1)
    train(net.extra, own)
    assert "'extra.weight'" in refuses(lambda x: model(x) + net.extra(x), own)


def test_a_parameter_beside_the_model_is_mentioned_once(caplog: pytest.LogCaptureFixture) -> None:
    net, weight = Net(), nn.Parameter(torch.ones(3))
    model, optimizer = wrap(net), torch.optim.SGD([*net.parameters(), weight], lr=0.1)
    for _ in range(2):
        train(lambda x: model(x).sum() * weight.sum(), optimizer)
        keep = wrap(Net())  # a change: everything is looked through again
    [words] = [record.getMessage() for record in caplog.records]
    assert words.startswith("1 parameters of this SGD (shapes: (3,)) belong to no wrapped module")
    assert keep is not None


def test_parameters_beside_the_model_are_not_mentioned_where_something_else_averages_them(
    collectives: list[int | None], caplog: pytest.LogCaptureFixture
) -> None:
    net, other = Net(), Net()
    model, torchs = wrap(net), TorchsOwn(Net())
    train(lambda x: model(x) + torchs(x), torch.optim.SGD([*net.parameters(), *torchs.parameters()], lr=0.1))
    collectives[0] = 8
    train(lambda x: model(x) + other(x), torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.1))
    assert not caplog.records


def test_a_module_that_is_wrapped_for_one_worker_needs_no_averages(caplog: pytest.LogCaptureFixture) -> None:
    net, alone = Net(), Net()
    claims.exempt(alone)
    model, optimizer = wrap(net), torch.optim.SGD([*net.parameters(), *alone.parameters()], lr=0.1)
    train(lambda x: model(x) + alone(x), optimizer)
    assert not caplog.records


def test_a_module_that_was_wrapped_for_one_worker_is_checked_once_several_train_it() -> None:
    net = Net()
    claims.exempt(net)
    model = wrap(net)
    assert "'body.weight'" in refuses(model.module, make(net))


def test_the_inner_module_is_called_past_the_wrapper() -> None:
    net = Net()
    model = wrap(net)
    words = refuses(model.module, make(net))
    assert "'body.weight', 'body.bias', 'head.weight' and 'head.bias' were never averaged" in words
    assert "Call the model that parallelize or DistributedDataParallel returned" in words


def test_a_part_is_always_called_past_the_wrapper() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    optimizer.zero_grad()
    model.module.head.requires_grad_(False)
    model(BATCH).sum().backward()
    model.module.head.requires_grad_(True)
    net.head(BATCH).sum().backward()
    with pytest.raises(ConfigError, match=r"gradients of 'head.weight' and 'head.bias' were never"):
        optimizer.step()


def test_parameters_are_added_after_wrapping() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    train(model, optimizer)
    net.head = nn.Sequential(net.head, nn.Linear(2, 2))
    optimizer.add_param_group({"params": net.head[1].parameters()})
    words = refuses(model, optimizer)
    assert words.startswith("gradients of 'head.1.weight' and 'head.1.bias' are not averaged")
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


def test_a_penalty_of_its_own_backward_may_be_the_same_on_all_ranks(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    model(BATCH).sum().backward()
    net.head.weight.square().sum().backward()
    optimizer.step()
    [words] = [record.getMessage() for record in caplog.records]
    assert words.startswith(
        "gradients of 'head.weight' were added by a backward pass that did not go through the wrapper, and are not "
        "averaged: unless they are the same on all ranks, or only one rank continues training, the replicas drift "
        "apart."
    )


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
    assert step_check._current is not None
    process.shutdown()
    assert step_check._current is None
    train(model.module, make(net))


def test_a_step_looks_at_no_parameter_when_nothing_is_suspicious(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    train(model, optimizer)
    monkeypatch.setattr(step_check, "_parameters_of", None)
    train(model, optimizer)
