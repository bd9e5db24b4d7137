"""Gates are opened from any thread, mode or tracer, and errors are never silent."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from tests.support.slow_group import SlowGroup, Twin
from tests.support.stepping import BATCH, is_deferred, make_net, momentum, same
from undertow.errors import UndertowError
from undertow.plan.slice_plan import PLACES
from undertow.torch import flush, parallelize
from undertow.torch.gates.gates import Gate
from undertow.torch.pending.pending_tensors import find_gate


class Held(torch.optim.SGD):
    """An optimizer that stops in the middle of a step until it is released."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.entered, self.released = threading.Event(), threading.Event()
        self.released.set()

    def step(self, closure: Any = None) -> Any:
        self.entered.set()
        assert self.released.wait(20)
        return super().step(closure)


def test_another_thread_sees_no_value_before_its_update(group: SlowGroup) -> None:
    twin = Twin(make_net(), Held, separable=True)
    group.deliver_all()
    twin.train(BATCH)
    seen: list[torch.Tensor] = []
    twin.optimizer.entered.clear()
    twin.optimizer.released.clear()
    opener = threading.Thread(target=lambda: twin.module(BATCH))
    opener.start()
    assert twin.optimizer.entered.wait(20)  # the update of the first layer is being made
    reader = threading.Thread(target=lambda: seen.append(twin.module[0].weight.detach().clone()))
    reader.start()
    reader.join(0.2)
    assert not seen, "it read a value in the middle of an update"
    twin.optimizer.released.set()
    opener.join(20)
    reader.join(20)
    assert torch.equal(seen[0], twin.plain[0].weight)


def test_two_threads_that_step_do_not_mix_up_the_groups(group: SlowGroup) -> None:
    net = make_net()
    parts = [{"params": list(layer.parameters())} for layer in (net[0], net[2], net[4])]
    model, optimizer = parallelize(net, Held(parts), separable=True)
    group.deliver_all()
    model(BATCH).sum().backward()
    for contribution in [one for one in group.pending if one.priority % PLACES >= 2]:
        group.deliver(contribution)
    optimizer.entered.clear()
    optimizer.released.clear()
    stepper = threading.Thread(target=optimizer.step)
    stepper.start()
    assert optimizer.entered.wait(20)  # the second and third layer are stepped; the first is deferred
    reader = threading.Thread(target=lambda: net[0].weight.detach())
    reader.start()
    reader.join(0.2)
    optimizer.released.set()
    stepper.join(20)
    reader.join(20)
    assert [len(part["params"]) for part in optimizer.param_groups] == [2, 2, 2]


def test_other_threads_see_all_groups_during_an_update(group: SlowGroup) -> None:
    twin = Twin(make_net(), Held, separable=True)
    group.deliver_all()
    twin.train(BATCH)
    twin.optimizer.entered.clear()
    twin.optimizer.released.clear()
    reader = threading.Thread(target=lambda: twin.module[2].weight.sum())
    reader.start()
    assert twin.optimizer.entered.wait(20)
    assert [len(part["params"]) for part in twin.optimizer.param_groups] == [6]
    twin.optimizer.param_groups[0]["lr"] = 0.5  # as a scheduler does
    twin.optimizer.zero_grad()
    twin.optimizer.released.set()
    reader.join(20)
    flush(twin.model)
    assert twin.optimizer.param_groups[0]["lr"] == 0.5
    assert all(parameter.grad is None for parameter in twin.module.parameters())
    assert same(twin.module.parameters(), twin.plain.parameters())


def test_gradients_of_two_models_that_share_memory_do_not_overwrite_each_other(group: SlowGroup) -> None:
    class Flat(nn.Module):
        def __init__(self, *shape: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(shape))

        def forward(self) -> torch.Tensor:
            return self.weight.view(-1)

    first, second = Flat(64), Flat(8, 8)
    models = [parallelize(net, torch.optim.SGD(net.parameters(), lr=1.0))[0] for net in (first, second)]
    group.deliver_all()
    factors = torch.arange(64.0) + 1
    ((models[0]() + models[1]()) * factors).sum().backward()
    assert torch.equal(first.weight.grad, 2 * factors)
    assert torch.equal(second.weight.grad.view(-1), 2 * factors)


def test_a_step_that_fails_late_is_not_forgotten(group: SlowGroup) -> None:
    class Failing(torch.optim.SGD):
        fails = False

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise ZeroDivisionError("nobody divides by it")
            return super().step(closure)

    net = make_net()
    model, optimizer = parallelize(net, Failing(net.parameters(), lr=0.1), separable=True)
    group.deliver_all()
    model(BATCH).sum().backward()
    optimizer.step()
    group.deliver_all()
    optimizer.fails = True
    with pytest.raises(ZeroDivisionError):
        net[0].weight.sum()
    for parameter in net.parameters():  # all that were to be stepped together
        with pytest.raises(UndertowError, match=r"the optimizer's step of '\d.\w+' failed") as raised:
            parameter.sum()
        assert isinstance(raised.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("mode", [lambda: FakeTensorMode(allow_non_fake_inputs=True), lambda: torch.device("meta")])
def test_an_update_does_not_run_in_the_readers_mode(twin: Twin, mode: Callable[[], Any]) -> None:
    with mode():
        twin.module[2].weight.detach()
    flush(twin.model)
    assert same(twin.module.parameters(), twin.plain.parameters())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_update_is_not_recorded_by_a_tracer(twin: Twin) -> None:
    with torch.no_grad():
        traced = torch.jit.trace(twin.module, BATCH, check_trace=False)
        before = twin.module[0].weight.clone()
        traced(BATCH)
    assert torch.equal(twin.module[0].weight, before)
    assert same(twin.module.parameters(), twin.plain.parameters())


def test_selective_checkpointing_does_not_see_the_update(twin: Twin) -> None:
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    def contexts() -> Any:
        return create_selective_checkpoint_contexts([torch.ops.aten.mm.default, torch.ops.aten.add.Tensor])

    for net in (twin.module, twin.plain):
        net.zero_grad()
        checkpoint(net, BATCH, use_reentrant=False, context_fn=contexts).sum().backward()
    ours = [parameter.grad for parameter in twin.module.parameters()]
    assert same(ours, [parameter.grad for parameter in twin.plain.parameters()])


def test_gradients_in_the_users_memory_arrive_before_backward_ends(group: SlowGroup) -> None:
    twin = Twin(make_net(), momentum)
    group.deliver_all()
    flats = []
    for net in (twin.module, twin.plain):
        flat = torch.zeros(sum(parameter.numel() for parameter in net.parameters()))
        at = 0
        for parameter in net.parameters():
            parameter.grad = flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        flats.append(flat)
    for _ in range(3):
        for flat in flats:
            flat.zero_()
        twin.backward(BATCH)
        assert torch.equal(*flats)
        twin.step()
    flush(twin.model)
    assert same(twin.module.parameters(), twin.plain.parameters())


def test_a_gradient_kept_by_the_user_is_the_mean_after_backward(group: SlowGroup) -> None:
    twin = Twin(make_net(), momentum)
    group.deliver_all()
    twin.train(BATCH)
    kept = [[parameter.grad for parameter in net.parameters()] for net in (twin.module, twin.plain)]
    for _ in range(2):
        for gradients in kept:
            torch._foreach_zero_(gradients)
        twin.backward(BATCH)
        assert same(*kept)
        twin.step()
    flush(twin.model)
    assert same(twin.module.parameters(), twin.plain.parameters())


def test_a_value_the_user_refers_to_is_stepped_immediately(group: SlowGroup, caplog: pytest.LogCaptureFixture) -> None:
    twin = Twin(make_net(), momentum)
    group.deliver_all()
    states = [net.state_dict() for net in (twin.module, twin.plain)]
    for _ in range(2):
        twin.train(BATCH)
        assert same(*(state.values() for state in states))
    assert caplog.text.count("something else also refers to the memory") == 1
    view = twin.module[2].weight.detach()[1:]
    del states
    twin.train(BATCH)
    assert torch.equal(view, twin.plain[2].weight[1:])
    assert is_deferred(twin.module[0].weight)


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize(
    "look",
    [
        lambda p: torch.FloatTensor(p),
        lambda p: torch._C.TensorBase._make_subclass(torch.Tensor, p),
        lambda p: torch._C.TensorBase.data.__set__(other := torch.empty(p.shape), p) or other,
    ],
)
def test_unguarded_native_code_finds_no_old_value(
    twin: Twin, look: Callable[[Any], torch.Tensor], is_gradient: bool
) -> None:
    flush(twin.model)
    held = twin.module[2].weight.grad
    twin.backward(BATCH)
    twin.step()
    assert find_gate(held)
    with torch.no_grad():
        assert look(held if is_gradient else twin.module[2].weight).isnan().all()
    flush(twin.model)
    assert same(twin.module.parameters(), twin.plain.parameters())
    assert torch.equal(held, twin.module[2].weight.grad)


def test_a_deleted_model_takes_its_gates_with_it(group: SlowGroup) -> None:
    net = make_net()
    model, optimizer = parallelize(net, momentum(net.parameters()))
    group.deliver_all()
    model(BATCH).sum().backward()
    optimizer.step()
    assert is_deferred(net[0].weight)
    refs = [weakref.ref(one) for one in (net, model, net[2].weight)]
    group.deliver_all()
    del net, model, optimizer
    gc.collect()
    assert [ref() for ref in refs] == [None, None, None]


def test_results_that_arrive_in_time_are_not_kept(group: SlowGroup) -> None:
    twin = Twin(make_net(), momentum)
    for _ in range(5):
        group.deliver_all()
        twin.train(BATCH)
    group.deliver_all()
    twin.train(BATCH)
    assert sum(map(len, twin.model._overlap.gates._arrivals.values())) <= 6


def test_evaluation_waits_for_all_parameters(twin: Twin) -> None:
    seen: list[bool] = []
    twin.module.eval()
    twin.module[0].register_forward_hook(
        lambda *_: seen.append(any(find_gate(parameter) for parameter in twin.module.parameters()))
    )
    twin.module(BATCH)
    assert seen == [False]


def test_a_part_in_evaluation_mode_waits_for_its_own_parameters_only(twin: Twin) -> None:
    twin.module[0].eval()
    twin.module[0](BATCH)
    assert not find_gate(twin.module[0].weight)
    assert is_deferred(twin.module[2].weight)


def test_weights_tied_by_memory_are_stepped_immediately(group: SlowGroup) -> None:
    net = make_net()
    net[4].weight.data = net[2].weight.data[:2]
    twin = Twin(net, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    twin.plain[4].weight.data = twin.plain[2].weight.data[:2]
    group.deliver_all()
    twin.train(BATCH)
    assert not is_deferred(twin.module[2].weight)
    assert is_deferred(twin.module[0].weight)


def test_a_parameter_with_its_own_torch_function_is_never_a_gate(group: SlowGroup) -> None:
    class Loud(nn.Parameter):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs or {})

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Loud(torch.ones(4))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs * self.weight

    twin = Twin(Net(), momentum)
    group.deliver_all()
    twin.train(BATCH)
    assert find_gate(twin.module.weight) is None
    assert same(twin.module.parameters(), twin.plain.parameters())


def test_a_gate_that_a_thread_opens_during_a_step_is_not_closed_again(
    group: SlowGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = Twin(make_net(), momentum)
    group.deliver_all()
    twin.backward(BATCH)
    weight, defer = twin.module[2].weight, Gate.defer

    def read_first(gate: Gate, update: Any) -> bool:
        if gate.parameter is weight:
            reader = threading.Thread(target=lambda: weight.grad)  # just when the step has decided to defer it
            reader.start()
            reader.join(20)
        return defer(gate, update)

    monkeypatch.setattr(Gate, "defer", read_first)
    twin.step()
    assert not is_deferred(weight)
    flush(twin.model)
    assert same(twin.module.parameters(), twin.plain.parameters())
