"""Prepares a process for a script, before it runs.

In: the settings, and the script's file if it has one.  Out: torch is patched as soon as the script imports it; the
output of all ranks but 0 is held while the script may be a single-process script; `horovod.torch` can be imported.
`undo` restores everything.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import Any

from undertow import hidden, horovod
from undertow.horovod import aliases
from undertow.horovod.worker_numbers import guess_numbers
from undertow.script.awareness import mentions_horovod, mentions_ranks
from undertow.script.held_output import HeldOutput
from undertow.script.import_hook import when_imported
from undertow.script.launcher_check import check_launcher
from undertow.script.restart import remember_start
from undertow.settings import Horovod, PlainScripts, Settings, read_settings


class PreparedProcess:
    """The changes to this process for one script."""

    def __init__(self, settings: Settings, script: str | None, end_check: Callable[[], None]) -> None:
        self._settings = settings
        self._restart = remember_start()
        self._end_check = end_check
        self._is_undone = False
        self._undo_torch: Callable[[], None] = lambda: None
        prefers_ours = settings.horovod is Horovod.AUTO and not aliases.is_installed()
        self._has_horovod = settings.horovod is Horovod.ON or prefers_ours
        self._variables: dict[str, str] = {}  # Horovod's environment variables, set here
        if self._has_horovod:
            horovod.install()
            # Only if needed: libraries choose Horovod when they see HOROVOD_RANK.
            if settings.horovod is Horovod.ON or mentions_horovod(script):
                self._variables = guess_numbers(settings).to_environment()
                os.environ.update(self._variables)
        else:
            horovod.uninstall()  # PYTHONPATH may have brought it from a parent process
        self.output = HeldOutput()
        # Under another launcher there is no token; exactly the ranks of this job share the rendezvous's address.
        secret = settings.token or f"{settings.master_addr}:{settings.master_port}"
        self._seed = SharedSeed(secret)
        self._looks_single_process = _looks_single_process(settings, script)
        if settings.plain is PlainScripts.ON:
            hidden.hide()
        if self._looks_single_process:
            self._seed.apply()
            if settings.rank > 0:
                self.output.start()

    def apply(self) -> None:
        """Patch torch, which has been imported; do nothing if it is a module of the script with the same name."""
        if self._is_undone or not hasattr(sys.modules["torch"], "_C"):
            return
        from undertow.script.patching import patch_torch

        self._undo_torch = patch_torch(
            self._settings,
            looks_single_process=self._looks_single_process,
            restart=self._restart,
            on_begin=self._begin,
            on_end=self._leave_alone,
            on_join=self.output.recall,
        )

    def _begin(self) -> None:
        """Drop the output of all ranks but 0: this is a single-process script."""
        if self._settings.rank > 0:
            self.output.start()
            self.output.drop()

    def _leave_alone(self) -> None:
        """Restore random numbers and output: the script knows of ranks."""
        self._seed.undo()
        self.output.stop()

    def forget(self) -> None:
        """Undo the patches in a forked child, which belongs to the script.

        Its output is shown or dropped as before, its random numbers stay, and Horovod stays importable.
        """
        self.output, self._seed = HeldOutput(), SharedSeed("")
        self._has_horovod, self._variables = False, {}
        self.undo()

    def undo(self) -> None:
        self._is_undone = True
        self._end_check()
        if self._has_horovod:
            horovod.uninstall()
        for variable in self._variables:
            os.environ.pop(variable, None)
        self._undo_torch()
        self._leave_alone()


def _looks_single_process(settings: Settings, script: str | None) -> bool:
    """Return whether the script may be a single-process script, as far as its text shows."""
    is_possible = settings.plain is not PlainScripts.OFF and settings.world_size > 1
    return is_possible and (settings.plain is PlainScripts.ON or not mentions_ranks(script))


_current: PreparedProcess | None = None


def prepare(script: str | None) -> None:
    """Prepare this process for a script, once.

    Raises `ConfigError` for impossible settings, and under a launcher whose rank variables undertow does not read.
    """
    global _current
    if _current is None:
        end_check = check_launcher(script)
        _current = PreparedProcess(read_settings(), script, end_check)
        when_imported("torch", _current.apply)
        os.register_at_fork(after_in_child=_forget)
    os.environ.pop("UNDERTOW_AUTOLOAD", None)  # child processes of the script run as without undertow


def undo() -> None:
    """Restore the process as it was before `prepare`."""
    global _current
    if _current is not None:
        hidden.show()
        _current.undo()
        _current = None


def _forget() -> None:
    global _current
    if _current is not None:
        _current.forget()
        _current = None


def show_output() -> None:
    """Show the held and all later output of this rank, because the script has failed here."""
    if _current is not None:
        _current.output.show_all()


class SharedSeed:
    """A seed for Python's and numpy's generators, from a text that all ranks share; torch's default seed is fixed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._undo: list[Callable[[], None]] = []

    def apply(self) -> None:
        """Seed Python's generator now and numpy's when it is imported."""
        before = random.getstate()
        random.seed(self._text)
        seeded = random.getstate()
        self._undo.append(lambda: random.setstate(before) if random.getstate() == seeded else None)
        when_imported("numpy", self._seed_numpy)

    def undo(self) -> None:
        """Restore the generators, except those that the script has drawn from or seeded since."""
        self._text = ""
        for undo in self._undo:
            undo()
        self._undo = []

    def _seed_numpy(self) -> None:
        numbers: Any = getattr(sys.modules["numpy"], "random", None)
        if not self._text or not hasattr(numbers, "get_state"):  # numpy is a module of the script
            return
        before = numbers.get_state()
        numbers.seed(random.Random(self._text).getrandbits(32))
        seeded = _describe_state(numbers.get_state())
        self._undo.append(lambda: numbers.set_state(before) if _describe_state(numbers.get_state()) == seeded else None)


def _describe_state(state: Any) -> tuple[object, ...]:
    return tuple(field.tobytes() if hasattr(field, "tobytes") else field for field in state)
