"""Applies the patches that the settings require, and undoes them."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from undertow.errors import ConfigError
from undertow.script.import_hook import when_imported
from undertow.script.patches import DDP_PATCHES, LIBRARY_PATCHES, SINGLE_PROCESS_PATCHES, AppliedPatches, Patch
from undertow.script.single_process import SingleProcessScript
from undertow.settings import PlainScripts, Settings
from undertow.torch.gates.stepping import defer_steps, find_coupling
from undertow.torch.slots.device import choose_accelerator

log = logging.getLogger("undertow")


def patch_torch(
    settings: Settings,
    *,
    looks_single_process: bool,
    restart: Callable[[], None],
    on_begin: Callable[[], None],
    on_end: Callable[[], None],
    on_join: Callable[[], None],
) -> Callable[[], None]:
    """Patch torch and libraries for a script; return a function that undoes all of it.

    `on_begin`, `on_end` and `on_join` are those of `SingleProcessScript`; `restart` runs the script from its start.
    """
    patches = AppliedPatches()
    stop_waiting: list[Callable[[], None]] = []

    def leave_alone() -> None:
        for stop in stop_waiting:
            stop()
        patches.undo((*SINGLE_PROCESS_PATCHES, *LIBRARY_PATCHES))
        on_end()

    def patch_library(patch: Patch) -> None:
        try:
            patches.apply((patch,), script)
        except ConfigError:
            script.announce(
                f"{patch.target} is missing (checked with {patch.checked_with}): every rank writes its files"
            )

    script = SingleProcessScript(
        settings,
        looks_single_process=looks_single_process,
        on_begin=on_begin,
        on_end=leave_alone,
        on_join=on_join,
    )
    script.restart = restart
    if settings.ddp:
        patches.apply(DDP_PATCHES, script)
    # A single worker has nothing to synchronise, but profiles are measured with one.
    if settings.plain is not PlainScripts.OFF and (settings.world_size > 1 or settings.profile):
        patches.apply(SINGLE_PROCESS_PATCHES, script)
        for patch in LIBRARY_PATCHES:
            stop_waiting.append(when_imported(patch.module, functools.partial(patch_library, patch)))
    if looks_single_process:
        choose_accelerator(settings.local_rank)
    stop_deferring = _defer_all_steps(verbose=settings.rank == 0) if settings.overlap else None

    def undo() -> None:
        if stop_deferring is not None:
            stop_deferring()
        script.end()
        script.stop_watching()
        patches.undo()

    return undo


def _defer_all_steps(*, verbose: bool) -> Callable[[], None]:
    """Defer the steps of each optimizer after its first one; return a function that stops this for further optimizers.

    An optimizer is fully configured only when it makes its first step.
    """
    seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def before_step(optimizer: Optimizer, arguments: Any, options: Any) -> None:
        if optimizer not in seen:
            seen.add(optimizer)
            _defer(optimizer, verbose=verbose)

    return register_optimizer_step_pre_hook(before_step).remove


def _defer(optimizer: Optimizer, *, verbose: bool) -> None:
    """Defer the later steps of this optimizer; if that is impossible, log that they wait for all gradients."""
    reason = find_coupling(optimizer)
    if reason is None:
        try:
            defer_steps(optimizer, verbose=verbose)
        except ConfigError as error:
            reason = str(error)
    if reason is not None and verbose:
        log.warning("optimizer.step() waits for all gradients: %s", reason)
