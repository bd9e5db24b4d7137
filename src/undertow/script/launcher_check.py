"""Refuses a script that another launcher has started in several processes, if each process would train alone.

In: the script's file and the environment; the state of the process when it first steps an optimizer.
Out: `ConfigError`, or nothing.
Imports little: with UNDERTOW_AUTOLOAD, every process that imports torch runs this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from undertow.errors import ConfigError
from undertow.runtime.foreign import refuse_processes
from undertow.script.awareness import has_joined, mentions_ranks
from undertow.script.import_hook import when_imported


def check_launcher(script: str | None) -> Callable[[], None]:
    """Raise `ConfigError` if each process would train the script alone; return a function that ends the check.

    A script that mentions ranks may read them from that launcher's variables and join the other processes itself, so it
    is checked at its first optimizer step.  A launcher that imports torch, such as torchrun, never steps an optimizer.
    """
    name = os.path.basename(script or sys.argv[0]) or "train.py"
    try:
        refuse_processes(os.environ, script=name)
    except ConfigError as error:
        if script is not None and not mentions_ranks(script):
            raise
        return _check_first_step(error)
    return lambda: None


def _check_first_step(error: ConfigError) -> Callable[[], None]:
    """Raise this error at the first optimizer step if the process has not joined others; return a function to stop."""
    handles: list[Any] = []
    errors = [error]

    def check(*_: object) -> None:
        # The hook stays until the end: torch is iterating over all hooks, and fails if one is removed.
        first = errors.pop() if errors else None
        if first is not None and not has_joined() and "mpi4py.MPI" not in sys.modules:
            raise first

    def watch() -> None:
        if hasattr(sys.modules["torch"], "_C"):  # else the script has its own module named torch
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            handles.append(register_optimizer_step_pre_hook(check))

    stop_waiting = when_imported("torch", watch)

    def end() -> None:
        stop_waiting()
        for handle in handles:
            handle.remove()

    return end
