"""Puts the patches in force that the settings ask for, and takes them back."""

from __future__ import annotations

from collections.abc import Callable

from undertow.script.deferral import defer_all
from undertow.script.patches import DOOR, PLAIN, Patches
from undertow.script.plain import Plain
from undertow.settings import Settings
from undertow.torch.device import choose_accelerator


def patch_torch(
    settings: Settings,
    *,
    looks_plain: bool,
    on_begin: Callable[[], None],
    on_end: Callable[[], None],
    on_join: Callable[[], None],
) -> Callable[[], None]:
    """Returns what undoes all of it.

    `on_begin` is called when it is known that the script knows nothing of ranks, `on_end` when it does; until then it
    may look so.  `on_join` is called before `on_end` if it has begun by then.
    """
    patches = Patches()

    def leave_alone() -> None:
        patches.undo(PLAIN)
        on_end()

    plain = Plain(settings, looks_plain=looks_plain, on_begin=on_begin, on_end=leave_alone, on_join=on_join)
    if settings.ddp:
        patches.apply(DOOR, plain)
    # Alone there is nothing to keep in step, but what a plan needs of a script is measured alone.
    if settings.plain and (settings.world_size > 1 or settings.profile):
        patches.apply(PLAIN, plain)
    if looks_plain:
        choose_accelerator(settings.local_rank)
    stop_deferring = defer_all(speaks=settings.rank == 0) if settings.overlap else None

    def undo() -> None:
        if stop_deferring is not None:
            stop_deferring()
        plain.end()
        patches.undo()

    return undo
