"""Gives each rank its share of an ordinary DataLoader.

In: a loader, when the script iterates over it or reads its length.  Out: the indices or samples of this rank.
Shuffling loaders and streams are shared.  Sequential loaders, which are usually for evaluation, stay whole unless the
script requests shares.  So do loaders that are iterated over under `torch.no_grad()`, which is not training.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from undertow.errors import ConfigError
from undertow.sync.batches.shares import BatchShare, ShareRule, stride
from undertow.torch.data.data_sharing import DataSharing
from undertow.torch.data.randomness import RandomState, RandomStream, capture, follow

# These samplers draw all their random numbers when the first index is taken.
_DRAWING_AT_ONCE = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)

_SPLIT = "--batch split (or UNDERTOW_BATCH=split)"  # torchrun has no such option, only the variable


class SharedIndices:
    """A replacement for a loader's source of indices, which yields this rank's share of them."""

    def __init__(self, sharing: DataSharing, loader: Any, inner: Any) -> None:
        self._sharing = sharing
        self._inner = inner
        self._is_batched = loader._auto_collation
        self._batch = loader.batch_size
        self._draws_at_once = type(find_sampler(loader)) in _DRAWING_AT_ONCE
        self._rule = ShareRule(
            rank=sharing.rank,
            size=sharing.size,
            is_split=sharing.is_split,
            drops_last=bool(getattr(inner, "drop_last", False)),
        )

    def __len__(self) -> int:
        return self._rule.count(len(self._inner)) if self._sharing.shares() else len(self._inner)

    def __iter__(self) -> Any:
        if not self._sharing.shares():  # the script has joined the other workers itself
            return iter(self._inner)
        return ShareIterator(self._sharing, self._iterate, self._batch)

    def _iterate(self, state: RandomState) -> Iterator[BatchShare]:
        """Yield the shares, in the order that rank 0 alone would have drawn."""
        stream = follow(state, torch_only=self._draws_at_once)

        def draw() -> Iterator[Any]:
            nonlocal stream
            batches = iter(self._inner)
            while True:
                with nullcontext() if stream is None else stream.running():
                    batch = next(batches, None)
                if batch is None:
                    return
                if self._draws_at_once:
                    stream = None
                elif stream is None:
                    # The script's own sampler has drawn once from the script's generators, on all ranks.
                    stream = self._sharing.drawing = RandomStream(capture())
                self._sharing.note_order(batch)
                yield batch if self._is_batched else [batch]

        for share in self._rule.divide(draw()):
            yield share if self._is_batched else BatchShare(share.indices[0], share.weight)


class SharedEpoch:
    """An iterator over the indices of one epoch of a shared loader."""

    def __init__(self, sharing: DataSharing) -> None:
        self.sharing = sharing
        self._is_over = False

    def __iter__(self) -> SharedEpoch:
        return self

    def hand_out(self, batch: Any) -> None:
        """Note that the script receives the oldest requested batch."""
        self.sharing.weight = 1.0
        self.sharing.samples = count_samples(batch)
        self.sharing.waiting += 1
        self.sharing.numbers.start()

    def end(self) -> None:
        """End the epoch, once."""
        if not self._is_over:
            self._is_over = True
            self.sharing.end_epoch()


class ShareIterator(SharedEpoch):
    """An iterator over this rank's shares of a map-style dataset.  It keeps the weights of batches being loaded."""

    def __init__(
        self, sharing: DataSharing, iterate: Callable[[RandomState], Iterator[BatchShare]], batch: int | None
    ) -> None:
        super().__init__(sharing)
        self._batch = batch
        self._iterate = iterate
        self._requested: deque[BatchShare] = deque()
        # None until the first share is taken: loaders create some iterators that they never use.
        self._shares: Iterator[BatchShare] | None = None
        sharing.numbers.start()  # before the first share, because the loader seeds its workers now

    def __next__(self) -> Any:
        if self._shares is None:
            self._shares = self._iterate(self.sharing.start_epoch())
            self.sharing.numbers.start()
        share = next(self._shares)
        self._requested.append(share)
        return share.indices

    def hand_out(self, batch: Any) -> None:
        share = self._requested.popleft()
        self.sharing.is_mixed |= self.sharing.waiting > 0 and share.weight != self.sharing.weight
        super().hand_out(batch)
        self.sharing.weight, self.sharing.batch = share.weight, self._batch
        if isinstance(share.indices, list):
            self.sharing.samples = len(share.indices) if share.weight else 0


class StridedStream(IterableDataset[Any]):
    """Every n-th sample of a stream, in this process or in each of the loader's worker processes."""

    def __init__(self, stream: Any, rank: int, size: int, state: RandomState) -> None:
        self._stream = stream
        self._rank = rank
        self._size = size
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        return stride(self._samples(), rank=self._rank, size=self._size)

    def _samples(self) -> Iterator[Any]:
        # A stream must shuffle identically on all ranks.  In a loader's worker it does, because the seeds are the same.
        numbers = RandomStream(self._state) if get_worker_info() is None else None
        with nullcontext() if numbers is None else numbers.running():
            samples = iter(self._stream)
        while True:
            with nullcontext() if numbers is None else numbers.running():
                try:
                    sample = next(samples)
                except StopIteration:
                    return
            yield sample

    def __len__(self) -> int:
        return len(self._stream) // self._size

    def __setattr__(self, name: str, value: Any) -> None:
        """Set attributes of the stream itself, as a `worker_init_fn` does to give each worker its part of the data."""
        if name in ("_stream", "_rank", "_size", "_state"):
            super().__setattr__(name, value)
        else:
            setattr(self._stream, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_stream":
            raise AttributeError(name)
        return getattr(self._stream, name)


class StreamIterator(SharedEpoch):
    """An iterator over the indices of a stream, which only determine batch sizes, the same on all ranks."""

    def __init__(self, sharing: DataSharing, batches: Iterator[Any]) -> None:
        super().__init__(sharing)
        self._batches = batches

    def __next__(self) -> Any:
        return next(self._batches)


def count_samples(batch: Any) -> int:
    """Return the number of samples in a batch, judged by its first tensor; 1 if it has none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    inner = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((count_samples(one) for one in inner), 1)


def is_stream(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def find_sampler(loader: Any) -> Any:
    """Return the sampler of single samples, or the script's own batch sampler."""
    if loader.batch_sampler is None:
        return loader.sampler
    return loader.batch_sampler.sampler if type(loader.batch_sampler) is BatchSampler else loader.batch_sampler


def is_shared(sharing: DataSharing, loader: Any) -> bool:
    """Return whether this loader is for training, so that it is to be shared."""
    is_sequential = isinstance(find_sampler(loader), (SequentialSampler, DistributedSampler))
    is_whole = is_sequential and not sharing.knows_ranks and not is_stream(loader)
    return torch.is_grad_enabled() and not is_whole


def check_shareable(sharing: DataSharing, loader: Any) -> None:
    """Raise `ConfigError` if this loader cannot be shared."""
    size, batch = sharing.size, loader.batch_size
    if is_stream(loader):
        if sharing.is_split and (batch is None or batch % size):
            raise ConfigError(
                f"{_SPLIT}: batches of {batch} samples of a stream cannot be split evenly among {size} workers"
            )
        return
    if sharing.is_split and not loader._auto_collation:
        raise ConfigError(
            f"{_SPLIT}: a DataLoader with batch_size=None has nothing to split; use --batch same "
            "(or UNDERTOW_BATCH=same)"
        )
    if not getattr(loader, "in_order", True):  # new in torch 2.6
        raise ConfigError(
            "a DataLoader with in_order=False cannot be shared, because its batches arrive in an unknown order: "
            "leave in_order out"
        )


def share_indices(sharing: DataSharing, loader: Any, inner: Any) -> Any:
    """Return the loader's source of indices on this rank."""
    if is_stream(loader) or not sharing.shares() or not is_shared(sharing, loader):
        return inner
    check_shareable(sharing, loader)
    sharing.start_sharing(_describe(sharing, loader))
    return SharedIndices(sharing, loader, inner)


def stride_stream(sharing: DataSharing, loader: Any, state: RandomState) -> tuple[Any, int | None]:
    """Return the loader's dataset and batch size on this rank."""
    size = sharing.size
    batch = loader.batch_size
    sharing.start_sharing(
        f"DataLoader over the stream {type(loader.dataset).__name__}: each rank takes one of {size} samples; up to "
        f"{size - 1} at the end are left out. The stream must be the same on all ranks"
    )
    return StridedStream(loader.dataset, sharing.rank, size, state), batch // size if sharing.is_split else batch


def _describe(sharing: DataSharing, loader: Any) -> str:
    size = sharing.size
    what = f"DataLoader over {type(loader.dataset).__name__} ({type(find_sampler(loader)).__name__})"
    if sharing.is_split:
        return f"{what}: each batch of {loader.batch_size or 'its own size'} is split among {size} workers"
    if loader.batch_size is None:
        return f"{what}: each rank takes one of {size} batches"
    return f"{what}: each rank takes its share, {loader.batch_size} samples a step, {size * loader.batch_size} in all"
