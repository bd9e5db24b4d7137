"""References to a gradient or its memory from before a backward pass read the mean."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.slow_group import SlowGroup, Twin
from tests.support.stepping import BATCH, make_net, momentum, same, saved
from undertow.torch import flush
from undertow.torch.pending.pending_tensors import find_gate


@pytest.fixture
def ready(group: SlowGroup) -> Twin:
    """Return a model after one backward whose results have arrived, so that gradients exist and are added to."""
    twin = Twin(make_net(), momentum)
    group.deliver_all()
    twin.backward(BATCH)
    flush(twin.model)
    return twin


def backward(twin: Twin) -> None:
    for net in (twin.module, twin.plain):
        for parameter in net.parameters():
            parameter.grad.zero_()
    twin.backward(BATCH)


READERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "arithmetic": lambda g: g + 0,
    "a sum": lambda g: g.sum(),
    "clone": lambda g: g.clone(),
    "data": lambda g: g.data,
    "numpy": lambda g: torch.from_numpy(g.numpy().copy()),
    "numpy's own": lambda g: torch.from_numpy(__import__("numpy").asarray(g).copy()),
    "tolist": lambda g: torch.tensor(g.tolist()),
    "item": lambda g: torch.tensor(g[0, 0].item()),
    "iteration": lambda g: next(iter(g)),
    "storage": lambda g: torch.tensor(g.untyped_storage().tolist()),
    "dlpack": lambda g: torch.from_dlpack(g).clone(),
    "out": lambda g: torch.mul(g, 2, out=torch.empty(g.shape)),
    "a list": lambda g: torch._foreach_mul([g], 2.0)[0],
    "in place": lambda g: g.mul_(2),
    "deepcopy": copy.deepcopy,
    "pickle": lambda g: pickle.loads(pickle.dumps(g)),  # noqa: S301
    "save": saved,
    "printing": lambda g: torch.tensor(list(repr(g).encode())),
    "format": lambda g: torch.tensor(list(f"{g[0, 0]:.6f}".encode())),
    "norm": lambda g: nn.utils.get_total_norm([g]),
    "the parameter's": lambda g: g.norm(),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_held_gradient_makes_its_reader_wait(ready: Twin, reader: Callable[[torch.Tensor], Any]) -> None:
    held, expected = (net[2].weight.grad for net in (ready.module, ready.plain))
    backward(ready)
    assert find_gate(ready.module[2].weight)
    assert torch.equal(reader(held), reader(expected))
    assert type(held) is torch.Tensor
    assert held is ready.module[2].weight.grad


@pytest.mark.parametrize("reader", [READERS["clone"], READERS["numpy"]])
def test_a_held_gradient_makes_its_reader_wait_after_a_step(
    ready: Twin, group: SlowGroup, reader: Callable[[torch.Tensor], Any]
) -> None:
    held, expected = (net[2].weight.grad for net in (ready.module, ready.plain))
    backward(ready)
    waits = group.waits
    ready.step()
    ready.zero_grad()
    assert group.waits == waits
    assert torch.equal(reader(held), reader(expected))
    flush(ready.model)
    assert same(ready.module.parameters(), ready.plain.parameters())


def test_holding_gradients_does_not_make_backward_wait(ready: Twin, group: SlowGroup) -> None:
    held = [parameter.grad for parameter in ready.module.parameters()]
    waits = group.waits
    backward(ready)
    assert group.waits == waits
    assert same(held, [parameter.grad for parameter in ready.plain.parameters()])


@pytest.mark.filterwarnings("ignore")  # torch's own, many
def test_holding_gradients_does_not_make_a_compiled_backward_wait(group: SlowGroup) -> None:
    twin = Twin(make_net(), momentum)
    group.deliver_all()
    torch.compile(lambda: twin.model(BATCH).sum().backward(), backend="eager")()
    assert group.waits == 0
    assert all(find_gate(parameter) for parameter in twin.module.parameters())
    torch._dynamo.reset()


ALIASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "a view": lambda g: g.view(-1),
    "detach": lambda g: g.detach(),
    "data": lambda g: g.data,
    "numpy": lambda g: g.numpy(),
    "memoryview": lambda g: memoryview(g.numpy()),
    "a storage object": lambda g: g.untyped_storage(),
    "a typed storage object": lambda g: g.storage(),
    "dlpack": lambda g: torch.from_dlpack(g),
    "a capsule": lambda g: g.__dlpack__(),
    "a subclass": lambda g: g.as_subclass(nn.Parameter),
}


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES)
def test_an_alias_of_its_memory_makes_backward_wait(ready: Twin, alias: Callable[[torch.Tensor], Any]) -> None:
    weight = ready.module[2].weight
    memory = torch.from_numpy(weight.grad.numpy())
    address = memory.data_ptr()
    del memory
    held = alias(weight.grad)
    backward(ready)
    assert not find_gate(weight)
    assert find_gate(ready.module[0].weight)
    assert weight.grad.data_ptr() == address
    del held


def test_a_gradient_of_a_subclass_makes_backward_wait(ready: Twin) -> None:
    class Loud(torch.Tensor):
        pass

    weight = ready.module[2].weight
    weight.grad = weight.grad.as_subclass(Loud)
    backward(ready)
    assert not find_gate(weight)
    assert torch.equal(weight.grad, ready.plain[2].weight.grad)


def test_a_sparse_gradient_that_is_held_becomes_the_mean(group: SlowGroup) -> None:
    def make() -> nn.Embedding:
        torch.manual_seed(0)
        return nn.Embedding(6, 4, sparse=True)

    twin = Twin(make(), lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    group.deliver_all()
    seen: list[torch.Tensor] = []
    twin.module.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad))
    twin.backward(torch.tensor([1, 3]))
    assert torch.equal(seen[0].to_dense(), twin.plain.weight.grad.to_dense())


@pytest.mark.parametrize("keep", [lambda o: o, lambda o: o.view(-1), lambda o: o.numpy()])
def test_a_gradient_kept_by_a_hook_is_the_mean_after_backward(
    group: SlowGroup, keep: Callable[[torch.Tensor], Any]
) -> None:
    from undertow.torch.passes.backward import find_accumulator

    twin = Twin(make_net(), momentum)
    group.deliver_all()
    kept: list[Any] = []
    node = find_accumulator(twin.module[0].bias)
    node.register_hook(lambda inputs, outputs: kept.append(keep(outputs[0])))
    twin.backward(BATCH)
    assert not find_gate(twin.module[0].bias)
    assert torch.equal(torch.as_tensor(kept[0]).view(-1), twin.plain[0].bias.grad)
