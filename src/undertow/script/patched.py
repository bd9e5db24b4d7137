"""Puts the patches in force that the settings ask for, and takes them back."""

from __future__ import annotations

import functools
from collections.abc import Callable

from undertow.errors import ConfigError
from undertow.script.deferral import defer_all
from undertow.script.imports import when_imported
from undertow.script.patches import DOOR, LIBRARIES, PLAIN, Patch, Patches
from undertow.script.plain import Plain
from undertow.settings import PlainScripts, Settings
from undertow.torch.device import choose_accelerator


def patch_torch(
    settings: Settings,
    *,
    looks_plain: bool,
    start_again: Callable[[], None],
    on_begin: Callable[[], None],
    on_end: Callable[[], None],
    on_join: Callable[[], None],
) -> Callable[[], None]:
    """Returns what undoes all of it.

    `on_begin` is called when it is known that the script knows nothing of ranks, `on_end` when it does; until then it
    may look so.  `on_join` is called before `on_end` if it has begun by then.  `start_again` runs the script anew.
    """
    patches = Patches()
    stop_waiting: list[Callable[[], None]] = []

    def leave_alone() -> None:
        for stop in stop_waiting:
            stop()
        patches.undo((*PLAIN, *LIBRARIES))
        on_end()

    def patch_library(patch: Patch) -> None:
        try:
            patches.apply((patch,), plain)
        except ConfigError:
            plain.say(f"{patch.place} is not there, checked with {patch.checked_with}: every rank writes its files")

    plain = Plain(settings, looks_plain=looks_plain, on_begin=on_begin, on_end=leave_alone, on_join=on_join)
    plain.start_again = start_again
    if settings.ddp:
        patches.apply(DOOR, plain)
    # Alone there is nothing to keep in step, but what a plan needs of a script is measured alone.
    if settings.plain is not PlainScripts.OFF and (settings.world_size > 1 or settings.profile):
        patches.apply(PLAIN, plain)
        for patch in LIBRARIES:
            stop_waiting.append(when_imported(patch.module, functools.partial(patch_library, patch)))
    if looks_plain:
        choose_accelerator(settings.local_rank)
    stop_deferring = defer_all(speaks=settings.rank == 0) if settings.overlap else None

    def undo() -> None:
        if stop_deferring is not None:
            stop_deferring()
        plain.end()
        plain.stop_watching()
        patches.undo()

    return undo
