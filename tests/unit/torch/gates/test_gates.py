"""Every read of a parameter or a gradient returns the right value, however early and by whatever means."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.support.slow_group import SlowGroup, Twin
from tests.support.stepping import BATCH, is_deferred, make_net, momentum, same, saved
from undertow.errors import PeerLost
from undertow.plan.slice_plan import PLACES
from undertow.torch import flush
from undertow.torch.pending.pending_tensors import find_gate


def test_backward_and_step_return_before_any_result_arrives(group: SlowGroup, twin: Twin) -> None:
    assert group.waits == 0
    assert all(is_deferred(parameter) for parameter in twin.module.parameters())


def test_a_flush_waits_for_everything(group: SlowGroup, twin: Twin) -> None:
    flush(twin.model)
    assert not group.pending
    assert not any(find_gate(parameter) for parameter in twin.module.parameters())
    assert same(twin.module.parameters(), twin.plain.parameters())
    assert all(type(parameter) is nn.Parameter for parameter in twin.module.parameters())


READERS: dict[str, Callable[[nn.Module, nn.Parameter], Any]] = {
    "arithmetic": lambda net, p: p + 0,
    "in place": lambda net, p: p.detach().add_(1),
    "under no_grad, in place": lambda net, p: torch.no_grad()(lambda: p.mul_(2))(),
    "a function of torch": lambda net, p: torch.sum(p),
    "a functional layer": lambda net, p: F.linear(torch.ones(1, p.shape[-1]), p),
    "data": lambda net, p: p.data,
    "detach": lambda net, p: p.detach(),
    "clone": lambda net, p: p.clone(),
    "numpy": lambda net, p: torch.from_numpy(p.detach().numpy().copy()),
    "tolist": lambda net, p: torch.tensor(p.tolist()),
    "item": lambda net, p: torch.tensor(p[0, 0].item()),
    "indexing": lambda net, p: p[1],
    "iteration": lambda net, p: next(iter(p)),
    "comparison": lambda net, p: p > 0.1,
    "a list of them": lambda net, p: torch._foreach_mul([p, p], 2.0)[1],
    "stack": lambda net, p: torch.stack([p, p]),
    "a keyword": lambda net, p: torch.add(torch.zeros_like(p.detach()), other=p),
    "out": lambda net, p: torch.mul(p.detach(), 2, out=torch.empty(p.shape)),
    "state_dict": lambda net, p: net.state_dict()["2.weight"],
    "deepcopy of it": lambda net, p: copy.deepcopy(p),
    "deepcopy of the module": lambda net, p: copy.deepcopy(net)[2].weight,
    "copy of a state_dict": lambda net, p: copy.deepcopy(net.state_dict())["2.weight"],
    "pickle": lambda net, p: pickle.loads(pickle.dumps(p)),  # noqa: S301
    "pickle of the module": lambda net, p: pickle.loads(pickle.dumps(net))[2].weight,  # noqa: S301
    "save": lambda net, p: saved(net.state_dict())["2.weight"],
    "save of it": lambda net, p: saved(p),
    "functional_call": lambda net, p: torch.func.functional_call(net, dict(net.named_parameters()), (BATCH,)),
    "the module": lambda net, p: net(BATCH),
    "one layer": lambda net, p: net[2](torch.ones(1, 8)),
    "evaluation": lambda net, p: torch.no_grad()(net.eval())(BATCH),
    "inference mode": lambda net, p: torch.inference_mode()(lambda: net(BATCH).clone())().clone(),
    "an average of weights": lambda net, p: torch.optim.swa_utils.AveragedModel(net).module[2].weight,
    "parameters_to_vector": lambda net, p: nn.utils.parameters_to_vector(net.parameters()),
    "a norm": lambda net, p: torch.linalg.vector_norm(p),
    "another type": lambda net, p: p.double(),
    "a hook of the user": lambda net, p: hooked(net),
    "a custom function": lambda net, p: Opaque.apply(p),
    "the gradient": lambda net, p: p.grad,
    "the same by its other name": lambda net, p: p._grad,
    "the norm of gradients": lambda net, p: nn.utils.get_total_norm([q.grad for q in net.parameters()]),
    "dlpack": lambda net, p: torch.from_dlpack(p.detach()),
    "equality": lambda net, p: torch.tensor(torch.equal(p, p.detach() + 0)),
    "vmap": lambda net, p: torch.vmap(lambda row: row * 2)(p),
    "a gradient by function": lambda net, p: torch.func.grad(lambda q: (q * q).sum())(p),
    "a product by function": lambda net, p: torch.func.vjp(lambda q: q * q, p)[0],
    "a derivative by function": lambda net, p: torch.func.jvp(lambda q: q * q, (p,), (torch.ones(8, 8),))[0],
    "functionalization": lambda net, p: torch.func.functionalize(lambda q: q * 2)(p),
    "gradients of samples": lambda net, p: torch.func.grad(
        lambda params: torch.func.functional_call(net, params, (BATCH,)).sum()
    )({name: q.detach() for name, q in net.named_parameters()})["2.weight"],
    "a new tensor": lambda net, p: torch.tensor(p.detach().tolist()),
}


class Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2

    @staticmethod
    def backward(ctx: Any, *deltas: torch.Tensor) -> torch.Tensor:
        return deltas[0] * 2


def hooked(net: nn.Module) -> torch.Tensor:
    seen: list[torch.Tensor] = []
    handle = net[2].register_forward_pre_hook(lambda module, inputs: seen.append(module.weight.detach().clone()))
    net(BATCH)
    handle.remove()
    return seen[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.func imports torch.jit
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_read_returns_the_updated_value(twin: Twin, reader: Callable[[nn.Module, nn.Parameter], Any]) -> None:
    ours = reader(twin.module, twin.module[2].weight)
    theirs = reader(twin.plain, twin.plain[2].weight)
    assert torch.equal(ours, theirs)
    assert not isinstance(ours, nn.Parameter) or type(ours) is nn.Parameter


def test_printing_shows_the_updated_value(twin: Twin) -> None:
    assert str(twin.module[2].weight) == str(twin.plain[2].weight)
    assert repr(twin.module[0].weight) == repr(twin.plain[0].weight)
    assert f"{twin.module[4].bias[0]:.6f}" == f"{twin.plain[4].bias[0]:.6f}"


@pytest.mark.parametrize(
    "look",
    [
        lambda p: p.shape,
        lambda p: p.dtype,
        lambda p: p.device,
        lambda p: p.size(),
        lambda p: p.size(0),
        lambda p: p.ndim,
        lambda p: p.numel(),
        lambda p: p.requires_grad,
        lambda p: p.is_leaf,
        lambda p: len(p),
        lambda p: p.is_floating_point(),
        lambda p: p.element_size(),
        lambda p: isinstance(p, nn.Parameter),
        lambda p: type(p).__name__,
        hash,
    ],
)
def test_reads_that_no_update_changes_do_not_wait(twin: Twin, group: SlowGroup, look: Callable[[Any], Any]) -> None:
    before = look(twin.module[2].weight)
    assert group.waits == 0
    assert is_deferred(twin.module[2].weight)
    flush(twin.model)
    assert look(twin.module[2].weight) == before


def test_writes_wait_too(twin: Twin) -> None:
    for net in (twin.module, twin.plain):
        with torch.no_grad():
            net[2].weight.mul_(0.5)
            net[0].weight.data = torch.ones(8, 4)
            net[4].bias.copy_(torch.tensor([1.0, 2.0]))
        net[0].weight.grad = None
    assert same(twin.module.parameters(), twin.plain.parameters())


def test_loading_a_state_is_not_undone_by_an_update_that_was_deferred(twin: Twin) -> None:
    state = {name: torch.full_like(tensor, 0.5) for name, tensor in twin.plain.state_dict().items()}
    twin.module.load_state_dict(state)
    flush(twin.model)
    assert all((parameter == 0.5).all() for parameter in twin.module.parameters())


def test_a_layer_waits_for_its_own_parameters_only(twin: Twin, group: SlowGroup) -> None:
    twin.module[0](BATCH)
    assert not find_gate(twin.module[0].weight)
    assert is_deferred(twin.module[2].weight)
    assert is_deferred(twin.module[4].weight)


def test_arrived_gradients_are_stepped_when_another_thread_waits(twin: Twin, group: SlowGroup) -> None:
    for contribution in [one for one in group.pending if one.priority % PLACES >= 2]:
        group.deliver(contribution)
    assert is_deferred(twin.module[4].weight)  # no gate has taken it yet
    meanwhile: list[bool] = []
    group.on_wait = lambda: meanwhile.append(is_deferred(twin.module[4].weight))
    twin.module[0](BATCH)
    assert meanwhile == [False, False]  # while weight and bias of the first layer were waited for


def test_between_backward_and_step_only_the_gradient_waits(group: SlowGroup) -> None:
    twin = Twin(make_net(), momentum)
    group.deliver_all()
    twin.backward(BATCH)
    weight = twin.module[2].weight
    assert torch.equal(weight + 0, twin.plain[2].weight)
    assert torch.equal(copy.deepcopy(weight), twin.plain[2].weight)
    assert type(copy.deepcopy(weight)) is nn.Parameter
    assert torch.equal(weight.grad, twin.plain[2].weight.grad)
    assert find_gate(twin.module[0].weight)
    twin.step()
    flush(twin.model)
    assert same(twin.module.parameters(), twin.plain.parameters())


@pytest.mark.parametrize(
    "clip",
    [
        lambda net: nn.utils.clip_grad_norm_(net.parameters(), 0.1),
        lambda net: nn.utils.clip_grad_value_(net.parameters(), 0.01),
        lambda net: [parameter.grad.mul_(0.5) for parameter in net.parameters()],
        lambda net: [setattr(parameter, "grad", parameter.grad * 2) for parameter in net.parameters()],
        lambda net: [setattr(parameter, "grad", None) for parameter in net[0].parameters()],
    ],
)
def test_gradients_are_changed_between_backward_and_step(group: SlowGroup, clip: Callable[[nn.Module], Any]) -> None:
    twin = Twin(make_net(), momentum)
    group.deliver_all()
    for _ in range(3):
        twin.optimizer.zero_grad()
        twin.plain_optimizer.zero_grad()
        twin.backward(BATCH)
        clip(twin.module)
        clip(twin.plain)
        twin.step()
    flush(twin.model)
    assert same(twin.module.parameters(), twin.plain.parameters())


def test_a_second_backward_adds_to_the_mean_of_the_first(group: SlowGroup) -> None:
    twin = Twin(make_net(), momentum)
    group.deliver_all()
    twin.backward(BATCH)
    twin.model(BATCH * 2).sum().backward()
    first = [parameter.grad.clone() for parameter in twin.plain.parameters() if parameter.grad is not None]
    twin.plain_optimizer.zero_grad()
    twin.plain(BATCH * 2).sum().backward()
    # The mean so far plus the new gradient is sent; this group doubles both.
    for parameter, mean in zip(twin.plain.parameters(), first, strict=True):
        assert parameter.grad is not None
        parameter.grad.add_(mean).mul_(2)
    assert same((p.grad for p in twin.module.parameters()), (p.grad for p in twin.plain.parameters()))


def test_a_backward_that_is_not_synchronised_waits_for_the_gradient_it_adds_to(group: SlowGroup) -> None:
    twin = Twin(make_net(), momentum)
    group.deliver_all()
    twin.backward(BATCH)
    with twin.model.no_sync():
        twin.model(BATCH).sum().backward()
    twin.plain(BATCH).sum().backward()
    for ours, theirs in zip(twin.module.parameters(), twin.plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_gradients_remain_after_a_step_until_they_are_zeroed(twin: Twin) -> None:
    assert torch.equal(twin.module[2].weight.grad, twin.plain[2].weight.grad)
    twin.optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in twin.module.parameters())
    flush(twin.model)
    assert all(parameter.grad is None for parameter in twin.module.parameters())
    assert same(twin.module.parameters(), twin.plain.parameters())


@pytest.mark.parametrize(
    "zero",
    [
        lambda twin: twin.optimizer.zero_grad(),
        lambda twin: twin.model.zero_grad(),
        lambda twin: [setattr(parameter, "grad", None) for parameter in twin.module.parameters()],
    ],
)
def test_zeroing_gradients_waits_for_nothing(twin: Twin, group: SlowGroup, zero: Callable[[Twin], Any]) -> None:
    zero(twin)
    assert group.waits == 0
    assert all(parameter.grad is None for parameter in twin.module.parameters())
    twin.plain_optimizer.zero_grad()
    twin.train(BATCH)
    flush(twin.model)
    assert same(twin.module.parameters(), twin.plain.parameters())


def test_gradients_filled_with_zeros_stay_so_after_the_update(twin: Twin) -> None:
    twin.optimizer.zero_grad(set_to_none=False)
    assert all((parameter.grad == 0).all() for parameter in twin.module.parameters())
    assert same(twin.module.parameters(), twin.plain.parameters())


def test_a_graph_from_before_the_step_cannot_be_used_after_it(group: SlowGroup) -> None:
    twin = Twin(make_net(), momentum)
    group.deliver_all()
    late = twin.model(BATCH).sum()
    twin.train(BATCH)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        late.backward()


def test_an_unused_parameter_is_updated_before_its_next_gradient(group: SlowGroup) -> None:
    class Choice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, inputs: torch.Tensor, is_left: bool) -> torch.Tensor:
            chosen: torch.Tensor = (self.left if is_left else self.right)(inputs)
            return chosen

    twin = Twin(Choice(), momentum)
    group.deliver_all()
    for is_left in (True, False, True, True, False, False):
        twin.train(BATCH, is_left)
    flush(twin.model)
    assert same(twin.module.parameters(), twin.plain.parameters())


def test_an_exception_in_the_middle_of_a_forward_leaves_the_gates_as_they_were(twin: Twin) -> None:
    def fail(module: nn.Module, inputs: Any) -> None:
        raise ZeroDivisionError

    handle = twin.module[2].register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        twin.model(BATCH)
    handle.remove()
    assert is_deferred(twin.module[4].weight)
    twin.train(BATCH)
    flush(twin.model)
    assert same(twin.module.parameters(), twin.plain.parameters())


def test_a_second_step_uses_the_same_gradients_again(twin: Twin) -> None:
    twin.step()
    flush(twin.model)
    assert same(twin.module.parameters(), twin.plain.parameters())


def test_a_failed_group_raises_instead_of_showing_an_old_value(twin: Twin, group: SlowGroup) -> None:
    group.error = PeerLost("rank 1 is gone")
    for read in (lambda: twin.module[2].weight + 0, lambda: twin.model(BATCH), lambda: twin.module.state_dict()):
        with pytest.raises(PeerLost, match="rank 1 is gone"):
            read()


def test_the_users_parameter_class_is_kept(group: SlowGroup) -> None:
    class Scaled(nn.Parameter):
        scale = 3

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Scaled(torch.ones(4))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs * self.weight * self.weight.scale

    twin = Twin(Net(), momentum)
    group.deliver_all()
    twin.train(BATCH)
    assert isinstance(twin.module.weight, Scaled)
    assert twin.module.weight.scale == 3
    assert group.waits == 0
    assert same(twin.module.parameters(), twin.plain.parameters())
    assert type(twin.module.weight) is Scaled
