"""What stands in the place of torch's own: each calls the original and tells `Plain`.  See the table in `patches`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.optim import Optimizer
from torch.utils.data import BatchSampler

from undertow.coordinator.start_marks import Mark, waiting
from undertow.script.loaders import Epoch, StreamIterator, is_shared, is_stream, share_indices, stride_stream
from undertow.script.plain import Plain
from undertow.script.weighing import Weigher
from undertow.torch.ddp import DistributedDataParallel
from undertow.torch.hooks import never_compiled

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
        plain.leave("init_process_group")
        settings = plain.settings
        with waiting(settings.start_marks, settings.local_rank, Mark.WAITS):
            return original(*arguments, **options)

    return init_process_group


def choose_indices(original: property, plain: Plain) -> property:
    return property(lambda loader: share_indices(plain, loader, original.__get__(loader)))


def iterate(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def make_iterator(loader: Any) -> Any:
        if not is_stream(loader) or not plain.shares() or not is_shared(loader):
            return original(loader)
        dataset, batch = stride_stream(plain, loader)
        # For as long as the iterator looks: a loader refuses to be changed.
        before = {name: vars(loader)[name] for name in ("dataset", "batch_sampler")}
        vars(loader)["dataset"] = dataset
        if batch is not None:
            vars(loader)["batch_sampler"] = BatchSampler(loader.sampler, batch, loader.drop_last)
        try:
            iterator = original(loader)
        finally:
            vars(loader).update(before)
        iterator._sampler_iter = StreamIterator(plain, iterator._sampler_iter)
        return iterator

    return make_iterator


def begin_again(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def reset(iterator: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        is_strided = isinstance(iterator._sampler_iter, StreamIterator)
        iterator._index_sampler = loader._index_sampler
        original(iterator, loader, *arguments, **options)
        if is_strided:
            plain.start_epoch()
            iterator._sampler_iter = StreamIterator(plain, iterator._sampler_iter)

    return reset


def count_batches(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def count(loader: Any) -> int:
        whole: int = original(loader)
        if not is_shared(loader):
            return whole
        plain.count_whole()
        if not is_stream(loader) or not plain.shares():
            return whole  # the shares' own, where it is shared
        samples, size = len(loader.dataset), plain.settings.world_size
        batch = (loader.batch_size or 1) // (size if plain.is_split else 1)
        return samples // size // batch if loader.drop_last else -(-(samples // size) // batch)

    return count


def hand_out(original: Original, plain: Plain) -> Original:
    @functools.wraps(original)
    def take_next(iterator: Any) -> Any:
        shares = iterator._sampler_iter
        if not isinstance(shares, Epoch):
            return original(iterator)
        try:
            batch = original(iterator)
        except StopIteration as error:
            end = error
        else:
            shares.hand_out(batch)
            return batch
        shares.end()  # not above: what it raises has nothing to do with this end
        raise end

    return take_next


_NO_BACKWARD = -1


def run_backward(original: Original, plain: Plain) -> Original:
    weigher = Weigher(plain)

    @functools.wraps(original)
    @never_compiled
    def backward(tensors: Any, grad_tensors: Any = None, *arguments: Any, **options: Any) -> None:
        if torch._C._current_graph_task_id() != _NO_BACKWARD:  # part of one that is weighed already: a checkpoint's
            original(tensors, grad_tensors, *arguments, **options)
            return
        plain.start_backward()
        tensors = (tensors,) if isinstance(tensors, (torch.Tensor, GradientEdge)) else tuple(tensors)
        if plain.weight != 1.0:
            grad_tensors = _weigh(tensors, grad_tensors, plain.weight)
        with weigher.weighing(tensors):
            original(tensors, grad_tensors, *arguments, **options)

    return backward


def _weigh(tensors: Sequence[Any], gradients: Any, weight: float) -> list[Any]:
    """What is handed to backward, so that all gradients come out as many times as large."""
    given = (gradients,) if isinstance(gradients, torch.Tensor) else gradients or (None,) * len(tensors)
    return [_weigh_one(tensor, gradient, weight) for tensor, gradient in zip(tensors, given, strict=True)]


def _weigh_one(tensor: Any, gradient: torch.Tensor | None, weight: float) -> Any:
    if gradient is not None:
        return gradient * weight
    # Of anything else torch wants to be given one, and says so.
    return torch.full_like(tensor, weight) if isinstance(tensor, torch.Tensor) and tensor.numel() == 1 else None


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
        if plain.group is None or plain.settings.rank == 0:
            original(obj, f, *arguments, **options)
        else:
            plain.files.save(original, obj, f, *arguments, **options)

    return write


def save_atomically(original: Original, plain: Plain) -> Original:
    """Of a function that takes what is saved and a path, as torch.save, and writes in a way of its own."""

    @functools.wraps(original)
    def write(checkpoint: Any, filepath: Any) -> None:
        if plain.group is None or plain.settings.rank == 0:
            original(checkpoint, filepath)
        else:
            plain.files.save(torch.save, checkpoint, filepath)

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
