"""Prepares a process for a script, before it runs.

In: the settings, the script's file if it has one.  Out: torch is patched as soon as the script imports it; if the
script may know nothing of ranks, the others are quiet until that is known; `horovod.torch` can be imported.
`undo` leaves everything as it was found.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from undertow import hidden, horovod
from undertow.horovod import aliases
from undertow.horovod.place import guess_place
from undertow.script.admission import check_launcher
from undertow.script.awareness import speaks_of_horovod, speaks_of_ranks
from undertow.script.imports import when_imported
from undertow.script.restart import Origin
from undertow.script.seeds import Seeds
from undertow.script.voice import Voice
from undertow.settings import Horovod, PlainScripts, Settings, read_settings


class Preparation:
    def __init__(self, settings: Settings, script: str | None, end_check: Callable[[], None] = lambda: None) -> None:
        self._settings = settings
        self._origin = Origin.read()
        self._end_check = end_check
        self._is_undone = False
        self._undo_torch: Callable[[], None] = lambda: None
        self._has_horovod = _provides_horovod(settings.horovod)
        self._place: dict[str, str] = {}
        if self._has_horovod:
            horovod.install()
            # Not for every script: libraries choose Horovod where they see HOROVOD_RANK.
            if settings.horovod is Horovod.ON or speaks_of_horovod(script):
                self._place = guess_place(settings).to_environment()
                os.environ.update(self._place)
        else:
            horovod.uninstall()  # what PYTHONPATH may have brought from a process that has ours
        self.voice = Voice()
        # Without a launcher of ours the port of the meeting is what all ranks of this job, and no others, share.
        word = settings.token or f"{settings.master_addr}:{settings.master_port}"
        self._seeds = Seeds(word)
        self._looks_plain = _looks_plain(settings, script)
        if settings.plain is PlainScripts.ON:
            hidden.hide()
        if self._looks_plain:
            self._seeds.plant()
            if settings.rank > 0:
                self.voice.start()

    def apply(self) -> None:
        """Torch is there, or a module of the script's own by this name."""
        if self._is_undone or not hasattr(sys.modules["torch"], "_C"):
            return
        from undertow.script.patched import patch_torch

        self._undo_torch = patch_torch(
            self._settings,
            looks_plain=self._looks_plain,
            start_again=self._origin.start_again,
            on_begin=self._begin,
            on_end=self._leave_alone,
            on_join=self.voice.recall,
        )

    def _begin(self) -> None:
        """The script knows nothing of ranks."""
        if self._settings.rank > 0:
            self.voice.start()
            self.voice.drop()

    def _leave_alone(self) -> None:
        """It does."""
        self._seeds.take_back()
        self.voice.stop()

    def forget(self) -> None:
        """In a forked child, which is the script's own business; it goes on as loud or quiet as it was.

        What it has of Horovod it keeps.
        """
        self.voice, self._seeds = Voice(), Seeds("")
        self._has_horovod, self._place = False, {}
        self.undo()

    def undo(self) -> None:
        self._is_undone = True
        self._end_check()
        if self._has_horovod:
            horovod.uninstall()
        for variable in self._place:
            os.environ.pop(variable, None)
        self._undo_torch()
        self._leave_alone()


def _looks_plain(settings: Settings, script: str | None) -> bool:
    """Whether nothing yet says that the script knows of ranks."""
    is_tried = settings.plain is not PlainScripts.OFF and settings.world_size > 1
    return is_tried and (settings.plain is PlainScripts.ON or not speaks_of_ranks(script))


def _provides_horovod(choice: Horovod) -> bool:
    return choice is Horovod.ON or (choice is Horovod.AUTO and not aliases.is_installed())


_current: Preparation | None = None


def prepare(script: str | None) -> None:
    """Once per process.  Raises `ConfigError` for settings that are not possible, and under launchers
    whose ranks are not read."""
    global _current
    if _current is None:
        end_check = check_launcher(script)
        _current = Preparation(read_settings(), script, end_check)
        when_imported("torch", _current.apply)
        os.register_at_fork(after_in_child=_forget)
    os.environ.pop("UNDERTOW_AUTOLOAD", None)  # processes that the script starts are its own business


def undo() -> None:
    """As if nothing had been prepared."""
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


def speak_up() -> None:
    """The script fails: whatever rank this is, it is heard."""
    if _current is not None:
        _current.voice.speak_up()
