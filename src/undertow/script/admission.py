"""Refuses a script that another launcher has started several times, if each process would train alone.

In: the script's file, the environment; the state of the process when it first steps an optimizer.
Out: `ConfigError`, or nothing.
Imports little: every process that imports torch may come here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from undertow.errors import ConfigError
from undertow.launch.foreign import refuse_processes
from undertow.script.awareness import knows_of_ranks, speaks_of_ranks
from undertow.script.imports import when_imported


def check_launcher(script: str | None) -> Callable[[], None]:
    """Raise `ConfigError` if each process would train the script alone; returns what ends the check.

    A script that speaks of ranks may read them from that launcher's variables, and join the others by itself: it is
    checked when it first steps an optimizer.  A launcher such as torchrun, which imports torch as well, never does.
    """
    name = os.path.basename(script or sys.argv[0]) or "train.py"
    try:
        refuse_processes(os.environ, script=name)
    except ConfigError as error:
        if script is not None and not speaks_of_ranks(script):
            raise
        return _StepCheck(error).start()
    return lambda: None


class _StepCheck:
    """Refuses the first step of an optimizer in a process that has not joined any others."""

    def __init__(self, error: ConfigError) -> None:
        self._error = error
        self._handle: Any = None
        self._is_over = False
        self._stop_waiting: Callable[[], None] = lambda: None

    def start(self) -> Callable[[], None]:
        self._stop_waiting = when_imported("torch", self._watch)
        return self.stop

    def stop(self) -> None:
        self._stop_waiting()
        if self._handle is not None:
            self._handle.remove()

    def _watch(self) -> None:
        if hasattr(sys.modules["torch"], "_C"):  # else a module of the script's own by this name
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            self._handle = register_optimizer_step_pre_hook(self._check)

    def _check(self, *_: object) -> None:
        # The hook stays until `stop`: torch goes through all of them now, and fails if one is removed.
        is_first, self._is_over = not self._is_over, True
        if is_first and not knows_of_ranks() and "mpi4py.MPI" not in sys.modules:
            raise self._error
