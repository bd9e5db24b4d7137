"""Replacements for functions of torch, os, shutil, pathlib, Lightning, ignite and tensorboard.

In: the original function and the `SingleProcessScript`.  Out: a function that passes the call to that object, which
calls the original or leaves that to rank 0.  See the table in `patches`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from undertow.hidden import is_hidden
from undertow.runtime.launcher_notes import Mark, waiting
from undertow.script.restart import find_caller, find_main, needs_nccl, should_restart
from undertow.script.single_process import SingleProcessScript
from undertow.torch.data.replacements import Original, replacement
from undertow.torch.ddp.wrapper import DistributedDataParallel
from undertow.torch.passes.backward import NO_BACKWARD


def wrap_model(original: Any, script: SingleProcessScript) -> Any:
    return Overlapping if script.settings.overlap else DistributedDataParallel


class Overlapping(DistributedDataParallel):
    """A wrapper that overlaps the next forward pass with gradients in flight, as `parallelize` does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.overlap()


_MAKING = "_undertow_making"


@replacement
def make_optimizer(
    original: Original, script: SingleProcessScript, optimizer: Optimizer, *arguments: Any, **options: Any
) -> None:
    vars(optimizer)[_MAKING] = True
    try:
        original(optimizer, *arguments, **options)
    finally:
        vars(optimizer).pop(_MAKING, None)
    script.adopt(optimizer, optimizer.param_groups)


@replacement
def add_parameters(
    original: Original, script: SingleProcessScript, optimizer: Optimizer, param_group: dict[str, Any]
) -> None:
    original(optimizer, param_group)
    if _MAKING not in vars(optimizer):
        script.adopt(optimizer, optimizer.param_groups[-1:])


@replacement
def join_others(original: Original, script: SingleProcessScript, *arguments: Any, **options: Any) -> Any:
    settings, is_first = script.settings, script.group is None
    lacks_nccl = needs_nccl(arguments, options, has_device=torch.cuda.is_available())
    if lacks_nccl and is_first and should_restart(settings, [find_main(), find_caller()]):
        script.announce(
            f"{sys.argv[0]} requests NCCL, which this host lacks: restarting it as a single-process script "
            "(--plain off keeps RANK visible)"
        )
        script.restart()
    script.leave("init_process_group")
    with waiting(settings.start_marks, settings.local_rank, Mark.WAITS):
        try:
            return original(*arguments, **options)
        except Exception as error:
            if is_hidden():
                error.add_note(_WITHOUT_RANKS)
            elif lacks_nccl:
                error.add_note(_WITHOUT_NCCL)
            raise


_WITHOUT_RANKS = (
    "undertow: RANK and the launcher's other variables are hidden, because the script runs as a single-process script; "
    "--plain off keeps them visible"
)
_WITHOUT_NCCL = (
    "undertow: this host has no NCCL. If the script can train in one process, --plain on (on all hosts) hides RANK "
    "from it and trains it on all workers; else choose the backend gloo"
)


@replacement
def compute_gradients(
    original: Original, script: SingleProcessScript, outputs: Any, inputs: Any, *arguments: Any, **options: Any
) -> Any:
    if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() == NO_BACKWARD:
        inputs = tuple(inputs) if isinstance(inputs, Iterator) else inputs  # as model.parameters() is
        script.start_gradients(inputs if isinstance(inputs, (tuple, list)) else (inputs,))
    return original(outputs, inputs, *arguments, **options)


@replacement
def step_on_plateau(
    original: Original, script: SingleProcessScript, scheduler: Any, metrics: Any, *arguments: Any, **options: Any
) -> Any:
    if script.shares():
        metrics = script.choose(float(metrics))
    return original(scheduler, metrics, *arguments, **options)


@replacement
def save(original: Original, script: SingleProcessScript, obj: object, f: Any, *arguments: Any, **options: Any) -> None:
    if script.writes:
        original(obj, f, *arguments, **options)
    else:
        script.checkpoints.save(original, obj, f, *arguments, **options)


@replacement
def save_atomically(original: Original, script: SingleProcessScript, checkpoint: Any, filepath: Any) -> None:
    """Replace a function that takes an object and a path, like torch.save, but writes the file itself."""
    if script.writes:
        original(checkpoint, filepath)
    else:
        script.checkpoints.save(torch.save, checkpoint, filepath)


@replacement
def save_by_handler(
    original: Original, script: SingleProcessScript, saver: Any, checkpoint: Any, path: Any, func: Any
) -> None:
    """Replace ignite's method, which writes a checkpoint to a temporary file first."""
    if script.writes:
        original(saver, checkpoint, path, func)
    else:
        script.checkpoints.save(torch.save, checkpoint, path, **saver.kwargs)


@replacement
def write_events(original: Original, script: SingleProcessScript, logdir: Any, *arguments: Any, **options: Any) -> Any:
    def make() -> Any:
        return original(logdir, *arguments, **options)

    return make() if script.settings.rank == 0 else script.events.open(make, logdir)


@replacement
def rename(original: Original, script: SingleProcessScript, *arguments: Any, **options: Any) -> None:
    script.checkpoints.rename(original, *arguments, **options)


@replacement
def copy(original: Original, script: SingleProcessScript, *arguments: Any, **options: Any) -> Any:
    return script.checkpoints.copy(original, *arguments, **options)


@replacement
def remove(original: Original, script: SingleProcessScript, *arguments: Any, **options: Any) -> None:
    script.checkpoints.remove(original, *arguments, **options)


def exists(original: Original, script: SingleProcessScript) -> Original:
    return is_folder(is_file(original, script), script)


@replacement
def is_file(original: Original, script: SingleProcessScript, path: Any, **options: Any) -> bool:
    return original(path, **options) or script.checkpoints.has(path)


@replacement
def is_folder(original: Original, script: SingleProcessScript, path: Any, **options: Any) -> bool:
    is_there: bool = original(path, **options)
    if not is_there and script.group is not None:
        script.folders.note_absent(path)
    return is_there


@replacement
def make_folder(original: Original, script: SingleProcessScript, path: Any, *arguments: Any, **options: Any) -> None:
    if script.group is None:
        original(path, *arguments, **options)
    else:
        script.folders.make(original, path, *arguments, **options)


@replacement
def measure(original: Original, script: SingleProcessScript, filename: Any) -> int:
    size = script.checkpoints.measure(filename)
    return original(filename) if size is None else size


@replacement
def load(original: Original, script: SingleProcessScript, f: Any, *arguments: Any, **options: Any) -> Any:
    found = script.checkpoints.find(f)
    if found is not f:
        options.pop("mmap", None)  # there is no file to map
    return original(found, *arguments, **options)


@replacement
def load_checkpoint(
    original: Original, script: SingleProcessScript, reader: Any, path: Any, *arguments: Any, **options: Any
) -> Any:
    """Replace Lightning's method, which checks that the file exists before it reads it."""
    found = script.checkpoints.find(path)
    if found is path:
        return original(reader, path, *arguments, **options)
    if not arguments:
        options.setdefault("map_location", lambda storage, location: storage)  # the default of the original
    return original.__globals__["pl_load"](found, *arguments, **options)
