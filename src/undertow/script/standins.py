"""What stands in the place of functions of torch, os, shutil, pathlib, Lightning, ignite and tensorboard.

In: the original, and `Plain`.  Out: a function that calls the original and tells `Plain`.  See the table in `patches`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from undertow.coordinator.start_marks import Mark, waiting
from undertow.hidden import is_hidden
from undertow.script.plain import Plain
from undertow.script.restart import find_caller, find_main, needs_nccl, should_start_again
from undertow.torch.ddp import DistributedDataParallel
from undertow.torch.reaching import NO_BACKWARD

Original = Callable[..., Any]


def wrap_model(original: Any, plain: Plain) -> Any:
    return Overlapping if plain.settings.overlap else DistributedDataParallel


class Overlapping(DistributedDataParallel):
    """As `parallelize` makes it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.overlap()


_MAKING = "_undertow_making"


def make_optimizer(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def make(optimizer: Optimizer, *arguments: Any, **options: Any) -> None:
        vars(optimizer)[_MAKING] = True
        try:
            original(optimizer, *arguments, **options)
        finally:
            vars(optimizer).pop(_MAKING, None)
        plain.adopt(optimizer, optimizer.param_groups)

    return make


def add_parameters(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def add(optimizer: Optimizer, param_group: dict[str, Any]) -> None:
        original(optimizer, param_group)
        if _MAKING not in vars(optimizer):
            plain.adopt(optimizer, optimizer.param_groups[-1:])

    return add


def join_others(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        settings, is_first = plain.settings, plain.group is None
        lacks_nccl = needs_nccl(arguments, options, has_device=torch.cuda.is_available())
        if lacks_nccl and is_first and should_start_again(settings, [find_main(), find_caller()]):
            plain.say(
                f"{sys.argv[0]} asks for NCCL, which this host lacks: it starts again as a single-process script "
                "(--plain off shows it RANK)"
            )
            plain.start_again()
        plain.leave("init_process_group")
        with waiting(settings.start_marks, settings.local_rank, Mark.WAITS):
            try:
                return original(*arguments, **options)
            except Exception as error:
                if is_hidden():
                    error.add_note(_WITHOUT_RANKS)
                elif lacks_nccl:
                    error.add_note(_WITHOUT_NCCL)
                raise

    return init_process_group


_WITHOUT_RANKS = (
    "undertow: RANK and the other variables of the launcher are hidden from this script, as from a single-process one; "
    "it sees them with --plain off"
)
_WITHOUT_NCCL = (
    "undertow: this host has no NCCL. If the script can train in one process, --plain on (on all hosts) hides RANK "
    "from it and trains it on all workers; else choose the backend gloo"
)


def compute_gradients(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() == NO_BACKWARD:
            inputs = tuple(inputs) if isinstance(inputs, Iterator) else inputs  # as model.parameters() is
            plain.start_gradients(inputs if isinstance(inputs, (tuple, list)) else (inputs,))
        return original(outputs, inputs, *arguments, **options)

    return grad


def step_on_plateau(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def step(scheduler: Any, metrics: Any, *arguments: Any, **options: Any) -> Any:
        if plain.shares():
            metrics = plain.choose(float(metrics))
        return original(scheduler, metrics, *arguments, **options)

    return step


def save(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def write(obj: object, f: Any, *arguments: Any, **options: Any) -> None:
        if plain.writes:
            original(obj, f, *arguments, **options)
        else:
            plain.files.save(original, obj, f, *arguments, **options)

    return write


def save_atomically(original: Original, plain: Plain) -> Original:
    """Of a function that takes what is saved and a path, as torch.save, and writes in a way of its own."""

    @functools.wraps(original)
    def write(checkpoint: Any, filepath: Any) -> None:
        if plain.writes:
            original(checkpoint, filepath)
        else:
            plain.files.save(torch.save, checkpoint, filepath)

    return write


def save_by_handler(original: Original, plain: Plain) -> Original:
    """Of a method of ignite's, which writes to a file of its own first."""

    @functools.wraps(original)
    def write(saver: Any, checkpoint: Any, path: Any, func: Any) -> None:
        if plain.writes:
            original(saver, checkpoint, path, func)
        else:
            plain.files.save(torch.save, checkpoint, path, **saver.kwargs)

    return write


def write_events(original: Original, plain: Plain) -> Original:
    @functools.wraps(original, updated=())
    def open_file(logdir: Any, *arguments: Any, **options: Any) -> Any:
        def make() -> Any:
            return original(logdir, *arguments, **options)

        return make() if plain.settings.rank == 0 else plain.events.open(make, logdir)

    return open_file


def rename(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def move(src: Any, dst: Any, **options: Any) -> None:
        plain.files.rename(original, src, dst, **options)

    return move


def copy(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def duplicate(src: Any, dst: Any, **options: Any) -> Any:
        return plain.files.copy(original, src, dst, **options)

    return duplicate


def exists(original: Original, plain: Plain) -> Original:
    return is_folder(is_file(original, plain), plain)


def is_file(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def look(path: Any, **options: Any) -> bool:
        return original(path, **options) or plain.files.has(path)

    return look


def is_folder(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def look(path: Any, **options: Any) -> bool:
        is_there: bool = original(path, **options)
        if not is_there and plain.group is not None:
            plain.folders.note_absent(path)
        return is_there

    return look


def make_folder(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def make(path: Any, *arguments: Any, **options: Any) -> None:
        if plain.group is None:
            original(path, *arguments, **options)
        else:
            plain.folders.make(original, path, *arguments, **options)

    return make


def measure(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def count_bytes(filename: Any) -> int:
        size = plain.files.measure(filename)
        return original(filename) if size is None else size

    return count_bytes


def remove(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def delete(path: Any, **options: Any) -> None:
        plain.files.remove(original, path, **options)

    return delete


def load(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def read(f: Any, *arguments: Any, **options: Any) -> Any:
        found = plain.files.find(f)
        if found is not f:
            options.pop("mmap", None)  # there is no file to map
        return original(found, *arguments, **options)

    return read


def load_checkpoint(original: Original, plain: Plain) -> Original:
    """Of a method of Lightning's, which looks for the file before it reads."""

    @functools.wraps(original)
    def read(reader: Any, path: Any, *arguments: Any, **options: Any) -> Any:
        found = plain.files.find(path)
        if found is path:
            return original(reader, path, *arguments, **options)
        if not arguments:
            options.setdefault("map_location", lambda storage, location: storage)  # as the original has it
        return original.__globals__["pl_load"](found, *arguments, **options)

    return read
