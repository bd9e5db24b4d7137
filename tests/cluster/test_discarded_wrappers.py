"""Models that all ranks have discarded use no memory on any rank."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from torch import nn

import undertow
import undertow.torch
from tests.support.workers import HANG_S, on_workers
from undertow import kvstore
from undertow.engine.coordinator import calls as coordinator_calls
from undertow.horovod import torch as hvd
from undertow.horovod.torch.transfers import SMALL_BYTES
from undertow.runtime import process
from undertow.torch.ddp.parallelize import flush

MODELS = 4
PLANS = ["auto", "factors", "factors-to-shard"]


def make_module() -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)], nn.BatchNorm1d(32))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 32)).sum().backward()
        optimizer.step()


def wrap(width: int) -> None:
    model = undertow.torch.DistributedDataParallel(make_module(), plan=PLANS[width % len(PLANS)])
    train(model, torch.optim.SGD(model.parameters(), 0.1))


def parallelize(width: int) -> None:
    module = make_module()
    model, optimizer = undertow.torch.parallelize(module, torch.optim.SGD(module.parameters(), 0.1))
    train(model, optimizer)
    flush(model)


def break_off(width: int) -> None:
    """Interrupt a backward, as when memory runs out: the open pass never ends."""

    def fail(gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("in the middle of backward")

    module = make_module()
    model = undertow.torch.DistributedDataParallel(module)
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    module[1].weight.register_hook(fail)
    with suppress(RuntimeError):
        model(torch.randn(4, 32)).sum().backward()


def distribute_optimizer(width: int) -> None:
    module = make_module()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    train(module, hvd.DistributedOptimizer(optimizer, named_parameters=module.named_parameters()))


def store(width: int) -> None:
    kv = kvstore.create()
    kv.init("weight", np.zeros(100 + width))
    kv.push("weight", np.ones(100 + width)).wait()


def count_resources() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def count_keys() -> dict[str, int]:
    """Return the number of entries by key in this rank's engine."""
    exchange = process.default_group()._exchange
    own, shard = exchange.worker, exchange.shard
    holders = {
        "flow": own.flow,
        "gathering": own.gathering,
        "shard": shard._shard,
        "gathering at the shard": shard._gathering,
        "shard side": shard,
    }
    counts = {
        f"{name}.{attribute}": len(value)
        for name, holder in holders.items()
        for attribute, value in vars(holder).items()
        if isinstance(value, dict | set)
    }
    return {name: count for name, count in counts.items() if count}


def use_up(make: Callable[[int], None]) -> dict[str, int]:
    """Return what remains of several models after all ranks have discarded them."""
    for number in range(MODELS):
        make(number)
    gc.collect()
    return wait_for_discards()


def wait_for_discards() -> dict[str, int]:
    """Wait until the other rank has also discarded its models."""
    deadline_s = time.monotonic() + HANG_S / 2
    while count_keys() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return count_keys()


@on_workers(2)
def test_models_that_all_ranks_discard_leave_no_keys_on_any_rank(rank: int) -> None:
    undertow.init()
    wrap(0)
    before = count_resources()
    for make in (wrap, parallelize, break_off, distribute_optimizer, store):
        assert not use_up(make), f"{make.__name__} leaves keys"
        undertow.barrier()
    assert count_resources() <= (before[0], before[1] + 1)  # the helper's thread, started once


@on_workers(2)
def test_discarded_models_do_not_wait_for_a_garbage_collection(rank: int) -> None:
    """Python rarely collects all generations: until then, the weights of many models would stay in memory."""
    undertow.init()
    makers = (wrap, parallelize, distribute_optimizer, store)
    for make in makers:
        use_up(make)  # the first ones stay in tracebacks of torch's lazy imports
    gc.disable()
    for make in makers:
        for number in range(MODELS):
            make(number)
        assert not wait_for_discards(), f"{make.__name__} leaves keys to the collector"
        undertow.barrier()


@on_workers(2)
def test_a_model_discarded_on_one_rank_stays_known_to_all(rank: int) -> None:
    undertow.init()
    model = undertow.torch.DistributedDataParallel(make_module())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    spare = undertow.torch.DistributedDataParallel(make_module())
    keys = [item.spec.key for slices in spare._synchroniser.slices() for item in slices]
    if rank == 0:
        del spare
        gc.collect()
    undertow.barrier()
    train(model, optimizer)
    exchange = process.default_group()._exchange
    assert all(exchange.knows(key) for key in keys)
    undertow.barrier()


@on_workers(2)
def test_calls_that_all_differ_do_not_accumulate_keys(rank: int) -> None:
    coordinator_calls.MOST_FREE_KEYS = 8
    hvd.init()
    for more in range(40):  # each too large for the path that all small ones share
        total = hvd.allreduce(torch.full((SMALL_BYTES // 4 + 1 + more,), float(rank)), op=hvd.Sum)
        assert torch.equal(total, torch.ones_like(total))
    undertow.barrier()
    deadline_s = time.monotonic() + HANG_S / 4
    while len(process.default_group()._exchange.worker.flow._specs) > 10 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert all(count <= 10 for count in count_keys().values()), count_keys()
    undertow.barrier()
