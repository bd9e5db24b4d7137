"""What does the work of DataLoader's methods and of `torch.autograd.backward` where data is shared.

In: the original, and the sharing.  Out: a function that calls the original and tells the sharing.
For single-process scripts they stand in torch's own classes (`script/patches.py`), else in subclasses of them
(`distribution.py`).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.utils.data import BatchSampler

from undertow.torch.data.loaders import (
    Epoch,
    StreamIterator,
    check_shareable,
    is_shared,
    is_stream,
    share_indices,
    stride_stream,
)
from undertow.torch.data.randomness import follow
from undertow.torch.data.sharing import Sharing
from undertow.torch.data.weighing import Weigher
from undertow.torch.hooks import never_compiled
from undertow.torch.reaching import NO_BACKWARD

Original = Callable[..., Any]


def choose_indices(original: property, sharing: Sharing) -> property:
    return property(lambda loader: share_indices(sharing, loader, original.__get__(loader)))


def iterate(original: Original, sharing: Sharing) -> Original:
    @functools.wraps(original)
    def make_iterator(loader: Any) -> Any:
        if not is_stream(loader) or not sharing.shares() or not is_shared(sharing, loader):
            return original(loader)
        check_shareable(sharing, loader)
        state = sharing.start_epoch()
        dataset, batch = stride_stream(sharing, loader, state)
        # For as long as the iterator looks: a loader refuses to be changed.
        before = {name: vars(loader)[name] for name in ("dataset", "batch_sampler")}
        vars(loader)["dataset"] = dataset
        if batch is not None:
            vars(loader)["batch_sampler"] = BatchSampler(loader.sampler, batch, loader.drop_last)
        stream = follow(state, torch_only=True)
        try:
            with nullcontext() if stream is None else stream.running():  # its workers get the same seed on all ranks
                iterator = original(loader)
        finally:
            vars(loader).update(before)
        iterator._sampler_iter = StreamIterator(sharing, iterator._sampler_iter)
        return iterator

    return make_iterator


def begin_again(original: Original, sharing: Sharing) -> Original:
    @functools.wraps(original)
    def reset(iterator: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        is_strided = isinstance(iterator._sampler_iter, StreamIterator) and iterator._sampler_iter.is_of(sharing)
        iterator._index_sampler = loader._index_sampler
        original(iterator, loader, *arguments, **options)
        if is_stream(loader) and sharing.shares() and is_strided is not is_shared(sharing, loader):
            sharing.say(
                "a DataLoader over a stream whose workers stay (persistent_workers) goes on as it has begun, with this "
                "rank's share or with all of the stream: make one DataLoader for training and one for evaluation"
            )
        if is_strided:
            sharing.start_epoch()
            iterator._sampler_iter = StreamIterator(sharing, iterator._sampler_iter)

    return reset


def count_batches(original: Original, sharing: Sharing) -> Original:
    @functools.wraps(original)
    def count(loader: Any) -> int:
        whole: int = original(loader)
        if not is_shared(sharing, loader):
            return whole
        sharing.count_whole()
        if not is_stream(loader) or not sharing.shares():
            return whole  # the shares' own, where it is shared
        samples, size = len(loader.dataset), sharing.size
        batch = (loader.batch_size or 1) // (size if sharing.is_split else 1)
        return samples // size // batch if loader.drop_last else -(-(samples // size) // batch)

    return count


def hand_out(original: Original, sharing: Sharing) -> Original:
    @functools.wraps(original)
    def take_next(iterator: Any) -> Any:
        shares = iterator._sampler_iter
        if not isinstance(shares, Epoch) or not shares.is_of(sharing):
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


# What each function of ours stands in the place of.  Not an attribute: `functools.wraps` would copy it to others'.
_originals: weakref.WeakKeyDictionary[Original, Original] = weakref.WeakKeyDictionary()


def run_backward(original: Original, sharing: Sharing) -> Original:
    weigher = Weigher(sharing)

    @functools.wraps(original)
    @never_compiled
    def backward(tensors: Any, grad_tensors: Any = None, *arguments: Any, **options: Any) -> None:
        if torch._C._current_graph_task_id() != NO_BACKWARD:  # part of one that is weighed already: a checkpoint's
            original(tensors, grad_tensors, *arguments, **options)
            return
        tensors = (tensors,) if isinstance(tensors, (torch.Tensor, GradientEdge)) else tuple(tensors)
        sharing.start_backward(tensors)
        if sharing.weight != 1.0:
            grad_tensors = _weigh(tensors, grad_tensors, sharing.weight)
        with weigher.weighing(tensors):
            original(tensors, grad_tensors, *arguments, **options)

    _originals[backward] = original
    return backward


def find_backward() -> Original:
    """The one below what stands in its place for a single-process script."""
    return _originals.get(torch.autograd.backward, torch.autograd.backward)


def _weigh(tensors: Sequence[Any], gradients: Any, weight: float) -> list[Any]:
    """What is handed to backward, so that all gradients come out as many times as large."""
    given = (gradients,) if isinstance(gradients, torch.Tensor) else gradients or (None,) * len(tensors)
    return [_weigh_one(tensor, gradient, weight) for tensor, gradient in zip(tensors, given, strict=True)]


def _weigh_one(tensor: Any, gradient: torch.Tensor | None, weight: float) -> Any:
    if gradient is not None:
        return gradient * weight
    # Of anything else torch wants to be given one, and says so.
    return torch.full_like(tensor, weight) if isinstance(tensor, torch.Tensor) and tensor.numel() == 1 else None
