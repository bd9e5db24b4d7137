"""Native functions that read a tensor without consulting its class also wait."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._device import _device_constructors

import undertow
from tests.support.slow_group import SlowGroup, Twin
from tests.support.stepping import BATCH, make_net, momentum
from undertow.torch import flush
from undertow.torch.pending.native_functions import find_guarded, guard_native_functions, unguard_native_functions
from undertow.torch.pending.pending_tensors import find_gate

INDICES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7]])
ROWS = torch.arange(9)
COLUMNS = torch.zeros(8, dtype=torch.int64)


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


@functools.cache
def script() -> Any:
    return torch.jit.script(double)


def seeded(gradient: torch.Tensor) -> Any:
    leaf = torch.zeros(gradient.shape, requires_grad=True)
    (leaf * 2).backward(gradient=gradient)
    return leaf.grad


def derived(gradient: torch.Tensor) -> Any:
    leaf = torch.zeros(gradient.shape, requires_grad=True)
    return torch.autograd.grad(leaf * 2, leaf, grad_outputs=gradient)[0]


READERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda t: torch.tensor(t),
    "tensor of another type": lambda t: torch.tensor(data=t, dtype=torch.float64),
    "tensor of scalars": lambda t: torch.tensor([t[0, 0], t[1, 1]]),
    "Tensor": lambda t: torch.Tensor(t),
    "Tensor of scalars": lambda t: torch.Tensor([t[0, 0], t[1, 1]]),
    "as_tensor": lambda t: torch.as_tensor(t),
    "as_tensor of another type": lambda t: torch.as_tensor(t, dtype=torch.float64),
    "asarray": lambda t: torch.asarray(t),
    "asarray, copied": lambda t: torch.asarray(t, copy=True),
    "nested_tensor": lambda t: torch.nested.nested_tensor([t, t]).unbind()[1],
    "as_nested_tensor": lambda t: torch.nested.as_nested_tensor([t, t]).unbind()[1],
    "sparse_coo_tensor": lambda t: torch.sparse_coo_tensor(INDICES, t).to_dense(),
    "sparse_coo_tensor by name": lambda t: torch.sparse_coo_tensor(INDICES, values=t).to_dense(),
    "sparse_csr_tensor": lambda t: torch.sparse_csr_tensor(ROWS, COLUMNS, t.view(-1)[:8]).to_dense(),
    "new_tensor": lambda t: torch.ones(1).new_tensor(t),
    "new": lambda t: torch.ones(1).new(t),
    "set_": lambda t: torch.ones(1).set_(t.detach()),
    "data of another": lambda t: setting_data(t),
    "Parameter": lambda t: nn.Parameter(t),
    "Buffer": lambda t: nn.Buffer(t),
    "Tensor._make_subclass": lambda t: torch.Tensor._make_subclass(nn.Parameter, t),
    "a scripted function": lambda t: script()(t),
    "dlpack": lambda t: torch.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "a seed of backward": seeded,
    "a seed of a derivative": derived,
}


def setting_data(tensor: torch.Tensor) -> torch.Tensor:
    other = torch.ones(1)
    other.data = tensor
    return other


@pytest.fixture
def held(group: SlowGroup) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a gradient whose mean has not arrived, and the mean."""
    twin = Twin(make_net(), momentum)
    group.deliver_all()
    twin.backward(BATCH)
    flush(twin.model)
    ours, theirs = (net[2].weight.grad for net in (twin.module, twin.plain))
    for net in (twin.module, twin.plain):
        for parameter in net.parameters():
            parameter.grad.zero_()
    twin.backward(BATCH)
    assert find_gate(ours)
    vars(ours)["twin"] = twin  # otherwise its gate would be deleted with it
    return ours, theirs


@pytest.mark.filterwarnings("ignore")  # torch advises against most of these
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_parameter_is_read_after_its_update(twin: Twin, reader: Callable[[torch.Tensor], Any]) -> None:
    weight = twin.module[2].weight
    ours, theirs = reader(weight), reader(twin.plain[2].weight)
    assert torch.equal(ours, theirs)
    assert type(ours) is type(theirs)
    assert not find_gate(weight)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_held_gradient_is_read_as_the_mean(
    held: tuple[torch.Tensor, torch.Tensor], reader: Callable[[torch.Tensor], Any]
) -> None:
    ours, theirs = map(reader, held)
    assert torch.equal(ours, theirs)
    assert type(ours) is type(theirs)
    assert not find_gate(held[0])


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_reads_the_updated_value(twin: Twin) -> None:
    compiled = torch.compile(double, backend="eager")
    for _ in range(3):
        assert find_gate(twin.module[2].weight)
        assert torch.equal(compiled(twin.module[2].weight), double(twin.plain[2].weight))
        twin.train(BATCH)
    held = twin.module[0].weight.grad
    twin.backward(BATCH)
    assert find_gate(held)
    assert torch.equal(compiled(held), double(twin.plain[0].weight.grad))


def make_scripted(values: torch.Tensor) -> torch.Tensor:
    return values + torch.tensor([1.0]) + torch.as_tensor(2.0)


def make_compiled(values: torch.Tensor) -> torch.Tensor:
    return torch.Tensor([1.0]) + torch.tensor(values) + torch.as_tensor(values, dtype=torch.float64) + values.data


@pytest.mark.filterwarnings("ignore")
def test_compilers_recognise_guarded_functions(group: SlowGroup) -> None:
    Twin(make_net(), momentum)
    one = torch.ones(1)
    assert torch.jit.script(make_scripted)(one) == 4
    assert torch.compile(make_compiled, backend="eager", fullgraph=True)(one) == 4


def test_a_default_device_applies_to_guarded_functions() -> None:
    unguard_native_functions()
    _device_constructors.cache_clear()
    guard_native_functions()
    with torch.device("meta"):
        made = [torch.tensor([1.0]), torch.as_tensor([1.0]), torch.asarray([1.0]), nn.Linear(2, 2).weight]
    assert {one.device.type for one in made} == {"meta"}


@pytest.mark.filterwarnings("ignore")
def test_shutdown_restores_torchs_own_functions(twin: Twin) -> None:
    undertow.shutdown()
    flush(twin.model)
    assert type(torch.Tensor.data) is types.GetSetDescriptorType
    assert "data" not in vars(torch.Tensor)
    assert torch.equal(torch.Tensor(torch.ones(2)), torch.tensor([1.0, 1.0]))
    before = [getattr(owner, name) for owner, name in find_guarded()]
    guard_native_functions()
    after = [getattr(owner, name) for owner, name in find_guarded()]
    assert not [one for one, other in zip(before, after, strict=True) if one is other]
    unguard_native_functions()
    assert [getattr(owner, name) for owner, name in find_guarded()] == before


def test_an_optimizer_may_use_them_in_its_step(group: SlowGroup) -> None:
    class Copying(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for parameter in self.param_groups[0]["params"]:
                assert not torch.as_tensor(parameter, dtype=torch.float64).isnan().any()
            return super().step(closure)

    twin = Twin(make_net(), lambda parameters: Copying(parameters, lr=0.1), separable=True)
    group.deliver_all()
    for _ in range(2):
        twin.train(BATCH)
    flush(twin.model)
    assert all(map(torch.equal, twin.module.parameters(), twin.plain.parameters()))
