"""Gradients that were never synchronised are detected before an optimizer steps with them."""

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
    """Return the message with which a step is refused; no weight has changed by then."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in parameters]
    with pytest.raises(ConfigError) as caught:
        train(called, optimizer)
    assert all(map(torch.equal, before, parameters))
    return str(caught.value)


def test_discarding_the_result_of_parallelize_is_refused() -> None:
    net = Net()
    optimizer = make(net)
    parallelize(net, optimizer, init_sync=False)
    gc.collect()
    words = refuses(net, optimizer)
    assert "'body.weight'" in words
    assert "parallelize" in words


def test_discarding_the_wrapper_is_refused() -> None:
    net = Net()
    wrap(net)
    gc.collect()
    words = refuses(net, make(net))
    assert "'head.bias'" in words
    assert "model, optimizer = parallelize(model, optimizer)" in words


class TorchsOwn(TorchDistributedDataParallel):
    """A wrapper that holds a module as torch's own class does."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self.module(x)


def test_torchs_own_wrapper_after_a_discarded_one_is_accepted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    wrap(net)
    gc.collect()
    model, optimizer = TorchsOwn(net), make(net)
    train(model, optimizer)
    assert not caplog.records
    with monkeypatch.context() as patch:
        patch.setattr(step_check, "find_averaged", None)  # it inspects every object, so it is not called again
        train(model, optimizer)
    del model
    gc.collect()
    assert "'head.bias'" in refuses(net, make(net))


def test_horovods_optimizer_after_a_discarded_wrapper_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    wrap(net)
    gc.collect()
    optimizer = make(net)
    optimizer.skip_synchronize = None  # type: ignore[attr-defined]
    train(net, optimizer)
    assert not caplog.records


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Return the number of collectives that the script has called."""
    count: list[int | None] = [7]
    for module in (step_check, other_means):
        monkeypatch.setattr(module, "count_collectives", lambda: count[0])
    return count


@pytest.mark.parametrize("mistake", ["gone", "past", "added"])
@pytest.mark.parametrize("count", [7, 8, None])
def test_collectives_of_the_script_turn_the_error_into_a_warning(
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
def test_libraries_with_uncounted_calls_turn_the_error_into_a_warning(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    net = Net()
    wrap(net)
    gc.collect()
    monkeypatch.setitem(sys.modules, library, sys)
    train(net, make(net))


def test_own_collectives_do_not_count_as_other_means(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_part_that_a_deleted_wrapper_ignored_may_be_trained() -> None:
    net = Net()
    net.head.requires_grad_(False)
    model = wrap(net)
    train(model, make(net))
    del model
    gc.collect()
    net.head.requires_grad_(True)
    train(net, torch.optim.SGD(net.head.parameters(), lr=0.1))


def test_one_rank_may_train_a_new_or_frozen_head_of_a_jointly_trained_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A linear probe: the wrapper still exists, but is no longer called."""
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


def test_a_new_head_trained_through_the_wrapper_is_refused_at_any_step() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    train(model, optimizer)
    net.extra = nn.Linear(4, 2)
    own = torch.optim.SGD(net.extra.parameters(), lr=0.1)
    train(net.extra, own)
    assert "'extra.weight'" in refuses(lambda x: model(x) + net.extra(x), own)


def test_a_parameter_outside_the_model_causes_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    net, weight = Net(), nn.Parameter(torch.ones(3))
    model, optimizer = wrap(net), torch.optim.SGD([*net.parameters(), weight], lr=0.1)
    for _ in range(2):
        train(lambda x: model(x).sum() * weight.sum(), optimizer)
        keep = wrap(Net())  # a change, so everything is searched again
    [words] = [record.getMessage() for record in caplog.records]
    assert words.startswith("1 parameters of this SGD (shapes: (3,)) belong to no wrapped module")
    assert keep is not None


def test_parameters_outside_the_model_that_are_averaged_otherwise_cause_no_warning(
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


def test_calling_the_inner_module_directly_is_refused() -> None:
    net = Net()
    model = wrap(net)
    words = refuses(model.module, make(net))
    assert "'body.weight', 'body.bias', 'head.weight' and 'head.bias' were never averaged" in words
    assert "Call the model that parallelize or DistributedDataParallel returned" in words


def test_a_part_that_is_always_called_directly_is_refused() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    optimizer.zero_grad()
    model.module.head.requires_grad_(False)
    model(BATCH).sum().backward()
    model.module.head.requires_grad_(True)
    net.head(BATCH).sum().backward()
    with pytest.raises(ConfigError, match=r"gradients of 'head.weight' and 'head.bias' were never"):
        optimizer.step()


def test_parameters_added_after_wrapping_are_refused() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    train(model, optimizer)
    net.head = nn.Sequential(net.head, nn.Linear(2, 2))
    optimizer.add_param_group({"params": net.head[1].parameters()})
    words = refuses(model, optimizer)
    assert words.startswith("gradients of 'head.1.weight' and 'head.1.bias' are not averaged")
    assert "Add them before" in words


def test_a_new_optimizer_is_checked_when_gradients_appear() -> None:
    net = Net()
    model = wrap(net)
    net.extra = nn.Linear(4, 2)
    optimizer = make(net)
    train(model, optimizer)
    assert "'extra.weight'" in refuses(lambda x: model(x) + net.extra(x), optimizer)


def test_gradients_computed_by_a_closure_are_checked() -> None:
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


def test_discarded_gradients_do_not_count() -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    model.module(BATCH).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    train(model, optimizer)


def test_one_rank_may_continue_a_synchronised_model_alone(caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_penalty_with_its_own_backward_may_be_the_same_on_all_ranks(caplog: pytest.LogCaptureFixture) -> None:
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


def test_parameters_that_are_not_wrapped_or_ignored_are_not_checked() -> None:
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


def test_overlapped_training_passes_the_check(group: SlowGroup) -> None:
    net = Net()
    model, optimizer = parallelize(net, make(net), init_sync=False)
    for _ in range(3):
        train(model, optimizer)
    flush(model)


def test_nothing_is_checked_after_shutdown() -> None:
    net = Net()
    model = wrap(net)
    assert step_check._current is not None
    process.shutdown()
    assert step_check._current is None
    train(model.module, make(net))


def test_an_unsuspicious_step_inspects_no_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    model, optimizer = wrap(net), make(net)
    train(model, optimizer)
    monkeypatch.setattr(step_check, "_parameters_of", None)
    train(model, optimizer)
