"""DataLoaders that know nothing of ranks: each rank takes its share.

In: a loader, when somebody iterates over it or asks for its length.  Out: what it goes through on this rank.
Shuffling loaders are shared, and streams.  Sequential ones, usually for evaluation, stay whole unless the script asks
for their shares; so does any that is iterated over where no gradients are computed: whatever it is for, it is not
training.
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
from undertow.torch.data.randomness import State, Stream, capture, follow
from undertow.torch.data.shares import Cutting, Part, stride
from undertow.torch.data.sharing import Sharing

# They draw what they need when they are asked for the first index.
_DRAWING_AT_ONCE = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)

_SPLIT = "--batch split (or UNDERTOW_BATCH=split)"  # torchrun has no such flag


class Shares:
    """In place of what a loader takes its batches of indices from."""

    def __init__(self, sharing: Sharing, loader: Any, inner: Any) -> None:
        self._sharing = sharing
        self._inner = inner
        self._is_batched = loader._auto_collation
        self._batch = loader.batch_size
        self._draws_at_once = type(find_sampler(loader)) in _DRAWING_AT_ONCE
        self._cutting = Cutting(
            rank=sharing.rank,
            size=sharing.size,
            is_split=sharing.is_split,
            drops_last=bool(getattr(inner, "drop_last", False)),
        )

    def __len__(self) -> int:
        return self._cutting.count(len(self._inner)) if self._sharing.shares() else len(self._inner)

    def __iter__(self) -> Any:
        if not self._sharing.shares():  # the script has joined the others itself: all indices are its own again
            return iter(self._inner)
        return ShareIterator(self._sharing, self._iterate, self._batch)

    def _iterate(self, state: State) -> Iterator[Part]:
        """The parts; the order is drawn as rank 0 alone would have drawn it."""
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
                elif stream is None:  # rank 0 has drawn from the script's own numbers once: the others have too
                    stream = self._sharing.drawing = Stream(capture())
                self._sharing.note_order(batch)
                yield batch if self._is_batched else [batch]

        for part in self._cutting.cut(draw()):
            yield part if self._is_batched else Part(part.indices[0], part.weight)


class Epoch:
    """Indices of one way through a loader."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._is_over = False

    def is_of(self, sharing: Sharing) -> bool:
        return self._sharing is sharing

    def __iter__(self) -> Epoch:
        return self

    def hand_out(self, batch: Any) -> None:
        """The oldest batch of those that were asked for goes to the script now."""
        self._sharing.weight = 1.0
        self._sharing.samples = count_samples(batch)
        self._sharing.waiting += 1
        self._sharing.numbers.start()

    def end(self) -> None:
        """It has had them all."""
        if not self._is_over:
            self._is_over = True
            self._sharing.end_epoch()


class ShareIterator(Epoch):
    """The weights of parts that are on their way wait until their batch is handed out."""

    def __init__(self, sharing: Sharing, iterate: Callable[[State], Iterator[Part]], batch: int | None) -> None:
        super().__init__(sharing)
        self._batch = batch
        self._iterate = iterate
        self._asked: deque[Part] = deque()
        self._parts: Iterator[Part] | None = None  # before the first: a loader makes some iterators in vain
        sharing.numbers.start()  # already now: the loader is about to seed its workers

    def __next__(self) -> Any:
        if self._parts is None:
            self._parts = self._iterate(self._sharing.start_epoch())
            self._sharing.numbers.start()
        part = next(self._parts)
        self._asked.append(part)
        return part.indices

    def hand_out(self, batch: Any) -> None:
        part = self._asked.popleft()
        self._sharing.is_mixed |= self._sharing.waiting > 0 and part.weight != self._sharing.weight
        super().hand_out(batch)
        self._sharing.weight, self._sharing.batch = part.weight, self._batch
        if isinstance(part.indices, list):
            self._sharing.samples = len(part.indices) if part.weight else 0


class Strided(IterableDataset[Any]):
    """Every n-th sample of a stream, in each of the loader's own workers, too."""

    def __init__(self, stream: Any, rank: int, size: int, state: State) -> None:
        self._stream = stream
        self._rank = rank
        self._size = size
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        return stride(self._samples(), rank=self._rank, size=self._size)

    def _samples(self) -> Iterator[Any]:
        # A stream that shuffles must do so alike on all ranks; in a worker it does, whose seed is the same.
        numbers = Stream(self._state) if get_worker_info() is None else None
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
        """A loader's `worker_init_fn` tells a stream which part of it is meant."""
        if name in ("_stream", "_rank", "_size", "_state"):
            super().__setattr__(name, value)
        else:
            setattr(self._stream, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_stream":
            raise AttributeError(name)
        return getattr(self._stream, name)


class StreamIterator(Epoch):
    """Of a stream, whose sampler only says how many samples are a batch: all are as large on all ranks."""

    def __init__(self, sharing: Sharing, batches: Iterator[Any]) -> None:
        super().__init__(sharing)
        self._batches = batches

    def __next__(self) -> Any:
        return next(self._batches)


def count_samples(batch: Any) -> int:
    """How many samples a batch has, by its first tensor; 1 if it has none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    inner = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((count_samples(one) for one in inner), 1)


def is_stream(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def find_sampler(loader: Any) -> Any:
    """What draws the indices of single samples; of batches, where a script has its own way to make them."""
    if loader.batch_sampler is None:
        return loader.sampler
    return loader.batch_sampler.sampler if type(loader.batch_sampler) is BatchSampler else loader.batch_sampler


def is_shared(sharing: Sharing, loader: Any) -> bool:
    """Whether this loader's batches are for training; see the module."""
    is_sequential = isinstance(find_sampler(loader), (SequentialSampler, DistributedSampler))
    is_whole = is_sequential and not sharing.shares_sequential and not is_stream(loader)
    return torch.is_grad_enabled() and not is_whole


def check_shareable(sharing: Sharing, loader: Any) -> None:
    """Raises `ConfigError` if there is no way to give each rank its share."""
    size, batch = sharing.size, loader.batch_size
    if is_stream(loader):
        if sharing.is_split and (batch is None or batch % size):
            raise ConfigError(
                f"{_SPLIT}: batches of {batch} samples of a stream cannot be split among {size} workers evenly"
            )
        return
    if sharing.is_split and not loader._auto_collation:
        raise ConfigError(
            f"{_SPLIT}: a DataLoader with batch_size=None has nothing to split; use --batch same "
            "(or UNDERTOW_BATCH=same)"
        )
    if not getattr(loader, "in_order", True):  # it came with torch 2.6
        raise ConfigError("a DataLoader with in_order=False cannot be shared: nobody knows which part is handed out")


def share_indices(sharing: Sharing, loader: Any, inner: Any) -> Any:
    """What the loader takes indices from on this rank."""
    if is_stream(loader) or not sharing.shares() or not is_shared(sharing, loader):
        return inner
    check_shareable(sharing, loader)
    sharing.start_sharing(_describe(sharing, loader))
    return Shares(sharing, loader, inner)


def stride_stream(sharing: Sharing, loader: Any, state: State) -> tuple[Any, int | None]:
    """The loader's dataset and batch size on this rank."""
    size = sharing.size
    batch = loader.batch_size
    sharing.start_sharing(
        f"DataLoader over the stream {type(loader.dataset).__name__}: each rank takes one of {size} samples, "
        f"fewer than {size} at its end are left out. It must be the same stream on all ranks"
    )
    return Strided(loader.dataset, sharing.rank, size, state), batch // size if sharing.is_split else batch


def _describe(sharing: Sharing, loader: Any) -> str:
    size = sharing.size
    what = f"DataLoader over {type(loader.dataset).__name__} ({type(find_sampler(loader)).__name__})"
    if sharing.is_split:
        return f"{what}: each batch of {loader.batch_size or 'its own size'} is split among {size} workers"
    if loader.batch_size is None:
        return f"{what}: each rank takes one of {size} batches"
    return f"{what}: each rank takes its share, {loader.batch_size} samples a step, {size * loader.batch_size} in all"
