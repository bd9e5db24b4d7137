"""Scripts that make their optimizer before they join the other workers train as in the usual order."""

from __future__ import annotations

import contextlib
import importlib
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.forked_scripts import run_script
from tests.support.ports import free_port
from tests.support.single_process import flat, run

STEPS = 6
TRAINED = tuple[list[float], list[float], list[int]]


def make_model(rank: int) -> nn.Module:
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))


def train(rank: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.full((4, 32), rank + step / 10)).square().mean().backward()
        optimizer.step()


def count_bytes() -> list[int]:
    """Return the bytes that each group has sent once all ranks are here, when all that they waited for is sent."""
    process: Any = importlib.import_module("undertow.runtime.process")
    for group in process._groups.values():
        group.barrier()
    return [group.bytes_sent for group in process._groups.values()]


def join(by: str) -> None:
    if by == "init_process_group":
        dist.init_process_group("gloo")
    elif by == "full name":
        dist.distributed_c10d.init_process_group("gloo")
    elif by == "unnoticed":
        dist.distributed_c10d.init_process_group.__wrapped__("gloo")
    elif by == "hvd.init()":
        importlib.import_module("horovod.torch").init()
    else:
        importlib.import_module("undertow").init(slice_bytes=4096)


def wrap(by: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    if by == "hvd.init()":
        hvd: Any = importlib.import_module("horovod.torch")
        return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return torch.nn.parallel.DistributedDataParallel(model), optimizer


def train_in_order(rank: int, by: str, is_late: bool, folder: Path) -> TRAINED:
    """Print and save on every rank before joining: each rank's output and files are its own."""
    model = make_model(rank)
    before = flat(model)
    if not is_late:
        join(by)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    print(f"rank {rank} speaks")
    torch.save(rank, folder / f"of-{rank}.pt")
    if is_late:
        join(by)
    assert flat(model) == before or by == "unnoticed"
    torch.rand(1)
    used, optimizer = wrap(by, model, optimizer)
    if by == "hvd.init()":
        importlib.import_module("horovod.torch").broadcast_parameters(model.state_dict(), root_rank=0)
    train(rank, used, optimizer)
    return flat(model), torch.rand(2).tolist(), count_bytes()  # the weights wait for the last step's updates


@pytest.mark.parametrize(
    ("by", "overlap"),
    [
        ("undertow.init()", "off"),
        ("init_process_group", "off"),
        ("init_process_group", "on"),
        ("full name", "off"),
        ("unnoticed", "off"),
        ("hvd.init()", "off"),
    ],
)
def test_a_late_join_trains_and_sends_like_an_early_one(by: str, overlap: str, tmp_path: Path) -> None:
    runs: list[list[TRAINED]] = []
    for is_late in (False, True):
        folder = tmp_path / str(is_late)
        folder.mkdir()
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "UNDERTOW_OVERLAP": overlap}
        runs.append(run(2, train_in_order, by, is_late, folder, **address))
        assert [torch.load(folder / f"of-{rank}.pt") for rank in (0, 1)] == [0, 1]
    for early, late in zip(*runs, strict=True):
        assert late[:2] == early[:2]
        # Heartbeats depend on the clock.  The group that was formed first is left, and does not count.
        assert late[2] == pytest.approx(early[2], rel=0.05)


SCRIPT = """
import sys, torch
{head}
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("before", flush=True)
torch.save(1, "best.pt")
{join}
print("after", *undertow.runtime.process.settings().plan.split())
print("patched" if hasattr(torch.save, "__wrapped__") else "as it was")
"""
LAZY = """
def start():
    global undertow
    import undertow
    undertow.init(plan="factors")
start()
"""


@pytest.mark.parametrize(
    ("head", "join"),
    [
        ("import undertow, undertow.runtime.process", "undertow.init(plan='factors')"),
        ("from undertow import init", "init(plan='factors'); import undertow"),
        ("", LAZY),
    ],
    ids=["imported", "by name", "lazily"],
)
def test_the_scripts_own_init_counts(head: str, join: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(head=head, join=join))
    texts = run_script(2, tmp_path, str(tmp_path / "script.py"))
    assert texts == ["before\nafter factors\nas it was\n"] * 2
    assert torch.load(tmp_path / "best.pt") == 1


def train_first(rank: int, overlap: bool) -> tuple[list[float], list[float], float]:
    """Train as a single-process script, then join, after which each rank trains alone."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.full((1, 1), rank + 1.0)).sum().backward()
    optimizer.step()
    join("init_process_group")
    together = flat(model)
    optimizer.zero_grad()
    model(torch.full((1, 1), rank + 1.0)).sum().backward()
    gradient = model.weight.grad.item()
    optimizer.step()
    return together, flat(model), gradient


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_pending_steps_are_made_before_the_script_joins(overlap: str) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "UNDERTOW_OVERLAP": overlap}
    ranks = run(2, train_first, overlap == "on", **address)
    assert [rank[0] for rank in ranks] == [[-0.5], [-0.5]]
    assert [rank[1:] for rank in ranks] == [([-1.5], 1.0), ([-2.5], 2.0)]


def join_alone(rank: int, folder: Path) -> str:
    """Make a group of one process on every rank, as some libraries do."""
    model = make_model(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{folder}/{rank}")
        train(rank, model, optimizer)
    return said.getvalue()


def test_a_late_group_of_one_process_is_reported(tmp_path: Path) -> None:
    first, second = run(2, join_alone, tmp_path)
    assert first.count("process group of one process") == 1
    assert second == ""
