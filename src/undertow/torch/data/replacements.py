"""Replacements for methods of DataLoader and for `torch.autograd.backward` while data is shared.

In: the original, and the `DataSharing`.  Out: a function that calls the original and updates the `DataSharing`.
For single-process scripts they are patched into torch's classes (`script/patches.py`); otherwise they are methods of
subclasses (`distribution.py`).
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

from undertow.torch.data.data_sharing import DataSharing
from undertow.torch.data.loaders import (
    SharedEpoch,
    StreamIterator,
    check_shareable,
    is_shared,
    is_stream,
    share_indices,
    stride_stream,
)
from undertow.torch.data.randomness import follow
from undertow.torch.data.weighing import LossWeigher
from undertow.torch.modules.hooks import never_compiled
from undertow.torch.passes.backward import NO_BACKWARD

Original = Callable[..., Any]


def replacement(call: Callable[..., Any]) -> Callable[[Any, Any], Original]:
    """Turn `call(original, state, *arguments)` into a function that creates a replacement of `original` for `state`."""

    def make(original: Any, state: Any) -> Original:
        @functools.wraps(original, updated=() if isinstance(original, type) else functools.WRAPPER_UPDATES)
        def replaced(*arguments: Any, **options: Any) -> Any:
            return call(original, state, *arguments, **options)

        return replaced

    return make


def choose_indices(original: property, sharing: DataSharing) -> property:
    return property(lambda loader: share_indices(sharing, loader, original.__get__(loader)))


@replacement
def iterate(original: Original, sharing: DataSharing, loader: Any) -> Any:
    if not is_stream(loader) or not sharing.shares() or not is_shared(sharing, loader):
        return original(loader)
    check_shareable(sharing, loader)
    state = sharing.start_epoch()
    dataset, batch = stride_stream(sharing, loader, state)
    # Changed only while the iterator is created, and through `vars`, because a loader refuses assignments.
    before = {name: vars(loader)[name] for name in ("dataset", "batch_sampler")}
    vars(loader)["dataset"] = dataset
    if batch is not None:
        vars(loader)["batch_sampler"] = BatchSampler(loader.sampler, batch, loader.drop_last)
    stream = follow(state, torch_only=True)
    try:
        with nullcontext() if stream is None else stream.running():  # the same seed for its workers on all ranks
            iterator = original(loader)
    finally:
        vars(loader).update(before)
    iterator._sampler_iter = StreamIterator(sharing, iterator._sampler_iter)
    return iterator


@replacement
def begin_again(
    original: Original, sharing: DataSharing, iterator: Any, loader: Any, *arguments: Any, **options: Any
) -> None:
    is_strided = isinstance(iterator._sampler_iter, StreamIterator) and iterator._sampler_iter.sharing is sharing
    iterator._index_sampler = loader._index_sampler
    original(iterator, loader, *arguments, **options)
    if is_stream(loader) and sharing.shares() and is_strided is not is_shared(sharing, loader):
        sharing.announce(
            "a DataLoader over a stream with persistent_workers keeps what it started with, this rank's share or the "
            "whole stream: create one DataLoader for training and another for evaluation"
        )
    if is_strided:
        sharing.start_epoch()
        iterator._sampler_iter = StreamIterator(sharing, iterator._sampler_iter)


@replacement
def count_batches(original: Original, sharing: DataSharing, loader: Any) -> int:
    whole: int = original(loader)
    if not is_shared(sharing, loader):
        return whole
    sharing.note_whole_length()
    if not is_stream(loader) or not sharing.shares():
        return whole  # if the loader is shared, `SharedIndices` has counted the shares
    samples, size = len(loader.dataset), sharing.size
    batch = (loader.batch_size or 1) // (size if sharing.is_split else 1)
    return samples // size // batch if loader.drop_last else -(-(samples // size) // batch)


@replacement
def hand_out(original: Original, sharing: DataSharing, iterator: Any) -> Any:
    shares = iterator._sampler_iter
    if not isinstance(shares, SharedEpoch) or shares.sharing is not sharing:
        return original(iterator)
    try:
        batch = original(iterator)
    except StopIteration as error:
        end = error
    else:
        shares.hand_out(batch)
        return batch
    shares.end()  # outside the handler: its errors are not caused by StopIteration
    raise end


# The original of each replacement.  Not an attribute, which `functools.wraps` would copy to other functions.
_originals: weakref.WeakKeyDictionary[Original, Original] = weakref.WeakKeyDictionary()


def run_backward(original: Original, sharing: DataSharing) -> Original:
    weigher = LossWeigher(sharing)

    @functools.wraps(original)
    @never_compiled
    def backward(tensors: Any, grad_tensors: Any = None, *arguments: Any, **options: Any) -> None:
        # A backward nested in another one (checkpointing) is already weighed.
        if torch._C._current_graph_task_id() != NO_BACKWARD:
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
    """Return `torch.autograd.backward`, or the original below the replacement for a single-process script."""
    return _originals.get(torch.autograd.backward, torch.autograd.backward)


def _weigh(tensors: Sequence[Any], gradients: Any, weight: float) -> list[Any]:
    """Return the gradients that make backward scale all its results by `weight`."""
    given = (gradients,) if isinstance(gradients, torch.Tensor) else gradients or (None,) * len(tensors)
    return [_weigh_one(tensor, gradient, weight) for tensor, gradient in zip(tensors, given, strict=True)]


def _weigh_one(tensor: Any, gradient: torch.Tensor | None, weight: float) -> Any:
    if gradient is not None:
        return gradient * weight
    # Anything else needs a gradient from the caller; torch raises an error about it.
    return torch.full_like(tensor, weight) if isinstance(tensor, torch.Tensor) and tensor.numel() == 1 else None
