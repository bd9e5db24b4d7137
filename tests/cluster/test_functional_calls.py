"""`torch.func.functional_call` and related functions on a wrapped model behave as with torch's own class."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import stateless
from torch.nn.utils.parametrizations import weight_norm

from tests.support.single_process import run
from tests.support.workers import on_workers, run_workers
from undertow.errors import ConfigError
from undertow.torch import DistributedDataParallel, parallelize

STEPS = 5  # the plan is in force from the first few on


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(weight_norm(nn.Linear(3, 8)), nn.Tanh(), nn.Linear(8, 2), nn.Linear(2, 2, bias=False))


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


def loss_of(model: nn.Module, tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return functional_call(model, tensors, (x,)).square().sum()


def call_with_parameters(model: nn.Module, x: torch.Tensor) -> None:
    loss_of(model, parameters(model), x).backward()


def call_with_derived(model: nn.Module, x: torch.Tensor) -> None:
    loss_of(model, {name: tensor * 1.5 for name, tensor in parameters(model).items()}, x).backward()


def call_with_some(model: nn.Module, x: torch.Tensor) -> None:
    name, tensor = next((n, p) for n, p in model.named_parameters() if n.endswith("2.weight"))
    loss_of(model, {name: tensor + 1}, x).backward()


def learn_to_learn(model: nn.Module, x: torch.Tensor) -> None:
    slow = parameters(model)
    inner = torch.autograd.grad(loss_of(model, slow, x), list(slow.values()), create_graph=True)
    fast = {name: slow[name] - 0.1 * change for name, change in zip(slow, inner, strict=True)}
    loss_of(model, fast, x + 1).backward()


def call_in_a_vmap(model: nn.Module, x: torch.Tensor) -> None:
    tensors = {name: tensor * 1.5 for name, tensor in parameters(model).items()}
    vmap(lambda row: loss_of(model, tensors, row))(x).sum().backward()


def call_by_the_old_name(model: nn.Module, x: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = {name: 2 * tensor for name, tensor in parameters(model).items()}
        stateless.functional_call(model, tensors, (x,)).square().sum().backward()


CALLS: tuple[Callable[[nn.Module, torch.Tensor], None], ...] = (
    call_with_parameters,
    call_with_derived,
    call_with_some,
    learn_to_learn,
    call_in_a_vmap,
    call_by_the_old_name,
)


def inputs_of(rank: int) -> torch.Tensor:
    return torch.arange(6.0).view(2, 3) * (rank + 1) / 10


def mean_gradients(model: nn.Module, call: Callable[[nn.Module, torch.Tensor], None]) -> list[torch.Tensor]:
    """Return the gradients of one process with the inputs of both ranks."""
    model.zero_grad()
    for rank in range(2):
        call(model, inputs_of(rank))
    return [parameter.grad / 2 for parameter in model.parameters()]  # type: ignore[operator]


def check_steps(model: Any, optimizer: torch.optim.Optimizer, rank: int, call: Callable[..., None]) -> None:
    alone = make_model()
    for _ in range(STEPS):
        alone.load_state_dict({name: tensor.detach().clone() for name, tensor in model.module.state_dict().items()})
        optimizer.zero_grad()
        call(model, inputs_of(rank))
        found = [parameter.grad for parameter in model.parameters()]
        torch.testing.assert_close(found, mean_gradients(alone, call))
        optimizer.step()


@on_workers(2)
def test_gradients_that_reach_the_parameters_are_averaged_by_every_scheme(rank: int) -> None:
    for plan in ("dense", "factors", "factors-to-shard"):
        for call in CALLS:
            model = DistributedDataParallel(make_model(), plan=plan)
            check_steps(model, torch.optim.SGD(model.parameters(), lr=0.01), rank, call)
            raw = make_model()
            check_steps(*parallelize(raw, torch.optim.SGD(raw.parameters(), lr=0.01), plan=plan), rank, call)


@on_workers(2)
def test_gradients_of_copies_stay_local_and_rank_0_logs_it_once(rank: int) -> None:
    heard: list[str] = []
    logging.getLogger("undertow").addFilter(lambda record: heard.append(record.getMessage()) or True)
    for wrap in (DistributedDataParallel, lambda m: parallelize(m, torch.optim.SGD(m.parameters(), lr=1.0))[0]):
        for makes in (lambda tensor: tensor.detach().clone().requires_grad_(), lambda tensor: nn.Parameter(tensor + 1)):
            heard.clear()
            model = wrap(make_model())
            alone = copy.deepcopy(model.module)
            for _ in range(2):
                copies = {name: makes(tensor) for name, tensor in parameters(model).items()}
                loss_of(model, copies, inputs_of(rank)).backward()
                expected = {name: makes(tensor) for name, tensor in parameters(alone).items()}
                loss_of(alone, expected, inputs_of(rank)).backward()
                found = [tensor.grad for tensor in copies.values()]
                torch.testing.assert_close(found, [tensor.grad for tensor in expected.values()], rtol=0, atol=0)
                assert all(parameter.grad is None for parameter in model.parameters())
            assert [("do not reach the model's parameters" in words) for words in heard] == [True] * (rank == 0)


def learn_inside(model: nn.Module, x: torch.Tensor) -> None:
    slow = parameters(model)
    inner = grad(lambda tensors: loss_of(model, tensors, x))(slow)
    loss_of(model, {name: slow[name] - 0.1 * inner[name] for name in slow}, x + 1).backward()


def penalise_each(model: nn.Module, x: torch.Tensor) -> None:
    """Penalise the gradients of each row, for which the parameters are wrapped more than once."""
    inner = vmap(grad(lambda tensors, row: loss_of(model, tensors, row)), in_dims=(None, 0))(parameters(model), x)
    sum(gradient.square().sum() for gradient in inner.values()).backward()  # type: ignore[union-attr]


@on_workers(2)
def test_gradients_that_reach_the_parameters_through_a_transform_are_averaged_silently(rank: int) -> None:
    heard: list[str] = []
    logging.getLogger("undertow").addFilter(lambda record: heard.append(record.getMessage()) or True)
    for call in (learn_inside, penalise_each):
        model = DistributedDataParallel(make_model())
        check_steps(model, torch.optim.SGD(model.parameters(), lr=0.01), rank, call)
        raw = make_model()
        check_steps(*parallelize(raw, torch.optim.SGD(raw.parameters(), lr=0.01)), rank, call)
    assert not any("do not reach" in words for words in heard)


@on_workers(2)
def test_gradients_of_torch_func_are_those_of_the_worker(rank: int) -> None:
    heard: list[str] = []
    logging.getLogger("undertow").addFilter(lambda record: heard.append(record.getMessage()) or True)
    model, alone = DistributedDataParallel(make_model()), make_model()
    per_sample = {}
    for one in (model, alone):
        tensors = {name: tensor.detach() for name, tensor in parameters(one).items()}
        compute = vmap(grad(lambda tensors, row, one=one: loss_of(one, tensors, row)), in_dims=(None, 0))
        per_sample[one] = list(compute(tensors, inputs_of(rank)).values())
    torch.testing.assert_close(per_sample[model], per_sample[alone], rtol=0, atol=0)
    assert [("do not reach the model's parameters" in words) for words in heard] == [True] * (rank == 0)
    check_steps(model, torch.optim.SGD(model.parameters(), lr=0.01), rank, call_with_derived)  # it synchronises on


@on_workers(2)
def test_a_permanently_replaced_parameter_is_an_error_inside_such_a_call(rank: int) -> None:
    model = DistributedDataParallel(make_model())
    model.module[2].weight = nn.Parameter(torch.ones(2, 8))
    with pytest.raises(ConfigError, match=r"parameter '2\.weight' was replaced"):
        functional_call(model, {"module.2.bias": torch.ones(2)}, (inputs_of(rank),))


@on_workers(2)
def test_a_copys_first_call_must_use_its_own_parameters(rank: int) -> None:
    model = copy.deepcopy(DistributedDataParallel(make_model()))
    check_steps(model, torch.optim.SGD(model.parameters(), lr=0.01), rank, call_with_parameters)
    model = copy.deepcopy(DistributedDataParallel(make_model()))
    with pytest.raises(ConfigError, match=r"the first call of this copy .* Call the copy itself first"):
        call_with_derived(model, inputs_of(rank))
    model(inputs_of(rank)).sum().backward()
    check_steps(model, torch.optim.SGD(model.parameters(), lr=0.01), rank, call_with_derived)


def train_functionally(rank: int) -> list[torch.Tensor]:
    """Train as a single-process script does."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for call in CALLS:
        optimizer.zero_grad()
        call(model, inputs_of(rank))
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_a_single_process_script_trains_with_functional_calls() -> None:
    alone = make_model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
    for call in CALLS:
        for parameter, mean in zip(alone.parameters(), mean_gradients(alone, call), strict=True):
            parameter.grad = mean
        optimizer.step()
    for trained in run(2, train_functionally):
        torch.testing.assert_close(trained, [parameter.detach() for parameter in alone.parameters()])


def make_with_buffers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def sample_gradients(model: nn.Module, x: torch.Tensor, buffers: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return gradients per row; buffers, if given, are mapped over as well."""
    tensors = {name: tensor.detach() for name, tensor in parameters(model).items()}

    def loss(tensors: Any, buffers: Any, row: torch.Tensor) -> torch.Tensor:
        return functional_call(model, (tensors, buffers), (row[None],)).square().sum()

    each = {name: tensor.detach().expand(len(x), *tensor.shape) for name, tensor in buffers.items()}
    return list(vmap(grad(loss), in_dims=(None, 0, 0))(tensors, each, x).values())


def train_beside_transforms(rank: int, wrap: Callable[..., Any]) -> list[torch.Tensor]:
    """Return the weights; per-sample gradients of each rank are checked here."""
    raw = make_with_buffers()
    model, optimizer = wrap(raw, torch.optim.SGD(raw.parameters(), lr=0.01))
    x = inputs_of(rank)
    for _ in range(3):
        optimizer.zero_grad()
        call_with_derived(model, x)
        optimizer.step()
        model.eval()
        own = {name: tensor.clone() for name, tensor in model.named_buffers()}  # not yet rank 0's
        given = (dict(model.named_buffers()), own, {})  # the first share memory with those of the module
        with_the_modules, with_own, with_none = (sample_gradients(model, x, buffers) for buffers in given)
        model.train()
        alone = make_with_buffers().eval()
        alone.load_state_dict({name: tensor.clone() for name, tensor in raw.state_dict().items()})
        torch.testing.assert_close(with_none, sample_gradients(alone, x, {}))
        torch.testing.assert_close(with_the_modules, with_none)
        bare = {name.removeprefix("module."): tensor for name, tensor in own.items()}
        torch.testing.assert_close(with_own, sample_gradients(alone, x, bare))
    return [tensor.detach().clone() for tensor in raw.state_dict().values()]


def wrap_in_ddp(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return DistributedDataParallel(model), optimizer


def leave_as_it_is(*objects: Any) -> Any:
    return objects


def check_trained_beside_transforms(trained: list[list[torch.Tensor]]) -> None:
    alone, averaged = make_with_buffers(), []
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
    first_buffers = copy.deepcopy(alone)
    for _ in range(3):
        averaged = []
        for rank in range(2):
            alone.zero_grad()
            call_with_derived(alone, inputs_of(rank))
            averaged.append([parameter.grad for parameter in alone.parameters()])
            if rank == 0:
                first_buffers = copy.deepcopy(alone)
        for parameter, *gradients in zip(alone.parameters(), *averaged, strict=True):
            parameter.grad = torch.stack(gradients).mean(0)  # type: ignore[arg-type]
        alone.load_state_dict(dict(first_buffers.named_buffers()), strict=False)
        optimizer.step()
    for one in trained:
        torch.testing.assert_close(one, [tensor.detach() for tensor in alone.state_dict().values()])


def test_transforms_of_a_model_with_buffers_during_training() -> None:
    check_trained_beside_transforms(run_workers(2, train_beside_transforms, wrap_in_ddp))
    check_trained_beside_transforms(run_workers(2, train_beside_transforms, parallelize))
    check_trained_beside_transforms(run(2, train_beside_transforms, leave_as_it_is))
