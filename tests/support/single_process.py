"""Runs functions as single-process scripts in workers."""

from __future__ import annotations

import gc
import multiprocessing
from typing import Any

import torch
from torch import nn

from tests.support.workers import run_workers
from undertow.script import single_process
from undertow.script.preparation import prepare


def as_a_script(rank: int, body: Any, *args: Any) -> Any:
    """Run `body` like a script that was started by `undertow run` and has not imported undertow."""
    multiprocessing.set_start_method("fork", force=True)  # as in a process that was not forked by a server
    single_process.imports_undertow = lambda: False
    prepare(None)
    return body(rank, *args)


def run(size: int, body: Any, *args: Any, **environment: str) -> list[Any]:
    return run_workers(size, as_a_script, body, *args, init=False, environment=environment)


def flat(module: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in module.parameters()]).tolist()


def look_backwards(rank: int) -> None:
    """Use a different order of objects on rank 1: the order depends on when garbage was collected."""
    look = gc.get_objects
    if rank == 1:
        gc.get_objects = lambda: look()[::-1]
