"""Real workers: steps with gradients that were never averaged are refused, and no correct script is."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from tests.support.workers import run_workers
from undertow.errors import ConfigError
from undertow.torch import DistributedDataParallel, flush, parallelize, verify_replicas

STEPS = 3
Wrap = Callable[..., tuple[Any, ...]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())


def sgd(module: nn.Module, **options: Any) -> Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, **options)


def wrap_early(module: nn.Module, *optimizers: Optimizer) -> tuple[Any, ...]:
    return DistributedDataParallel(module), *optimizers


def batches() -> Iterator[torch.Tensor]:
    """Return batches that differ between ranks."""
    return (torch.randn(3, 4) for _ in range(STEPS))


def step(called: Callable[[torch.Tensor], torch.Tensor], optimizer: Optimizer) -> None:
    for batch in batches():
        optimizer.zero_grad()
        called(batch).square().mean().backward()
        optimizer.step()


@contextmanager
def heard() -> Iterator[list[str]]:
    """Return the messages that are logged in the block."""
    words: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: words.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("undertow").addHandler(handler)
    yield words
    logging.getLogger("undertow").removeHandler(handler)


# Mistakes


def throw_away(net: nn.Module, optimizer: Optimizer) -> None:
    parallelize(net, optimizer)
    gc.collect()
    step(net, optimizer)


def call_past(net: nn.Module, optimizer: Optimizer) -> None:
    model, optimizer = parallelize(net, optimizer)
    step(model.module, optimizer)


def add_adapters(net: Net, optimizer: Optimizer) -> None:
    """Add adapters as LoRA does: freeze the weight, and add a product of two small ones."""
    model, optimizer = parallelize(net, optimizer)
    step(model, optimizer)
    flush(model)
    net.body.weight.requires_grad_(False)
    net.body.register_parameter("down", nn.Parameter(torch.ones(1, 4)))
    net.body.register_parameter("up", nn.Parameter(torch.ones(4, 1)))
    net.body.register_forward_hook(lambda module, given, out: out + given[0] @ module.down.T @ module.up.T)
    optimizer.add_param_group({"params": [net.body.down, net.body.up]})
    step(model, optimizer)


def make_mistakes(rank: int) -> list[str]:
    """Return the messages about each mistake; the workers can continue together afterwards."""
    told = []
    for mistake in (throw_away, call_past, add_adapters):
        net = Net()
        with pytest.raises(ConfigError) as caught:
            mistake(net, sgd(net))
        told.append(str(caught.value))
    model, optimizer = parallelize(net, sgd(net))
    step(model, optimizer)
    verify_replicas(model)
    return told


def test_mistakes_are_refused_on_every_rank_with_the_names_of_the_parameters() -> None:
    told, same = run_workers(2, make_mistakes)
    assert told == same
    for words, (name, what) in zip(
        told,
        [
            ("body.weight", "wrapper around"),
            ("head.bias", "called directly instead of its wrapper"),
            ("body.down", "added after"),
        ],
        strict=True,
    ):
        assert name in words
        assert what in words


# Correct scripts


def clip(wrap: Wrap) -> nn.Module:
    net = Net()
    model, optimizer = wrap(net, torch.optim.AdamW(net.parameters(), foreach=True))
    for batch in batches():
        optimizer.zero_grad()
        model(batch).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


def scale(wrap: Wrap) -> nn.Module:
    net = Net()
    model, optimizer = wrap(net, sgd(net, fused=True))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for batch in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch).float().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return model


def accumulate(wrap: Wrap) -> nn.Module:
    net = Net()
    model, optimizer = wrap(net, sgd(net))
    for batch in batches():
        optimizer.zero_grad(set_to_none=False)
        with model.no_sync():
            model(batch).mean().backward()
        model(batch).mean().backward()
        optimizer.step()
    return model


def freeze_and_unfreeze(wrap: Wrap) -> nn.Module:
    net = Net()
    net.body.requires_grad_(False)
    model, optimizer = wrap(net, sgd(net))
    step(model, optimizer)
    net.body.requires_grad_(True)
    step(model, optimizer)
    return model


def assign_gradients(wrap: Wrap) -> nn.Module:
    net = Net()
    model, optimizer = wrap(net, sgd(net))
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for batch in batches():
        optimizer.zero_grad()
        model(batch).mean().backward()
        for parameter in net.body.parameters():
            parameter.grad = None if parameter.grad is None else parameter.grad * 0.5
        optimizer.step()
    return model


def train_adversaries(wrap: Wrap) -> nn.Module:
    """Train a GAN whose generator loss bypasses the discriminator's wrapper, as in many scripts."""
    made, judge = nn.Linear(4, 4), Net()
    made_optimizer, judge_optimizer = sgd(made), sgd(judge)
    maker, made_optimizer = wrap(made, made_optimizer)
    critic, judge_optimizer = wrap(judge, judge_optimizer)
    for batch in batches():
        made_optimizer.zero_grad()
        critic.module(maker(batch)).mean().backward()
        made_optimizer.step()
        judge_optimizer.zero_grad(set_to_none=False)
        real = critic(batch)
        [slope] = torch.autograd.grad(critic(batch.clone().requires_grad_()).sum(), [judge.body.weight])
        (real.mean() - critic(maker(batch).detach()).mean() + slope.sum()).backward()
        judge_optimizer.step()
    verify_replicas(maker)
    return critic


def copy_and_train_alone(wrap: Wrap) -> nn.Module:
    """Train a copy on this rank alone: a teacher, or the inner loop of meta-learning."""
    net = Net()
    model, optimizer = wrap(net, sgd(net))
    step(model, optimizer)
    flush(model)
    own = copy.deepcopy(model.module)
    step(own, sgd(own))
    return model


def compute_again(wrap: Wrap) -> nn.Module:
    net = Net()
    body = net.body.forward
    model, optimizer = wrap(net, sgd(net))
    for reentrant in (True, False):
        net.body.forward = lambda x, r=reentrant: checkpoint(body, x.requires_grad_(), use_reentrant=r)  # type: ignore[misc]
        step(model, optimizer)
    return model


def use_closures(wrap: Wrap) -> nn.Module:
    net = Net()
    model, optimizer = wrap(net, torch.optim.LBFGS(net.parameters(), lr=0.01, max_iter=3))
    for batch in batches():

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    return model


def try_out_first(wrap: Wrap) -> nn.Module:
    """Run a pass of the inner module and discard its gradients: a warm-up, or a search for the batch size."""
    net = Net()
    model, optimizer = wrap(net, sgd(net))
    model.module(torch.ones(3, 4)).sum().backward()
    optimizer.zero_grad()
    step(model, optimizer)
    return model


def wrap_for_each_fold(wrap: Wrap) -> nn.Module:
    net = Net()
    for _ in range(2):
        model, optimizer = wrap(net, sgd(net))
        step(model, optimizer)
        flush(model)
    return model


CORRECT: Iterable[Callable[[Wrap], nn.Module]] = (
    clip,
    scale,
    accumulate,
    freeze_and_unfreeze,
    assign_gradients,
    train_adversaries,
    copy_and_train_alone,
    compute_again,
    use_closures,
    try_out_first,
    wrap_for_each_fold,
)


def train_correctly(rank: int) -> list[str]:
    torch.manual_seed(rank)
    with heard() as words:
        for script in CORRECT:
            for wrap in (wrap_early, parallelize):
                model = script(wrap)
                flush(model)
                verify_replicas(model)
    return [line for line in words if "averaged" in line]


def test_correct_scripts_are_neither_refused_nor_warned() -> None:
    assert run_workers(2, train_correctly) == [[], []]


def average_otherwise(rank: int, init_method: str) -> list[list[str]]:
    """Return the messages when torch's class, the script or nothing averages, and about a weight of the loss."""
    torch.manual_seed(rank)
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=2)
    said = []
    for train in (_train_with_torchs_own, _average_by_hand, _train_a_weight_of_the_loss):
        with heard() as words:
            train(Net())
        said.append([line for line in words if "averaged" in line])
    net = Net()
    with pytest.raises(ConfigError, match="never averaged"):
        throw_away(net, sgd(net))
    return said


def _train_with_torchs_own(net: Net) -> None:
    parallelize(net, sgd(net))
    gc.collect()
    model = TorchDistributedDataParallel(net, find_unused_parameters=True)
    step(model, sgd(net))
    verify_replicas(model)


def _average_by_hand(net: Net) -> None:
    parallelize(net, sgd(net))  # so that all ranks start with equal weights
    gc.collect()
    optimizer = sgd(net)
    for batch in batches():
        optimizer.zero_grad()
        net(batch).mean().backward()
        for parameter in net.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
    verify_replicas(net)


def _train_a_weight_of_the_loss(net: Net) -> None:
    weight = nn.Parameter(torch.ones(()))
    model, optimizer = parallelize(net, torch.optim.SGD([*net.parameters(), weight], lr=0.1))
    step(lambda x: model(x) * weight, optimizer)
    flush(model)
    verify_replicas(model)


def test_gradients_that_others_average_are_not_refused(tmp_path: Path) -> None:
    for torchs, own, beside in run_workers(2, average_otherwise, (tmp_path / "store").as_uri()):
        assert torchs == []
        assert len(own) == 1
        assert "Unless the script averages them by other means" in own[0]
        assert len(beside) == 1
        assert beside[0].startswith("1 parameters of this SGD")
