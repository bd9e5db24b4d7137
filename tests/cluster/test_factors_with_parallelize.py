"""Factors with `parallelize`, and the work that they save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import undertow
import undertow.torch
from tests.support.factored_nets import LINEAR, WIDTH, batch, compare, copy_of, make_net, plan_factors
from tests.support.workers import on_workers, run_workers
from undertow.plan.scheme import Scheme
from undertow.torch import DistributedDataParallel, flush, parallelize, verify_replicas

# `parallelize`


def train_both_ways(
    rank: int, step: Callable[[Any, Any, int, int], None], make: Callable[[], nn.Module] = make_net, passes: int = 6
) -> None:
    """Train with and without factors; `step` gets the model and the optimizer; all parameters must be equal."""
    for linear in (None, *LINEAR):
        parameters = []
        for overlaps in (False, True):
            net = make()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-2)
            plan = "dense" if linear is None else plan_factors(net, linear)
            model = parallelize(net, optimizer, plan=plan)[0] if overlaps else DistributedDataParallel(net, plan=plan)
            for index in range(passes):
                step(model, optimizer, index, rank)
            flush(model)
            verify_replicas(net)
            parameters.append([copy_of(parameter) for parameter in net.parameters()])
        if linear is None:
            expected = parameters[0]
        for ours in parameters:
            compare(ours, expected, str(linear), 1e-5)
        compare(*parameters, f"both ways with {linear}", 0.0)  # type: ignore[arg-type]


def test_factors_with_parallelize() -> None:
    """Deferred work gives the same results."""
    run_workers(2, use_other_door)


def use_other_door(rank: int) -> None:
    def plain(model: Any, optimizer: Any, index: int, rank: int) -> None:
        optimizer.zero_grad()
        model(batch(index, rank)).square().sum().backward()
        optimizer.step()

    def zero(model: Any, optimizer: Any, index: int, rank: int) -> None:
        model(batch(index, rank)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=index % 2 == 0)

    def clip(model: Any, optimizer: Any, index: int, rank: int) -> None:
        optimizer.zero_grad()
        model(batch(index, rank)).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    def add_up(model: Any, optimizer: Any, index: int, rank: int) -> None:
        optimizer.zero_grad()
        with model.no_sync():
            model(batch(index, rank)).square().sum().backward()
        model(batch(index + 50, rank)).square().sum().backward()
        optimizer.step()

    def skip_step(model: Any, optimizer: Any, index: int, rank: int) -> None:
        model(batch(index, rank)).square().sum().backward()
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()

    def add_up_late(model: Any, optimizer: Any, index: int, rank: int) -> None:
        """Accumulate onto the last mean, which may still be in flight."""
        model(batch(index, rank)).square().sum().backward()
        with model.no_sync():
            model(batch(index + 50, rank)).square().sum().backward()
        if index % 2:
            model(batch(index + 60, rank)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def pass_by(model: Any, optimizer: Any, index: int, rank: int) -> None:
        """Run forwards before which no hook runs."""
        optimizer.zero_grad()
        net = model.module
        outputs = model(batch(index, rank)) + net[2].forward(torch.tanh(net[0].forward(batch(index + 50, rank))))
        outputs.square().sum().backward()
        optimizer.step()

    def first_by_hand(model: Any, optimizer: Any, index: int, rank: int) -> None:
        optimizer.zero_grad()
        by_hand = model.module[0].forward(batch(index + 50, rank)).square().sum() * 0.1
        (model(batch(index, rank)).square().sum() + by_hand).backward()
        optimizer.step()

    def scale(model: Any, optimizer: Any, index: int, rank: int) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer.zero_grad()
        factor = float("inf") if index == 3 and rank else 1.0
        scaler.scale(model(batch(index, rank)).square().sum() * factor).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()

    for step in (plain, zero, clip, add_up, skip_step, add_up_late, pass_by, first_by_hand, scale):
        try:
            train_both_ways(rank, step)
        except Exception as error:
            error.add_note(f"in {step.__name__}")
            raise


# Saved work


class Products(TorchDispatchMode):
    """Record of products whose result has this shape, by their number of rows."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.rows: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        if function._schema.name in ("aten::mm", "aten::addmm") and tuple(result.shape) == self.shape:
            self.rows.append(args[-1].shape[0])
        return result


@on_workers(2)
def test_no_worker_computes_a_dense_product(rank: int) -> None:
    for linear, rows in (
        (Scheme.FACTORS, [10]),
        (Scheme.FACTORS_TO_SHARD, []),
    ):  # products over the rows of all workers; shards compute theirs in the helper thread
        net = make_net()
        model = DistributedDataParallel(net, plan=plan_factors(net, linear))
        has_none: list[bool] = []
        net[0].bias.register_hook(lambda gradient, net=net, seen=has_none: seen.append(net[2].weight.grad is None))
        for index in range(4):
            model.zero_grad()
            with Products((24, WIDTH)) as products:
                model(batch(index, rank)).square().sum().backward()
            assert products.rows == (rows if index > 1 else [5])
        assert has_none == [False, False, True, True]  # while backward reached it
        undertow.barrier()
